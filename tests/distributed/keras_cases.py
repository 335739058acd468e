"""More cases of the matrix: data, optimizers, precision, execution, callbacks and saving. See keras_matrix.py."""

import contextlib
import os
import tempfile

import numpy as np

from tests.distributed.keras_matrix import (
    BATCH,
    EPOCHS,
    FEATURES,
    LOW_PRECISION,
    aligned,
    case,
    classification,
    classifier,
    dataset,
    dense,
    embedding,
    regression,
    seed_weights,
    tokens,
    with_layer,
)


def fit_rows(k, samples, build=dense, data=regression, **arguments):
    """Trains on so many rows; where they do not fill the last batch, workers get different shares of it."""
    return k.fit(k.model(build, **arguments), *data(samples))


# Data.


@case("inputs")
def np_shuffle(k):
    model = k.model(dense)
    x, y = regression()
    history = model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0)
    return k.result(model, x, y, history.history)


@case("inputs")
def ds_data(k):
    x, y = regression()
    return k.fit_dataset(k.model(dense), dataset(x, y), x, y)


@case("inputs", tolerance=None, why="every worker trains on all rows, half a batch a step")
def ds_off(k):
    x, y = regression()
    return k.fit_dataset(k.model(dense), dataset(x, y, policy="OFF"), x, y)


@case("inputs")
def partial(k):
    """R30: the last batch has 13 rows: 7 and 6."""
    return fit_rows(k, 61)


@case("inputs")
def partial1(k):
    """The last batch has one row."""
    return fit_rows(k, 49)


def penalized(k):
    """A model whose layers add to the loss."""
    return k.keras.Sequential(
        [
            k.layers.Input((FEATURES,)),
            k.layers.Dense(16, kernel_regularizer="l2"),
            k.layers.ActivityRegularization(l2=0.01),
            k.layers.Dense(1),
        ]
    )


@case("inputs")
def add_loss(k):
    return k.fit(k.model(penalized), *regression())


@case("inputs", trains=False)
def empty_add_loss(k):
    return fit_rows(k, 33, penalized)


@case("inputs", trains=False)
def empty_emb(k):
    x, y = tokens()
    return k.fit(k.model(embedding), x[:33], y[:33])


@case("inputs")
def repeat_steps(k):
    x, y = regression()
    return k.fit_dataset(k.model(dense), dataset(x, y).repeat(), x, y, steps_per_epoch=4)


@case("inputs")
def too_many_steps(k):
    """The data ends within the second epoch: all workers end together."""
    x, y = regression()
    return k.fit_dataset(k.model(dense), dataset(x, y).repeat(2), x, y, steps_per_epoch=5)


@case("inputs")
def pydataset(k):
    x, y = map(aligned, regression())
    base = k.keras.utils.PyDataset if k.is_keras3 else k.keras.utils.Sequence

    class Batches(base):
        def __len__(self):
            return len(x) // BATCH

        def __getitem__(self, i):
            return x[i * BATCH : (i + 1) * BATCH], y[i * BATCH : (i + 1) * BATCH]

    model = k.model(dense)
    history = model.fit(Batches(), epochs=EPOCHS, shuffle=False, verbose=0)
    return k.result(model, x, y, history.history)


@case("inputs", libraries=("keras",))  # tf_keras splits the batch once more, and adds up the logs
def train_on_batch(k):
    x, y = regression()
    model = k.model(dense, metrics=lambda: None)
    losses = [float(model.train_on_batch(x[i : i + BATCH], y[i : i + BATCH])) for i in range(0, len(x), BATCH)]
    return {"weights": model.get_weights(), "history": {"loss": losses}}


@case("inputs")
def multi_in_dict(k):
    """Named inputs, matched by name."""

    def build(k):
        inputs = {name: k.layers.Input((FEATURES,), name=name) for name in ("a", "b")}
        hidden = [k.layers.Dense(16, activation="relu")(inputs[name]) for name in ("b", "a")]
        return k.keras.Model(inputs, k.layers.Dense(1)(k.layers.concatenate(hidden)))

    x, y = regression()
    features = {"b": x * 2, "a": x}
    weights = np.linspace(0.5, 2, len(x)).astype(np.float32)
    model = k.model(build)
    return k.fit(model, features, y, sample_weight=weights)


@case("inputs")
def class_weight(k):
    model = k.model(classifier, loss="categorical_crossentropy", metrics=lambda: ["accuracy"])
    return k.fit(model, *classification(), class_weight={0: 1.0, 1: 2.0, 2: 0.5})


@case("inputs")
def sample_weight(k):
    x, y = regression()
    return k.fit(k.model(dense), x, y, sample_weight=np.linspace(0.1, 2, len(x)).astype(np.float32))


# Optimizers.


def optimized(name, rate=0.05, **arguments):
    """Trains with an optimizer of the library."""

    def run(k):
        return k.fit(k.model(dense, lambda: getattr(k.keras.optimizers, name)(rate, **arguments)), *regression())

    return run


@case("optimizers")
def ema(k):
    return optimized("SGD", use_ema=True)(k)


@case("optimizers", trains=False)
def ema_freq(k):
    return optimized("SGD", use_ema=True, ema_overwrite_frequency=2)(k)


