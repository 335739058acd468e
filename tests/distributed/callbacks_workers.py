"""Saving, resuming and shared decisions, on one path for all workers; what callbacks_test.py runs."""

import importlib
import os

import numpy as np
import tensorflow as tf

import tf_epgc
from tests.distributed import harness

EPOCHS = 4


def _library(name):
    return importlib.import_module(name)


def _model(library, seed=3):
    library.utils.set_random_seed(seed)
    layers = library.layers
    model = library.Sequential([layers.InputLayer((5,)), layers.Dense(8), layers.BatchNormalization(), layers.Dense(3)])
    optimizer = tf_epgc.MPUOptimizer(library.optimizers.Adam(0.01), growth_steps=3)
    model.compile(optimizer, library.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def _fit(model, epochs, callbacks=()):
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(32, 5)).astype("float32"), generator.integers(0, 3, size=32)
    return model.fit(x, y, batch_size=16, epochs=epochs, verbose=0, shuffle=False, callbacks=list(callbacks))


def _state(model):
    variables = model.optimizer.variables
    variables = variables() if callable(variables) else variables
    return [np.asarray(w) for w in model.get_weights()] + [v.numpy() for v in variables]


def _stopper(library, epoch):
    class StopOnOne(library.callbacks.Callback):
        def on_epoch_end(self, number, logs=None):
            if harness.worker_index() == 1:
                self.model.optimizer.learning_rate = 0.5  # of this worker only
                self.model.stop_training = number == epoch

    return StopOnOne()


def first_run(name, folder):
    """An uninterrupted run; one that ends after two epochs, with its backup left; saved files; shared decisions."""
    library = _library(name)
    with tf_epgc.EPGCMirroredStrategy(bits=8, min_elements=1).scope():
        whole = _model(library)
        path = os.path.join(folder, "model.keras")
        _fit(whole, EPOCHS, [tf_epgc.ModelCheckpoint(path)])
        saved = library.models.load_model(path).get_weights()
        stopped = _model(library)
        _fit(stopped, 2, [tf_epgc.BackupAndRestore(os.path.join(folder, "backup"), delete_checkpoint=False)])
        shared = _model(library)
        history = _fit(shared, EPOCHS, [_stopper(library, 1), tf_epgc.SharedDecisions()])
        rate = float(np.asarray(tf.convert_to_tensor(shared.optimizer.learning_rate)))
    return {"whole": _state(whole), "weights": whole.get_weights(), "saved": saved,
            "epochs": len(history.history["loss"]), "rate": rate, "files": sorted(os.listdir(folder))}  # fmt: skip


def second_run(name, folder):
    """New processes go on from the backup, though their model starts from other values."""
    library = _library(name)
    with tf_epgc.EPGCMirroredStrategy(bits=8, min_elements=1).scope():
        model = _model(library)
        for variable in model.trainable_variables:
            variable.assign(variable * 0)
        backup = os.path.join(folder, "backup")
        history = _fit(model, EPOCHS, [tf_epgc.BackupAndRestore(backup)])
    return {"state": _state(model), "epochs": len(history.history["loss"]), "backup": os.path.exists(backup)}
