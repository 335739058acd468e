"""More cases from users' reports: structured batches and predictions, loops of the user's own, lists of any length.

See keras_matrix.py; each case names the report it stands for.
"""

import numpy as np

from tests.distributed.keras_cases import compiled
from tests.distributed.keras_matrix import (
    BATCH,
    EPOCHS,
    FEATURES,
    OWN_ROWS,
    SAMPLES,
    case,
    dataset,
    regression,
    two_outputs,
    with_layer,
)


@case("structures")
def image_classifier(k):
    """R01: shuffled and repeated slices of images, steps given, a loss on logits."""
    import tensorflow as tf

    def build(k):
        return k.keras.Sequential(
            [
                k.layers.Input((64,)),
                k.layers.Reshape((8, 8, 1)),
                k.layers.Conv2D(8, 3, activation="relu"),
                k.layers.Flatten(),
                k.layers.Dense(32, activation="relu"),
                k.layers.Dense(10),
            ]
        )

    random = np.random.default_rng(4)
    x = random.normal(size=(80, 64)).astype(np.float32)
    y = x[:, :10].argmax(1)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    # Keras 3 draws a batch under a strategy to build the model, and so trains from the second order on.
    slices = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(80, seed=5, reshuffle_each_iteration=False)
    slices = slices.repeat().batch(BATCH).with_options(options)
    loss = k.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = k.model(build, lambda: k.keras.optimizers.SGD(0.05), loss, lambda: ["accuracy"])
    return k.fit_dataset(model, slices, x, y, steps_per_epoch=7)


def _named_inputs(k):
    inputs = {name: k.layers.Input((FEATURES,), name=name) for name in ("z", "a")}
    hidden = [k.layers.Dense(16, activation="relu")(inputs[name]) for name in ("z", "a")]
    return k.keras.Model(inputs, k.layers.Dense(1)(k.layers.concatenate(hidden)))


def _named(k, *further):
    """Batches that name the inputs, in another order than the model does."""
    x, y = regression()
    features = {"a": x, "z": x * 2}
    return k.fit_dataset(k.model(_named_inputs), dataset(features, y, *further), features, y)


@case("structures")
def dict_batches(k):
    """R03: matched by name."""
    return _named(k)


@case("structures")
def dict_batches_with_weights(k):
    """R03: and weighted."""
    return _named(k, np.linspace(0.2, 2, SAMPLES).astype(np.float32))


@case("structures", trains=False)
def predicted_structures(k):
    """R32: dicts and tuples of 61 rows, from arrays and from a data set."""
    x, y = regression(61)

    def pair(k):
        inputs = k.layers.Input((FEATURES,))
        return k.keras.Model(inputs, (k.layers.Dense(1)(inputs), k.layers.Dense(2)(inputs)))

    models = {"dict": k.model(two_outputs, metrics=lambda: None), "tuple": k.model(pair, metrics=lambda: None)}
    predicted = {
        name: (model.predict(x, batch_size=BATCH, verbose=0), model.predict(dataset(x, y), verbose=0))
        for name, model in models.items()
    }
    assert all(isinstance(p, dict) for p in predicted["dict"])
    return {"weights": models["dict"].get_weights(), "predict": predicted}


@case("structures", trains=False, libraries=("keras",))  # in tf_keras each replica keeps a mean of its own
def statistics_of_an_empty_share(k):
    """R26: the mean of the rows is the whole batch's, whatever shares it had; a share without rows leaves it alone.

    (The variance of no rows is NaN in Keras 3; a synchronized one has rows.)
    """

    def build(k):
        normalize = k.layers.BatchNormalization(momentum=0.5, synchronized=True)
        return k.keras.Sequential([k.layers.Input((FEATURES,)), normalize, k.layers.Dense(1)])

    def mean_of_squares(y, predicted):
        import tensorflow as tf

        return tf.reduce_mean(tf.square(tf.cast(y, predicted.dtype) - predicted), -1)

    model = k.model(build, lambda: k.keras.optimizers.SGD(0.0), mean_of_squares, lambda: None)
    x, y = regression(33)
    model.fit(x, y, batch_size=BATCH, epochs=1, shuffle=False, verbose=0)
    return {"weights": [model.layers[-2].moving_mean.numpy()]}


