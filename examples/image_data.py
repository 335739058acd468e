"""Real images for the examples: CIFAR-10 or MNIST, from a local file or through `keras.datasets`."""

import numpy as np

ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def load(name, path=None, train=None, test=None):
    """Loads a data set.

    Args:
        name: `"cifar10"` or `"mnist"`: what `keras.datasets` fetches when there is no `path`.
        path: An .npz file with x_train, y_train, x_test, y_test; the images uint8, the labels whole numbers.
        train: How many images to train on, from the first on; None for all.
        test: How many to test on; None for all.

    Returns:
        x_train, y_train, x_test, y_test: uint8 images of shape (n, height, width, channels), int64 labels (n,).

    Raises:
        ValueError: If the file lacks one of the arrays.
    """
    x_train, y_train, x_test, y_test = _from_file(path) if path else _from_keras(name)
    return (*_images(x_train, y_train, train), *_images(x_test, y_test, test))


def batches(x, y, batch, seed=None, augment=False):
    """Whole batches for `fit` and `evaluate`, of which every worker takes its part.

    Args:
        x: uint8 images of shape (n, height, width, channels).
        y: Labels of shape (n,).
        batch: Images of a step of all workers together. What is left over is dropped, so that all workers always
            have the same number of images.
        seed: Of the order, a new one each epoch; None keeps the order.
        augment: Whether to mirror and to shift the images at random, by up to 4 pixels.

    Returns:
        A `tf.data.Dataset` of float32 images with values from -1 to 1, and labels.
    """
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    if seed is not None:
        dataset = dataset.shuffle(len(x), seed=seed)
    if augment:
        # Numbers from the seed, so that every run of one seed sees the same pixels, whatever its format.
        numbers = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True)
        dataset = tf.data.Dataset.zip((dataset, numbers)).map(_augmented)
    dataset = dataset.batch(batch, drop_remainder=True).map(_scaled)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return dataset.with_options(options).prefetch(2)


def _augmented(example, number):
    import tensorflow as tf

    image, label = example
    shape = image.shape
    image = tf.where(number % 2 == 0, image, image[:, ::-1])
    padded = tf.pad(image, [[4, 4], [4, 4], [0, 0]])
    return tf.slice(padded, [number // 2 % 9, number // 18 % 9, 0], shape), label


def _scaled(images, labels):
    import tensorflow as tf

    return tf.cast(images, tf.float32) / 127.5 - 1.0, labels


def _from_file(path):
    with np.load(path) as file:
        missing = [name for name in ARRAYS if name not in file]
        if missing:
            raise ValueError(f"{path} has no {', '.join(missing)}; it must hold the arrays {', '.join(ARRAYS)}")
        return tuple(file[name] for name in ARRAYS)


def _from_keras(name):
    import keras

    (x_train, y_train), (x_test, y_test) = getattr(keras.datasets, name).load_data()
    return x_train, y_train, x_test, y_test


def _images(x, y, count):
    x = x[:count]
    return (x if x.ndim == 4 else x[..., np.newaxis]), y[:count].reshape(-1).astype(np.int64)
