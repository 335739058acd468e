"""Records what reaches the cross-device ops, and whether it is marked as gradients: the work of gradients_test.py."""

import contextlib
import importlib

import numpy as np
import tensorflow as tf

import tf_epgc
from tf_epgc import cross_device_ops, options

#: Gradients of at least this many elements are coded, small as the models are.
MIN_ELEMENTS = 1


@contextlib.contextmanager
def recording():
    """A list of (marked, operation, values) for each all-reduce of the first replica inside the block."""
    calls = []
    original = cross_device_ops.EPGCAllReduce._all_reduce

    def record(self, reduce_op, value, replica_id, opts):
        if replica_id == 0:
            described = sorted((v.dtype.name, tuple(v.shape)) for v in tf.nest.flatten(value))
            calls.append((options.gradient_options_of(opts) is not None, reduce_op.name, described))
        return original(self, reduce_op, value, replica_id, opts)

    cross_device_ops.EPGCAllReduce._all_reduce = record
    try:
        yield calls
    finally:
        cross_device_ops.EPGCAllReduce._all_reduce = original


def _layers(keras, name):
    layers = keras.layers
    return {
        "plain": [layers.Dense(7, name="hidden"), layers.Dense(3, name="out")],
        "batch_norm": [layers.Dense(7), layers.BatchNormalization(), layers.Dense(3)],
        "sync_batch_norm": [layers.Dense(7), layers.BatchNormalization(synchronized=True), layers.Dense(3)],
        "embedding": [layers.Embedding(50, 7), layers.Flatten(), layers.Dense(3)],
        # A kernel of shape (1, 7) beside statistics of shape (1, 7).
        "ambiguous": [layers.Dense(1), layers.Dense(7), layers.BatchNormalization(synchronized=True), layers.Dense(3)],
    }[name]


def _data(name, rows=32):
    generator = np.random.default_rng(0)
    if name == "embedding":
        return generator.integers(0, 50, size=(rows, 4)), generator.integers(0, 3, size=rows)
    return generator.normal(size=(rows, 5)).astype("float32"), generator.integers(0, 3, size=rows)


def _optimizer(keras, accumulate):
    arguments = {"gradient_accumulation_steps": 2} if accumulate else {}
    return keras.optimizers.SGD(0.01, **arguments)


def keras_calls(library, cases):
    """What `_keras_calls` records for each case, a dict of its arguments."""
    return [_keras_calls(library, **case) for case in cases]


def _keras_calls(library, model="plain", accumulate=False):
    """Fit, evaluate and predict; returns the recorded calls and the shapes of the gradients that there must be."""
    keras = importlib.import_module(library)
    strategy = tf_epgc.EPGCMirroredStrategy(bits=11, min_elements=MIN_ELEMENTS)
    x, y = _data(model)
    with recording() as calls:
        with strategy.scope():
            net = keras.Sequential([keras.Input(x.shape[1:]), *_layers(keras, model)])
            net.compile(
                _optimizer(keras, accumulate),
                keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                metrics=["accuracy"],
            )
        net.fit(x, y, batch_size=8, epochs=1, validation_data=(x, y), verbose=0)
        net.evaluate(x, y, batch_size=8, verbose=0)
        net.predict(x, batch_size=8, verbose=0)
        net.get_weights()
    shapes = sorted(
        (v.dtype if isinstance(v.dtype, str) else v.dtype.name, tuple(v.shape)) for v in net.trainable_variables
    )
    return calls, shapes


def _sum(value, **kwargs):
    return tf.distribute.get_replica_context().all_reduce("SUM", value, **kwargs)


#: What a custom loop may all-reduce: name -> function of a (4, 6) kernel's gradient.
CUSTOM = {
    "gradient": lambda g: _sum([g]),
    "mean": lambda g: tf.distribute.get_replica_context().all_reduce("MEAN", [g]),
    "other_shape": lambda g: _sum([g[:, :5]]),
    "too_many": lambda g: _sum([g, g]),
    "integer": lambda g: _sum([tf.cast(g, tf.int32)]),
    "loss": lambda g: _sum(tf.reduce_sum(g)),
    "marked": lambda g: _sum([g[:, :5]], options=tf_epgc.GradientOptions()),
    "marked_exact": lambda g: _sum([g], options=tf_epgc.GradientOptions(bits=32)),
}


def custom_calls():
    """Name -> whether the call was marked."""
    strategy = tf_epgc.EPGCMirroredStrategy(bits=11, min_elements=MIN_ELEMENTS)
    with strategy.scope():
        kept = [tf.Variable(tf.zeros([4, 6])), tf.Variable(tf.zeros([4, 5]), trainable=False)]
    marked = {}
    for name, function in CUSTOM.items():
        with recording() as calls:
            strategy.run(tf.function(lambda f=function: f(tf.ones([4, 6]))))
        (call,) = calls
        marked[name] = call[0]
    del kept
    return marked
