"""What Keras 3 gets wrong on several workers and the strategy mends; what keras_repairs_test.py runs."""

import os
import tempfile

import keras
import numpy as np
import tensorflow as tf

import tf_epgc
from tests.distributed import harness


def _model(optimizer="sgd", layers=(), policy="float32", **arguments):
    keras.utils.set_random_seed(3)
    keras.config.set_dtype_policy(policy)
    inner = layers() if callable(layers) else layers
    model = keras.Sequential([keras.Input((5,)), *inner, keras.layers.Dense(40), keras.layers.Dense(3)])
    keras.config.set_dtype_policy("float32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], **arguments)
    return model


def _data(rows=64):
    generator = np.random.default_rng(0)
    return generator.normal(size=(rows, 5)).astype("float32"), generator.integers(0, 3, size=rows)


def _error(function):
    try:
        function()
    except ValueError as e:
        return str(e)
    return None


def _loss_scale():
    """mixed_float16 with Keras's LossScaleOptimizer; worker 1 gets an Inf in the second of four batches."""
    x, y = _data()
    if harness.worker_index() == 1:
        x[24:32] = np.inf  # worker 1's rows of the second batch of 16
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=1024.0)
    model = _model(optimizer, policy="mixed_float16")
    model.fit(x, y, batch_size=16, epochs=1, verbose=0, shuffle=False)
    return {
        "scale": float(keras.ops.convert_to_numpy(optimizer.dynamic_scale)),
        "iterations": int(keras.ops.convert_to_numpy(optimizer.iterations)),
        "weights": model.get_weights(),
    }


def _predict(policy):
    x, _ = _data(61)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    dataset = tf.data.Dataset.from_tensor_slices(x).batch(16).with_options(options)
    return _model().predict(dataset, verbose=0)


def _dropout_mask():
    layer = keras.layers.Dropout(0.5, seed=3)
    return tf.distribute.get_strategy().run(lambda: layer(tf.ones([1, 64]), training=True)).numpy()


def _saved_by_the_chief():
    """Weights after training that goes on when the chief has saved, inside of the scope and alone (R39)."""
    x, y = _data()
    model = _model(layers=lambda: [keras.layers.BatchNormalization()])
    for _ in range(2):
        model.fit(x, y, batch_size=16, epochs=1, verbose=0, shuffle=False)
        if harness.worker_index() == 0:
            with tempfile.TemporaryDirectory() as folder:
                model.save(os.path.join(folder, "model.keras"))
    return model.get_weights()


def _gather(dtype):
    rank = harness.worker_index()
    value = tf.cast(tf.fill([2 + 3 * rank, 3], rank), dtype)
    return tf.distribute.get_strategy().gather(value, axis=0).numpy().astype("float32")


def repairs():
    """Results by name."""
    strategy = tf_epgc.EPGCMirroredStrategy(bits=8, min_elements=1)
    x, y = _data()
    with strategy.scope():
        results = {
            "loss_scale": _loss_scale(),
            "masks": [_dropout_mask() for _ in range(2)],
            "predict": [_predict(p) for p in (tf.data.experimental.AutoShardPolicy.OFF,
                                              tf.data.experimental.AutoShardPolicy.DATA)],
            "gather": {dtype.name: _gather(dtype) for dtype in (tf.bool, tf.float16, tf.bfloat16, tf.int8)},
        }  # fmt: skip
        results["saved_by_the_chief"] = _saved_by_the_chief()
        for name, model in {
            "clipnorm": _model(keras.optimizers.SGD(0.1, clipnorm=0.1)),
            "jit": _model(jit_compile=True),
        }.items():
            results[name] = _error(lambda model=model: model.fit(x, y, batch_size=16, verbose=0))
        for name, arguments in {
            "steps_per_execution": {"steps_per_execution": 3},
            "plain": {},
            "bfloat16": {"policy": "bfloat16"},
        }.items():
            model = _model(**arguments)
            model.fit(x, y, batch_size=16, epochs=2, verbose=0, shuffle=False)
            results[name] = [np.asarray(w, "float32") for w in model.get_weights()]
    return results


def reference_prediction():
    return _model().predict(_data(61)[0], batch_size=16, verbose=0)
