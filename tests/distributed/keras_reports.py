"""Cases of the matrix that come from users' reports; each names the report it stands for. See keras_matrix.py."""

import os
import tempfile

import numpy as np

from tests.distributed.keras_matrix import (
    BATCH,
    EPOCHS,
    FEATURES,
    ORDER_OF_SUMS,
    case,
    dataset,
    dense,
    regression,
    seed_weights,
    tokens,
    two_outputs,
)


@case("reports")
def built_by_fit(k):
    """R05: compiled in the scope, built by `fit` outside of it; the optimizer's slots are distributed all the same."""
    with k.scope():
        make = k.keras.initializers.GlorotUniform
        hidden = k.layers.Dense(16, activation="relu", kernel_initializer=make(seed=5))
        model = k.keras.Sequential([hidden, k.layers.Dense(1, kernel_initializer=make(seed=6))])
        model.compile(k.adam(), "mse")
    result = k.fit(model, *regression())
    if k.strategy.num_replicas_in_sync > 1:
        variables = [v.value for v in model.optimizer.variables] if k.is_keras3 else model.optimizer.variables
        assert all(hasattr(v, "values") for v in variables), "an optimizer's variable is not distributed"
    return result


@case("reports", trains=False)
def regularizer_once(k):
    """R12: the loss by `evaluate`, by hand from `predict`, and after one step; the regularizer counts once."""

    def build(k):
        return k.keras.Sequential([k.layers.Input((1,)), k.layers.Dense(10, kernel_regularizer="l2")])

    x = np.linspace(-1, 1, 12, dtype=np.float32)[:, None]
    y = np.repeat(x * 2, 10, 1)
    model = k.model(build, lambda: k.keras.optimizers.SGD(0.1), metrics=lambda: None)
    before = model.evaluate(x, y, batch_size=12, verbose=0)
    penalty = 0.01 * np.square(model.get_weights()[0]).sum()
    by_hand = np.square(model.predict(x, batch_size=12, verbose=0) - y).mean() + penalty
    np.testing.assert_allclose(before, by_hand, rtol=1e-5)
    history = model.fit(x, y, batch_size=12, epochs=1, verbose=0).history
    return {"weights": model.get_weights(), "evaluate": before, "history": history}


def trained_on_records(k, files, read):
    """Trains on so many files of records, which `read(paths)` reads, with sharding left to TensorFlow."""
    import tensorflow as tf

    def parse(record):
        row = tf.reshape(tf.io.decode_raw(record, tf.float32), [FEATURES + 1])
        return row[:FEATURES], row[FEATURES:]

    x, y = regression()
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, f"rows{number}.tfrecord") for number in range(files)]
        for path, rows in zip(paths, np.array_split(np.concatenate([x, y], 1), files), strict=True):
            with tf.io.TFRecordWriter(path) as writer:
                for row in rows:
                    writer.write(row.tobytes())
        return k.fit_dataset(k.model(dense), read(paths).map(parse).cache().batch(BATCH), x, y)


@case("reports")
def record_file(k):
    """R20: one file, two workers: rows are split, nobody starves."""
    import tensorflow as tf

    return trained_on_records(k, 1, tf.data.TFRecordDataset)


@case("reports", tolerance=1e-3, why=ORDER_OF_SUMS)
def channels_first(k):
    """R44: synchronized batch normalization over the second axis."""

    def build(k):
        return k.keras.Sequential(
            [
                k.layers.Input((3, 8, 8)),
                k.layers.BatchNormalization(axis=1, synchronized=True),
                k.layers.Flatten(),
                k.layers.Dense(1),
            ]
        )

    x, y = regression()
    images = np.tile(x[:, None, None, :], (1, 3, 8, 1)) * np.arange(1, 4, dtype=np.float32)[:, None, None]
    return k.fit(k.model(build, lambda: k.keras.optimizers.SGD(1e-3)), images, y)


@case("reports")
def shared_embedding(k):
    """R50: one table looked up twice."""

    def build(k):
        table = k.layers.Embedding(20, 8)
        inputs = k.layers.Input((6,), dtype="int32")
        both = k.layers.concatenate([table(inputs), table(k.layers.Lambda(lambda t: 19 - t)(inputs))])
        return k.keras.Model(inputs, k.layers.Dense(1)(k.layers.Flatten()(both)))

    return k.fit(k.model(build, k.adam), *tokens())


@case("reports")
def unused_layer(k):
    """R56: variables without a gradient, on all workers."""

    class Partly(k.keras.Model):
        def __init__(self):
            super().__init__()
            self.used, self.unused = k.layers.Dense(1), k.layers.Dense(4)

        def build(self, shape):
            self.used.build((None, FEATURES))
            self.unused.build((None, FEATURES))
            self.built = True

        def call(self, inputs):
            return self.used(inputs)

    def build(k):
        model = Partly()
        model.build((None, FEATURES))
        return model

    return k.fit(k.model(build), *regression())


@case("reports")
def accumulators(k):
    """R72, R73: gradients kept in variables of each replica, applied every second step, in a branch."""
    import tensorflow as tf

    x, y = regression()
    with k.scope():
        model = dense(k)
        seed_weights(model)
        optimizer = k.sgd()
        optimizer.build(model.trainable_variables)
        kept = [
            tf.Variable(
                tf.zeros(w.shape),
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            )
            for w in model.trainable_variables
        ]

    def step(features, targets):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(features, training=True) - targets))
        scale = 2.0 * k.strategy.num_replicas_in_sync
        for variable, gradient in zip(kept, tape.gradient(loss, model.trainable_variables), strict=True):
            variable.assign_add(gradient / scale)

    def apply():
        gradients = [tf.identity(variable) for variable in kept]
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        for variable in kept:
            variable.assign(tf.zeros_like(variable))

    @tf.function
    def train(batch, is_last):
        k.strategy.run(step, args=batch)
        if is_last:
            k.strategy.run(apply)

    for _ in range(EPOCHS):
        for i, batch in enumerate(k.strategy.experimental_distribute_dataset(dataset(x, y))):
            train(batch, tf.constant(i % 2 == 1))
    return {"weights": model.get_weights()}


@case("reports")
def steps_in_a_loop(k):
    """R115: several steps in one function."""
    import tensorflow as tf

    x, y = regression()
    with k.scope():
        model = dense(k)
        seed_weights(model)
        optimizer = k.adam()
        optimizer.build(model.trainable_variables)

    def step(features, targets):
        with tf.GradientTape() as tape:
            errors = tf.reduce_mean(tf.square(model(features, training=True) - targets))
            loss = errors / k.strategy.num_replicas_in_sync
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    @tf.function
    def train(iterator):
        for _ in tf.range(4):
            k.strategy.run(step, args=next(iterator))

    for _ in range(EPOCHS):
        train(iter(k.strategy.experimental_distribute_dataset(dataset(x, y, drop_remainder=True))))
    return {"weights": model.get_weights()}


@case("reports")
def structured_steps(k):
    """R116: several steps an execution, batches left over, three of validation, and a dict predicted."""
    x, y = regression(160)
    targets = {"a": y, "b": np.concatenate([y, -y], axis=1)}
    with k.scope():
        model = two_outputs(k)
        seed_weights(model)
        model.compile(k.sgd(), {"a": "mse", "b": "mse"}, steps_per_execution=4)
    validation = {name: value[:48] for name, value in targets.items()}
    result = k.fit(model, x, targets, validation_data=(x[:48], validation))
    assert sorted(result["predict"]) == ["a", "b"]
    return result
