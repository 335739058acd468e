"""Saving, resuming and shared decisions, on one path for all workers; what callbacks_test.py runs."""

import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import tensorflow as tf

import tf_epgc
from tests.distributed import harness
from tf_epgc.keras_integration import workers

EPOCHS = 4


class Interrupted(Exception):
    """What ends a run in its third epoch."""


def _strategy():
    return tf_epgc.EPGCMirroredStrategy(bits=8, min_elements=1)


def _adam(library):
    return library.optimizers.Adam(0.01)


def _mpu(library):
    return tf_epgc.MPUOptimizer(_adam(library), growth_steps=3)


def _loss_scale(library):
    initial = 256.0 if library.__name__ == "keras" else 256
    wrapper = library.mixed_precision.LossScaleOptimizer
    return wrapper(_adam(library), initial_scale=initial, dynamic_growth_steps=3)


#: What is resumed, by name: optimizer, policy, layers in the middle.
RESUMED = {
    "adam": (_adam, "float32", ()),
    "mpu": (_mpu, "mixed_float16", ()),
    "loss_scale": (_loss_scale, "mixed_float16", ()),
    "norm": (_adam, "float32", ("BatchNormalization",)),
    "dropout": (_adam, "float32", ("Dropout", "GaussianNoise")),
}


def _model(library, optimizer=_mpu, policy="float32", middle=("BatchNormalization",), seed=3):
    library.utils.set_random_seed(seed)
    library.mixed_precision.set_global_policy(policy)
    layers = library.layers
    inner = [getattr(layers, name)(*([] if "Norm" in name else [0.3])) for name in middle]
    model = library.Sequential([layers.InputLayer((5,)), layers.Dense(8), *inner, layers.Dense(3, dtype="float32")])
    library.mixed_precision.set_global_policy("float32")
    model.compile(optimizer(library), library.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def _fit(model, epochs, callbacks=()):
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(32, 5)).astype("float32"), generator.integers(0, 3, size=32)
    return model.fit(x, y, batch_size=16, epochs=epochs, verbose=0, shuffle=False, callbacks=list(callbacks))


def _state(model):
    """Every value a run goes on with: weights, and the optimizer's state with steps and loss scale."""
    variables = model.optimizer.variables
    variables = variables() if callable(variables) else variables
    return [np.asarray(w) for w in model.get_weights()] + [v.numpy() for v in variables]


def _callback(library, **hooks):
    return type("Scripted", (library.callbacks.Callback,), hooks)()


def _interrupt(library):
    """Ends a run within its third epoch, after a step of it."""
    epochs = []

    def on_epoch_begin(self, epoch, logs=None):
        epochs.append(epoch)

    def on_train_batch_end(self, batch, logs=None):
        if epochs[-1] == 2:
            raise Interrupted

    return _callback(library, on_epoch_begin=on_epoch_begin, on_train_batch_end=on_train_batch_end)


def saving(name, folder):
    """A file written by `ModelCheckpoint`, on one path."""
    library = importlib.import_module(name)
    path = os.path.join(folder, "model.keras")
    with _strategy().scope():
        model = _model(library)
        _fit(model, EPOCHS, [tf_epgc.ModelCheckpoint(path)])
        saved = library.models.load_model(path).get_weights()
    return {"weights": model.get_weights(), "saved": saved, "files": os.listdir(folder)}


def resume_first(name, folder, cases=tuple(RESUMED)):
    """Runs to the end; and runs that an exception ends in their third epoch, which leave their backups."""
    library = importlib.import_module(name)
    results = {}
    with _strategy().scope():
        for case in cases:
            how = RESUMED[case]
            whole = _model(library, *how)
            history = _fit(whole, EPOCHS)
            results[case] = {"state": _state(whole), "losses": history.history["loss"][2:]}
            try:
                backup = tf_epgc.BackupAndRestore(os.path.join(folder, case))
                _fit(_model(library, *how), EPOCHS, [backup, _interrupt(library)])
            except Interrupted:
                results[case]["left"] = True
    return results


def resume_second(name, folder, cases=tuple(RESUMED)):
    """New processes go on from the backups, though their models start from other values."""
    library = importlib.import_module(name)
    results = {}
    with _strategy().scope():
        for case in cases:
            how = RESUMED[case]
            model = _model(library, *how, seed=4)
            backup = os.path.join(folder, case)
            history = _fit(model, EPOCHS, [tf_epgc.BackupAndRestore(backup)])
            results[case] = {"state": _state(model), "losses": history.history["loss"]}
            results[case]["left"] = os.path.exists(os.path.join(backup, "chief" if name == "tf_keras" else ""))
    return results


def different_backups(name, folder):
    """What `fit` says where workers have folders of their own, and only one of them a backup, or a damaged one."""
    library = importlib.import_module(name)
    own = os.path.join(folder, str(harness.worker_index()))
    messages = []
    with _strategy().scope():
        model = _model(library, middle=())
        _fit(model, 1, [tf_epgc.BackupAndRestore(own, delete_checkpoint=False)])
        if name == "tf_keras" and harness.worker_index() == 1:
            os.makedirs(own, exist_ok=True)  # tf_keras writes nothing there
        inside = os.path.join(own, "chief") if name == "tf_keras" else own
        metadata = os.path.join(inside, "checkpoint" if name == "tf_keras" else "training_metadata.json")
        for damage in (False, True):
            if damage and harness.worker_index() == 0:
                pathlib.Path(metadata).write_text(pathlib.Path(metadata).read_text()[:5])
            try:
                _fit(model, 2, [tf_epgc.BackupAndRestore(own, delete_checkpoint=False)])
            except ValueError as e:
                messages.append(str(e))
    return messages


