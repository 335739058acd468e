"""Cases in which several things come together, and those of files, dtypes and exports. See keras_matrix.py."""

import os
import tempfile

import numpy as np

from tests.distributed.keras_cases import in_policy, policy
from tests.distributed.keras_matrix import (
    BATCH,
    EPOCHS,
    FEATURES,
    LOW_PRECISION,
    ORDER_OF_SUMS,
    OWN_ROWS,
    case,
    dense,
    embedding,
    regression,
    seed_weights,
    tokens,
    with_layer,
)


def _files(folder, parts):
    """The rows as so many files of records."""
    import tensorflow as tf

    x, y = regression()
    rows = np.concatenate([x, y], 1)
    for number, part in enumerate(np.array_split(rows, parts)):
        with tf.io.TFRecordWriter(os.path.join(folder, f"rows{number}.tfrecord")) as writer:
            for row in part:
                writer.write(row.tobytes())
    return x, y


@case("mixtures", tolerance=None, why="each worker has files of its own, so that batches have other rows")
def several_files(k):
    import tensorflow as tf

    def parse(record):
        row = tf.reshape(tf.io.decode_raw(record, tf.float32), [FEATURES + 1])
        return row[:FEATURES], row[FEATURES:]

    with tempfile.TemporaryDirectory() as folder:
        x, y = _files(folder, 4)
        names = tf.data.Dataset.list_files(os.path.join(folder, "*.tfrecord"), shuffle=False)
        rows = names.interleave(tf.data.TFRecordDataset).map(parse).batch(BATCH)
        return k.fit_dataset(k.model(dense), rows, x, y)


@case("mixtures")
def add_loss(k):
    def build(k):
        return k.keras.Sequential(
            [
                k.layers.Input((FEATURES,)),
                k.layers.Dense(16, kernel_regularizer="l2"),
                k.layers.ActivityRegularization(l2=0.01),
                k.layers.Dense(1),
            ]
        )

    return k.fit(k.model(build), *regression())


@case("mixtures", tolerance=2e-2, why=LOW_PRECISION)
def bfloat16_weights(k):
    return in_policy(k, "bfloat16")


@case("mixtures", tolerance=2e-3, why=LOW_PRECISION)
def mixed_float16_eager(k):
    with policy(k, "mixed_float16"), k.scope():
        model = dense(k)
        seed_weights(model)
        model.compile(k.sgd(), "mse", run_eagerly=True)
    result = k.fit(model, *regression())
    return {part: value for part, value in result.items() if part != "predict"}


@case("mixtures", tolerance=2e-3, why=LOW_PRECISION, libraries=("keras",))
def mixed_float16_accumulated(k):
    with policy(k, "mixed_float16"):
        result = k.fit(k.model(dense, k.accumulating), *regression())
    return {part: value for part, value in result.items() if part != "predict"}


@case("mixtures", tolerance=None, why=OWN_ROWS)
def normalized_eager(k):
    with k.scope():
        model = with_layer(lambda k: k.layers.BatchNormalization())(k)
        seed_weights(model)
        model.compile(k.sgd(), "mse", run_eagerly=True)
    return k.fit(model, *regression())


@case("mixtures")
def clipped_embedding(k):
    import tf_epgc

    return k.fit(
        k.model(embedding, lambda: tf_epgc.MPUOptimizer(k.keras.optimizers.SGD(0.05, global_clipnorm=0.1))), *tokens()
    )


@case("mixtures", libraries=("keras",))
def accumulated_under_mpu(k):
    import tf_epgc

    return k.fit(k.model(dense, lambda: tf_epgc.MPUOptimizer(k.accumulating())), *regression())


@case("mixtures", trains=False)
def exported(k):
    """A SavedModel answers as the model does."""
    import tensorflow as tf

    x, y = regression()
    model = k.model(dense)
    result = k.fit(model, x, y)
    with tempfile.TemporaryDirectory() as folder:  # one for each worker
        model.export(folder)
        loaded = tf.saved_model.load(folder)
        served = loaded.serve(tf.constant(x))
    np.testing.assert_allclose(served, result["predict"], rtol=1e-5, atol=1e-5)
    return result


@case("mixtures", tolerance=1e-3, why=ORDER_OF_SUMS, libraries=("keras",))
def everything(k):
    """Steps in loops, accumulation, synchronized statistics, validation, a last batch that does not divide."""
    with k.scope():
        model = with_layer(lambda k: k.layers.BatchNormalization(synchronized=True))(k)
        seed_weights(model)
        model.compile(k.accumulating(), "mse", metrics=["mae"], steps_per_execution=3)
    x, y = regression(160)
    history = model.fit(
        x, y, batch_size=BATCH, epochs=2 * EPOCHS, shuffle=False, verbose=0, validation_data=(x[:61], y[:61])
    )
    return k.result(model, x, y, history.history)
