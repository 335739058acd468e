"""The scanned digits that come with scikit-learn, and a network for them: the short examples need no download."""

import numpy as np


def load(seed):
    """Four fifths of the digits to train on, one fifth to test; the same for the same seed.

    Returns:
        Two pairs of float32 images of shape (n, 8, 8, 1) with values from 0 to 1, and int64 labels (n,).
    """
    from sklearn import datasets

    digits = datasets.load_digits()
    order = np.random.default_rng(seed).permutation(len(digits.target))
    images = (digits.images[order][..., np.newaxis] / 16.0).astype(np.float32)
    labels = digits.target[order].astype(np.int64)
    cut = len(order) * 4 // 5
    return (images[:cut], labels[:cut]), (images[cut:], labels[cut:])


def batches(images, labels, batch, seed):
    """Whole batches in random order, of which every worker takes its part; a `tf.data.Dataset`."""
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(images), seed=seed)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return dataset.batch(batch, drop_remainder=True).with_options(options)


def build_model(library):
    """A small convolutional network with logits of ten classes, of `keras` or `tf_keras`, in that library's dtypes."""
    layers = library.layers
    return library.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )
