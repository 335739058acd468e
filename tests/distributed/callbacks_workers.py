"""Saving, resuming and shared decisions, on one path for all workers; what callbacks_test.py runs."""

import importlib
import importlib.util
import os
import pathlib
import signal
import time

import numpy as np
import tensorflow as tf

import tf_epgc
from tests.distributed import harness
from tf_epgc.fit_callbacks import share_callbacks_of_fit

EPOCHS = 4


class _Strategy(tf_epgc.EPGCMirroredStrategy):
    def scope(self):
        if self.extended._num_workers > 1:
            share_callbacks_of_fit(self)
        return super().scope()


def _strategy():
    return _Strategy(bits=8, min_elements=1)


def _mpu(library):
    return tf_epgc.MPUOptimizer(library.optimizers.Adam(0.01), growth_steps=3)


def _loss_scale(library):
    arguments = {"initial_scale": 256.0} if library.__name__ == "keras" else {"initial_scale": 256}
    steps = {"dynamic_growth_steps": 3}
    return library.mixed_precision.LossScaleOptimizer(library.optimizers.Adam(0.01), **arguments, **steps)


def _model(library, optimizer=_mpu, policy="float32", norm=True, seed=3):
    library.utils.set_random_seed(seed)
    layers = library.layers
    set_policy = library.mixed_precision.set_global_policy
    set_policy(policy)
    middle = [layers.BatchNormalization(), layers.Dropout(0.3, seed=7)] if norm else []
    model = library.Sequential([layers.InputLayer((5,)), layers.Dense(8), *middle, layers.Dense(3)])
    set_policy("float32")
    model.compile(optimizer(library), library.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def _fit(model, epochs, callbacks=(), **arguments):
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(32, 5)).astype("float32"), generator.integers(0, 3, size=32)
    arguments = {"batch_size": 16, "shuffle": False, **arguments}
    return model.fit(x, y, epochs=epochs, verbose=0, callbacks=list(callbacks), **arguments)


def _state(model):
    """Every value a run goes on with: weights, and the optimizer's state with steps and loss scale."""
    variables = model.optimizer.variables
    variables = variables() if callable(variables) else variables
    return [np.asarray(w) for w in model.get_weights()] + [np.asarray(v.numpy()) for v in variables]


def _rate(model):
    return float(np.asarray(tf.convert_to_tensor(model.optimizer.learning_rate)))


#: What is resumed, by name: an optimizer and a policy; without BatchNormalization and Dropout.
RESUMED = {"mpu": (_mpu, "float32", False), "loss_scale": (_loss_scale, "mixed_float16", False),
           "norm": (_mpu, "float32", True)}  # fmt: skip


def resume_first(name, folder):
    """Runs to the end, and others that end after two epochs and leave their backups, with plain Keras callbacks."""
    library = importlib.import_module(name)
    results = {}
    with _strategy().scope():
        for case, (optimizer, policy, norm) in RESUMED.items():
            whole = _model(library, optimizer, policy, norm)
            history = _fit(whole, EPOCHS)
            stopped = _model(library, optimizer, policy, norm)
            # Keras's own, where there are workers; alone, it forgets random layers.
            kind = library.callbacks if tf.distribute.get_strategy().extended._num_workers > 1 else tf_epgc
            backup = kind.BackupAndRestore(os.path.join(folder, case), delete_checkpoint=False)
            _fit(stopped, 2, [backup])
            results[case] = {"state": _state(whole), "losses": history.history["loss"][2:]}
    return results


def resume_second(name, folder):
    """New processes go on from the backups, though their models start from other values."""
    library = importlib.import_module(name)
    results = {}
    with _strategy().scope():
        for case, (optimizer, policy, norm) in RESUMED.items():
            model = _model(library, optimizer, policy, norm)
            for variable in model.trainable_variables:
                variable.assign(variable * 0)
            backup = os.path.join(folder, case)
            history = _fit(model, EPOCHS, [tf_epgc.BackupAndRestore(backup)])
            results[case] = {"state": _state(model), "losses": history.history["loss"]}
            results[case]["left"] = os.path.exists(os.path.join(backup, "chief" if name == "tf_keras" else ""))
    return results