def _stop_at_epoch(self, epoch, logs=None):
    if harness.worker_index() == 1:
        self.model.optimizer.learning_rate = 0.5  # of this worker only
        self.model.stop_training = epoch == 1


def _stop_at_batch(self, batch, logs=None):
    if harness.worker_index() == 1:
        self.model.stop_training = True


def _own_loss(values):
    def on_epoch_end(self, epoch, logs=None):
        logs["own"] = values[harness.worker_index()][epoch]

    return on_epoch_end


def _not_a_number(batches):
    """The loss is none from the second epoch on; adds to a list for each batch."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.model.set_weights([w * np.nan for w in self.model.get_weights()])

    return {"on_epoch_begin": on_epoch_begin, "on_train_batch_end": lambda self, batch, logs=None: batches.append(1)}


def decisions(name):
    """Epochs, rates and weights after callbacks that decide differently on the workers."""
    library = importlib.import_module(name)
    best = {"monitor": "own", "mode": "min", "restore_best_weights": True}
    early, rising, falling = library.callbacks.EarlyStopping, [1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0]
    cases = {
        "epoch": [_callback(library, on_epoch_end=_stop_at_epoch)],
        "batch": [_callback(library, on_train_batch_end=_stop_at_batch)],
        "all": [_callback(library, on_train_batch_end=_stop_at_batch)],
        "own": [_callback(library, on_epoch_end=_own_loss([rising, falling])), early(patience=1, **best)],
        "nobody": [_callback(library, on_epoch_end=_own_loss([falling, rising])), early(patience=9, **best)],
    }
    batches = []
    cases["nan"] = [_callback(library, **_not_a_number(batches)), library.callbacks.TerminateOnNaN()]
    # In tf_keras, EarlyStopping on a worker's own numbers cannot remember BatchNormalization's: reading takes all.
    middle = ("BatchNormalization",) if name == "keras" else ()
    results = {}
    with _strategy().scope():
        for case, given in cases.items():
            model = _model(library, middle=middle)
            history = _fit(model, EPOCHS, [*given, tf_epgc.SharedDecisions("all" if case == "all" else "any")])
            rate = float(np.asarray(tf.convert_to_tensor(model.optimizer.learning_rate)))
            results[case] = {"epochs": len(history.history["loss"]), "rate": rate, "weights": model.get_weights()}
    return results, len(batches)


def one_has_none(stuck):
    """Worker 1 has no `SharedDecisions`: it goes on to the next epoch, or does not come back from a callback."""
    library = importlib.import_module("keras")
    workers.TIME_LIMIT = 3.0
    other = _callback(library, on_epoch_end=lambda self, epoch, logs=None: time.sleep(10.0 if stuck else 0.0))
    with _strategy().scope():
        _fit(_model(library), EPOCHS, [other if harness.worker_index() else tf_epgc.SharedDecisions()])


def killed(name, folder):
    """Worker 1 is killed in its third epoch, the first time; then the same command is run to the end."""
    library = importlib.import_module(name)
    marker = pathlib.Path(folder, "killed")

    def kill(self, epoch, logs=None):
        if harness.worker_index() == 1 and epoch == 2 and not marker.exists():
            marker.write_text("")
            os.kill(os.getpid(), signal.SIGKILL)

    with _strategy().scope():
        model = _model(library, middle=())
        callbacks = [_callback(library, on_epoch_begin=kill), tf_epgc.BackupAndRestore(os.path.join(folder, "backup"))]
        history = _fit(model, EPOCHS, callbacks)
        whole = _model(library, middle=())
        _fit(whole, EPOCHS)
    return {"epochs": len(history.history["loss"]), "state": _state(model), "whole": _state(whole)}


def _train_long(folder):
    library = importlib.import_module("keras")

    def on_epoch_end(self, epoch, logs=None):
        pathlib.Path(folder, f"trains{harness.worker_index()}").write_text("")
        time.sleep(0.1)

    with _strategy().scope():
        _fit(_model(library), 10**6, [_callback(library, on_epoch_end=on_epoch_end)])


def one_restarts(folder):
    """Worker 1 is killed while both train, and started again alone; returns how that ended, and after how long."""
    if harness.worker_index() == 0:
        _train_long(folder)
    command = [sys.executable, "-c", f"from {__name__} import _train_long; _train_long({folder!r})"]
    with subprocess.Popen(command) as first:
        while not pathlib.Path(folder, "trains1").exists() and first.poll() is None:
            time.sleep(0.1)
        first.kill()
    start = time.monotonic()
    again = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60)
    return {"code": again.returncode, "error": again.stderr, "seconds": time.monotonic() - start,
            "cluster": json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]}  # fmt: skip
