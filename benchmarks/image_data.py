"""The images that the training benchmarks learn, and the network that learns them."""

import os

import numpy as np


def add_data_argument(parser):
    """Adds `--data`, whose value `load_images` takes."""
    parser.add_argument(
        "--data",
        metavar="FILE.npz",
        help="file with x_train, y_train, x_test, y_test (default: MNIST "
        "through keras.datasets, or scikit-learn's digits where that cannot be fetched)",
    )


def load_images(path=None, train=None, test=None):
    """Loads images to classify.

    Args:
        path: An .npz file, or None for MNIST, or for scikit-learn's digits where MNIST cannot be had.
        train: How many images to train on; None for all.
        test: How many to test on; None for all.

    Returns:
        A name, and x_train, y_train, x_test, y_test: images of shape (n, height, width, 1) with values from 0 to 1,
        labels.
    """
    name, (x_train, y_train, x_test, y_test) = _read(path)
    return name, (_images(x_train[:train]), y_train[:train], _images(x_test[:test]), y_test[:test])


def build_model(shape):
    """A small convolutional network for images of this shape, with logits of ten classes."""
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input(shape),
            layers.Conv2D(8, 3, strides=2, padding="same", activation="relu"),
            layers.Conv2D(16, 3, strides=2, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )


def _read(path):
    if path:
        with np.load(path) as file:
            return os.path.basename(path), tuple(file[key] for key in ("x_train", "y_train", "x_test", "y_test"))
    try:
        import keras

        (x_train, y_train), (x_test, y_test) = keras.datasets.mnist.load_data()
        return "MNIST", (x_train, y_train, x_test, y_test)
    except Exception as error:  # whatever a download can raise
        print(f"MNIST could not be loaded ({error}); the digits of scikit-learn are used instead.")
    from sklearn import datasets

    digits = datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    x, y, cut = digits.images[order], digits.target[order], len(order) * 4 // 5
    return "digits", (x[:cut], y[:cut], x[cut:], y[cut:])


def _images(x):
    x = x.astype("float32") / np.max(x)
    return x if x.ndim == 4 else x[..., np.newaxis]
