"""Trains on numbers of rows that do not divide; what uneven_test.py runs."""

import contextlib
import importlib

import numpy as np

import tf_epgc


def _layers(layers, model):
    return {
        "plain": [layers.Dense(40, activation="tanh", kernel_regularizer="l2")],
        "batch_norm": [layers.Dense(8), layers.BatchNormalization()],
        "sync_batch_norm": [layers.Dense(8), layers.BatchNormalization(synchronized=True)],
        "embedding": [layers.Embedding(30, 6), layers.Flatten()],
    }[model]


def _data(model, rows):
    generator = np.random.default_rng(0)
    if model == "embedding":
        return generator.integers(0, 30, size=(rows, 4)), generator.integers(0, 3, size=rows)
    return generator.normal(size=(rows, 5)).astype("float32"), generator.integers(0, 3, size=rows)


def train(library, cases, distributed=True):
    """Fits and evaluates each case with one strategy, or without any.

    Args:
      library: "keras" or "tf_keras".
      cases: Dicts: `model`, `rows`, and arguments for `compile`.
      distributed: With the strategy.

    Returns:
      For each case the losses, what evaluate gives, and the weights.
    """
    strategy = tf_epgc.EPGCMirroredStrategy(bits=32) if distributed else None
    return [_train(importlib.import_module(library), strategy, **case) for case in cases]


def _train(keras, strategy, model, rows, **arguments):
    x, y = _data(model, rows)
    keras.utils.set_random_seed(3)
    with strategy.scope() if strategy else contextlib.nullcontext():
        net = keras.Sequential([keras.Input(x.shape[1:]), *_layers(keras.layers, model), keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        net.compile(keras.optimizers.SGD(0.5), loss, metrics=["accuracy"], **arguments)
    history = net.fit(x, y, batch_size=16, epochs=2, verbose=0, shuffle=False)
    return {
        "loss": history.history["loss"],
        "evaluate": net.evaluate(x, y, batch_size=16, verbose=0),
        "weights": net.get_weights(),
    }
