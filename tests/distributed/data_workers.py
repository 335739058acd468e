"""Which rows each worker trains on; what data_test.py runs."""

import contextlib
import importlib
import io

import numpy as np
import tensorflow as tf

import tf_epgc
from tests.distributed.harness import worker_index

ROWS = 64


def _recorder(library, seen):
    """A model whose training step notes the ids it sees, which are its feature."""
    keras = importlib.import_module(library)

    class Recorder(keras.Model):
        def train_step(self, data):
            x = data[0] if isinstance(data, tuple) else data
            tf.numpy_function(lambda ids: seen.extend(ids.reshape(-1).tolist()) or np.int64(0), [x], tf.int64)
            return super().train_step(data)

    inputs = keras.layers.Input((1,))
    model = Recorder(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    return model


def _data(kind):
    x = np.arange(ROWS, dtype=np.float32)[:, None]
    if kind == "numpy":
        return {"x": x, "y": x * 0, "batch_size": 16}
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    dataset = tf.data.Dataset.from_tensor_slices((x, x * 0)).shuffle(ROWS)
    return {"x": dataset.batch(16).with_options(options)}


def rows_seen(library):
    """Ids seen in each epoch by this worker, without any seed in the script, by kind of data; and noise in replicas."""
    strategy = tf_epgc.EPGCMirroredStrategy(bits=8)
    results = {}
    for kind in ("numpy", "tf.data"):
        seen = []
        with strategy.scope():
            model = _recorder(library, seen)
        epochs = []
        for _ in range(2):
            model.fit(**_data(kind), epochs=1, verbose=0)
            epochs.append(sorted(seen))
            seen.clear()
        results[kind] = epochs
    results["noise"] = [float(strategy.run(fn)) for fn in (_noise, tf.function(_noise))]
    results["noise"].append(float(tf.function(lambda: strategy.run(_noise))()))
    return results


def _noise():
    return tf.random.uniform([])


def warnings(library):
    """What is written when workers have seeds of their own, and for a generator."""
    strategy = tf_epgc.EPGCMirroredStrategy(bits=8)
    written = {}
    tf.random.set_seed(5 + worker_index())
    with strategy.scope():
        model = _recorder(library, [])
    with contextlib.redirect_stderr(io.StringIO()) as lines:
        for _ in range(2):
            model.fit(**_data("numpy"), epochs=1, verbose=0)
    written["seeds"] = lines.getvalue()
    x = np.ones([16, 1], np.float32)
    with contextlib.redirect_stderr(io.StringIO()) as lines:
        model.fit(((x, x) for _ in range(12)), steps_per_epoch=2, epochs=1, verbose=0)
    written["generator"] = lines.getvalue()
    return written