@case("optimizers")
def adamw(k):
    return optimized("AdamW", 0.01, weight_decay=0.01)(k)


@case("optimizers")
def constraint(k):
    def build(k):
        limit = k.keras.constraints.MaxNorm(1.0)
        return k.keras.Sequential(
            [
                k.layers.Input((FEATURES,)),
                k.layers.Dense(16, kernel_constraint=limit, kernel_regularizer="l2"),
                k.layers.Dense(1),
            ]
        )

    return k.fit(k.model(build), *regression())


def clipped(k, **limit):
    """R11: Keras's clipping acts on the sum under `MPUOptimizer`."""
    import tf_epgc

    return k.fit(k.model(dense, lambda: tf_epgc.MPUOptimizer(k.keras.optimizers.SGD(0.05, **limit))), *regression())


@case("optimizers")
def mpu_clipnorm(k):
    return clipped(k, clipnorm=0.1)


@case("optimizers")
def mpu_global_clipnorm(k):
    return clipped(k, global_clipnorm=0.1)


@case("optimizers")
def mpu_clipvalue(k):
    return clipped(k, clipvalue=0.02)


# Precision: not exact, but as far from one process as the format rounds.


@contextlib.contextmanager
def policy(k, name):
    set_policy = k.keras.config.set_dtype_policy if k.is_keras3 else k.keras.mixed_precision.set_global_policy
    set_policy(name)
    try:
        yield
    finally:
        set_policy("float32")


def in_policy(k, name):
    with policy(k, name):
        result = k.fit(k.model(dense), *regression())
    return {part: value for part, value in result.items() if part != "predict"}


@case("precision", tolerance=2e-3, why=LOW_PRECISION)
def amp(k):
    return in_policy(k, "mixed_float16")


@case("precision", tolerance=2e-2, why=LOW_PRECISION)
def amp_bf16(k):
    return in_policy(k, "mixed_bfloat16")


@case("precision")
def f64(k):
    return in_policy(k, "float64")


@case("precision", tolerance=2e-2, why=LOW_PRECISION)
def f16(k):
    return in_policy(k, "float16")


# How steps are run.


@case("execution")
def spe4(k):
    return compiled(k, regression(), steps_per_execution=4)


@case("execution")
def spe4_uneven(k):
    return compiled(k, regression(61), steps_per_execution=3)


@case("execution")
def eager(k):
    return compiled(k, regression(), run_eagerly=True)


def compiled(k, data, build=dense, **arguments):
    with k.scope():
        model = build(k)
        seed_weights(model)
        model.compile(k.sgd(), "mse", metrics=["mae"], **arguments)
    return k.fit(model, *data)


# Callbacks: decisions follow from logs that are the same everywhere.


@case("callbacks")
def early_stopping(k):
    callback = k.keras.callbacks.EarlyStopping("val_loss", min_delta=10.0, restore_best_weights=True)
    return k.fit(k.model(dense), *regression(), validation_data=regression(48, seed=9), callbacks=[callback])


@case("callbacks")
def learning_rates(k):
    callbacks = k.keras.callbacks
    return k.fit(
        k.model(dense),
        *regression(),
        callbacks=[
            callbacks.LearningRateScheduler(lambda epoch, rate: rate / (epoch + 1)),
            callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=10.0),
        ],
    )


@case("callbacks")
def lr_schedule(k):
    def optimizer():
        return k.keras.optimizers.SGD(k.keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.5))

    return k.fit(k.model(dense, optimizer), *regression())


# Saving: what is read back predicts the same, and training goes on from it.


def saved_and_loaded(k, build, ending):
    x, y = regression()
    model = k.model(build, k.adam)
    model.fit(x, y, batch_size=BATCH, epochs=1, shuffle=False, verbose=0)
    with tempfile.TemporaryDirectory() as folder:  # one for each worker
        path = os.path.join(folder, "model" + ending)
        model.save(path)
        with k.scope():
            loaded = k.keras.models.load_model(path)
    np.testing.assert_allclose(loaded.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-5, atol=1e-5)
    return k.fit(loaded, x, y)


@case("saving")
def save(k):
    return saved_and_loaded(k, dense, ".keras")


@case("saving", libraries=("keras",))
def save_bn(k):
    """In Keras 3 only: tf_keras does not save that the layer is synchronized.

    No bias before it: its gradient would be zero but for rounding, of which Adam makes steps in any direction.
    """
    build = with_layer(lambda k: k.layers.BatchNormalization(synchronized=True), use_bias=False)
    return saved_and_loaded(k, build, ".keras")


@case("saving")
def tf_checkpoint(k):
    import tensorflow as tf

    x, y = regression()
    model = k.model(dense, k.adam)
    model.fit(x, y, batch_size=BATCH, epochs=1, shuffle=False, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        path = tf.train.Checkpoint(model=model).save(os.path.join(folder, "checkpoint"))
        before = model.get_weights()
        model.set_weights([w * 0 for w in before])
        tf.train.Checkpoint(model=model).restore(path)
    for restored, value in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(restored, value)
    return k.fit(model, x, y)