@case("structures", tolerance=None, why="each replica drops other units")
def dropout(k):
    """R07: masks differ between replicas, a run can be repeated, and the state advances once a step."""
    weights = []
    for _ in range(2):
        k.keras.utils.set_random_seed(1)
        model = k.model(with_layer(lambda k: k.layers.Dropout(0.5, seed=3)))
        x, y = regression()
        history = model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0).history
        weights.append(model.get_weights())
    for first, second in zip(*weights, strict=True):
        np.testing.assert_array_equal(first, second)
    if k.is_keras3:
        layer = next(each for each in model.layers if isinstance(each, k.layers.Dropout))
        steps = EPOCHS * SAMPLES // BATCH
        assert int(k.keras.ops.convert_to_numpy(layer.seed_generator.state)[1]) == steps
    return {"weights": model.get_weights(), "history": history}


@case("structures")
def jit_auto(k):
    """R08: what is not asked for is not compiled, and works."""
    return compiled(k, regression(), jit_compile="auto" if k.is_keras3 else False)


# Loops.


def _with_normalization(k):
    return with_layer(lambda k: k.layers.BatchNormalization())(k)


@case("loops", tolerance=None, why=OWN_ROWS)
def normalization_in_a_loop(k):
    """R46: batch normalization in strategy.run; its statistics are the same on all workers."""
    import tensorflow as tf

    x, y = regression()
    model = k.model(_with_normalization)
    optimizer = model.optimizer

    def step(features, targets):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(features, training=True) - targets)) / k.strategy.num_replicas_in_sync
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    train = tf.function(lambda batch: k.strategy.run(step, args=batch))
    for batch in k.strategy.experimental_distribute_dataset(dataset(x, y)):
        train(batch)
    return {"weights": model.get_weights()}


@case("loops", tolerance=None, why=OWN_ROWS, libraries=("keras",))  # tf_keras splits such a batch once more
def normalization_and_train_on_batch(k):
    """R46: the same with `train_on_batch`."""
    x, y = regression()
    model = k.model(_with_normalization, metrics=lambda: None)
    for i in range(0, len(x), BATCH):
        model.train_on_batch(x[i : i + BATCH], y[i : i + BATCH])
    return {"weights": model.get_weights()}


def _lists():
    """Lists of ids: in each batch of 16 the first eight are long; the others are short, or all of them empty."""
    random = np.random.default_rng(6)
    lengths = [4 if i % BATCH < BATCH // 2 else (0 if i // BATCH == 1 else 2) for i in range(SAMPLES)]
    return [random.integers(0, 20, size=length).tolist() for length in lengths]


@case("loops", trains=False)
def lists_of_any_length(k):
    """R49: each worker looks up as many rows of a table as its lists have, or none."""
    import tensorflow as tf

    with k.scope():
        table = k.layers.Embedding(20, 8)
        table.build((None,))
        table.set_weights([np.linspace(-1, 1, 160).reshape(20, 8).astype(np.float32)])
        optimizer = k.adam()
        optimizer.build(table.trainable_variables)

    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(table(ids.flat_values) - 1.0)) / 100.0
        weights = table.trainable_variables
        gradients = tape.gradient(loss, weights)
        assert isinstance(gradients[0], tf.IndexedSlices)
        optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return loss

    @tf.function
    def train(batch):
        return k.strategy.reduce("SUM", k.strategy.run(step, args=(batch,)), axis=None)

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    lists = tf.data.Dataset.from_tensor_slices(tf.ragged.constant(_lists(), tf.int32)).batch(BATCH)
    losses = []
    for _ in range(EPOCHS):
        batches = k.strategy.experimental_distribute_dataset(lists.with_options(options))
        losses.append(sum(float(train(batch)) for batch in batches))
    return {"weights": table.get_weights(), "history": {"loss": losses}}
