"""Trains a small network on scikit-learn's digits; what digits_test.py runs."""

import numpy as np
import tensorflow as tf

import tf_epgc


def _digits():
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.images[order, :, :, None] / 16.0).astype("float32")
    labels = digits.target[order]
    return (images[:1400], labels[:1400]), (images[1400:], labels[1400:])


def _model(keras):
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def accuracies(settings, optimizer, epochs):
    """Test accuracy after training with each of `settings` (arguments of the strategy), on local replicas."""
    import keras

    train, test = _digits()
    result = []
    for arguments in settings:
        keras.utils.set_random_seed(1)
        strategy = tf_epgc.EPGCMirroredStrategy(min_elements=1, **arguments)
        with strategy.scope():
            model = _model(keras)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(optimizer, loss, metrics=["accuracy"])
        dataset = tf.data.Dataset.from_tensor_slices(train).shuffle(1400, seed=2).batch(50, drop_remainder=True)
        model.fit(dataset, epochs=epochs, verbose=0)
        result.append(model.evaluate(*test, batch_size=50, verbose=0)[1])
    return result
