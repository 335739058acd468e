"""Cases in which several things come together, and those of files, dtypes and exports. See keras_matrix.py."""

import tempfile

import numpy as np

from tests.distributed.keras_cases import compiled, in_policy, policy
from tests.distributed.keras_matrix import (
    BATCH,
    EPOCHS,
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
from tests.distributed.keras_reports import trained_on_records


@case("mixtures", tolerance=None, why="each worker has files of its own, so that batches have other rows")
def several_files(k):
    import tensorflow as tf

    def read(paths):
        return tf.data.Dataset.list_files(paths, shuffle=False).interleave(tf.data.TFRecordDataset)

    return trained_on_records(k, 4, read)


@case("mixtures", tolerance=2e-2, why=LOW_PRECISION)
def bfloat16_weights(k):
    return in_policy(k, "bfloat16")


@case("mixtures", tolerance=2e-3, why=LOW_PRECISION)
def mixed_float16_eager(k):
    with policy(k, "mixed_float16"):
        result = compiled(k, regression(), run_eagerly=True)
    return {part: value for part, value in result.items() if part != "predict"}


@case("mixtures", tolerance=2e-3, why=LOW_PRECISION, libraries=("keras",))
def mixed_float16_accumulated(k):
    with policy(k, "mixed_float16"):
        result = k.fit(k.model(dense, k.accumulating), *regression())
    return {part: value for part, value in result.items() if part != "predict"}


@case("mixtures", tolerance=None, why=OWN_ROWS)
def normalized_eager(k):
    return compiled(k, regression(), with_layer(lambda k: k.layers.BatchNormalization()), run_eagerly=True)


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