def saving(name, folder):
    """Files written by plain callbacks, by ours and by `save_model`, on one path."""
    library = importlib.import_module(name)
    path = {key: os.path.join(folder, f"{key}.keras") for key in ("plain", "best", "ours", "function")}
    own = os.path.join(folder, f"own{harness.worker_index()}.keras")
    tensorboard = os.path.join(folder, "tensorboard")
    with _strategy().scope():
        model = _model(library)
        checkpoint = library.callbacks.ModelCheckpoint
        given = [
            checkpoint(path["plain"]),
            checkpoint(path["best"], save_best_only=True, monitor="loss"),
            tf_epgc.ModelCheckpoint(path["ours"], save_freq=3),
        ]
        given += [tf_epgc.TensorBoard(tensorboard)] if importlib.util.find_spec("tensorboard") else []
        given += [checkpoint(own)] if name == "keras" else []
        kept = list(given)
        x = np.random.default_rng(0).normal(size=(32, 5)).astype("float32")
        y = np.random.default_rng(0).integers(0, 3, size=32)
        model.fit(x, y, batch_size=16, epochs=3, verbose=0, shuffle=False, callbacks=given)
        tf_epgc.save_model(model, path["function"])
        loaded = {key: library.models.load_model(p).get_weights() for key, p in path.items()}
        after = _fit(model, 1).history["loss"]
    return {"weights": model_weights(loaded["function"]), "loaded": loaded, "files": sorted(os.listdir(folder)),
            "events": len(list(pathlib.Path(tensorboard).rglob("events*"))), "given": given == kept, "after": after,
            "best": kept[1].best, "own": os.path.exists(own)}  # fmt: skip


def model_weights(weights):
    return [np.asarray(w) for w in weights]


def _callback(library, **hooks):
    return type("Scripted", (library.callbacks.Callback,), hooks)()


def decisions(name):
    """Histories, rates and weights after callbacks that decide differently on the workers."""
    library = importlib.import_module(name)
    one = harness.worker_index() == 1

    def stop_at_epoch(self, epoch, logs=None):
        if one:
            self.model.stop_training = epoch == 1

    def stop_at_batch(self, batch, logs=None):
        if one:
            self.model.stop_training = True

    def local_loss(self, epoch, logs=None):
        logs["local"] = [[3.0, 2.0, 2.5, 2.5, 2.5], [1.0, 2.0, 2.5, 1.5, 9.0]][one][epoch]  # means 2, 2, 2.5, 2, 5.75

    callbacks = library.callbacks
    plateau = {"monitor": "local", "patience": 1, "factor": 0.5, "min_delta": 0.0, "mode": "min"}
    cases = {
        "epoch": [_callback(library, on_epoch_end=stop_at_epoch)],
        "batch": [_callback(library, on_train_batch_end=stop_at_batch)],
        "local": [_callback(library, on_epoch_end=local_loss),
                  callbacks.EarlyStopping("local", patience=2, mode="min", restore_best_weights=True)],
        "stops_own": [callbacks.EarlyStopping("local", patience=1, mode="min", restore_best_weights=True)],
        "rates": [_callback(library, on_epoch_end=local_loss), callbacks.ReduceLROnPlateau(**plateau)],
        "explicit": [_callback(library, on_epoch_end=stop_at_epoch), tf_epgc.SharedDecisions("all")],
    }  # fmt: skip
    cases["stops_own"][0].get_monitor_value = lambda logs: (
        [1.0, 2.0, 3.0, 4.0][len(model.history.epoch)] if one else (-len(model.history.epoch))
    )
    results = {}
    with _strategy().scope():
        for case, given in cases.items():
            for optimizer in (_mpu, _loss_scale) if case == "rates" else (_mpu,):
                model = _model(library, optimizer, norm=case == "local")
                history = _fit(model, 4, given)
                results[case, optimizer.__name__] = {
                    "epochs": len(history.history["loss"]), "rate": _rate(model), "weights": model.get_weights(),
                }  # fmt: skip
    return results


def not_shared(name):
    """The warning for callbacks that cannot be shared, and the error for workers with different ones of ours."""
    import warnings

    library = importlib.import_module(name)
    with _strategy().scope():
        model = _model(library, norm=False)
        x, y = np.ones((16, 5), "float32"), np.zeros(16, "int32")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(x, y, verbose=0, callbacks=(library.callbacks.EarlyStopping("loss"),))
        try:
            ours = [tf_epgc.SharedDecisions()] if harness.worker_index() else []
            model.fit(x, y, verbose=0, callbacks=ours)
            error = None
        except ValueError as e:
            error = str(e)
    return {"warnings": [str(w.message) for w in caught], "error": error}


def killed(name, folder):
    """Worker 1 is killed in its third epoch, the first time; then the same command is run to the end."""
    library = importlib.import_module(name)
    backup = os.path.join(folder, "backup")
    marker = os.path.join(folder, "killed")

    def kill(self, epoch, logs=None):
        if harness.worker_index() == 1 and epoch == 2 and not os.path.exists(marker):
            pathlib.Path(marker).write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)

    with _strategy().scope():
        model = _model(library, norm=False)
        history = _fit(model, EPOCHS, [_callback(library, on_epoch_begin=kill),
                                       library.callbacks.BackupAndRestore(backup, delete_checkpoint=False)])  # fmt: skip
        whole = _model(library, norm=False)
        _fit(whole, EPOCHS)
    return {"epochs": len(history.history["loss"]), "state": _state(model), "whole": _state(whole)}
