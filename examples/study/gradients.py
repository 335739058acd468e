"""Counts, layer by layer, what the formats do to the gradients of a real training.

    python examples/study/gradients.py --network resnet8 --steps 60

A network learns CIFAR-10 in float32 in this process, each batch split between two replicas. At every tenth step their
gradients also go through the exchange that two workers would do (tf_epgc.simulate_all_reduce). Printed as Markdown, for
each large tensor: the share of its values, zeros left out, below the format's smallest one; the share that becomes 0
with block scaling; and the signal-to-noise ratio of the exchanged sum in dB.
"""

import argparse
import os
import pathlib
import sys

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import exchange_options
import image_data
import keras
import networks
import numpy as np
import tensorflow as tf
import training

import tf_epgc
from tf_epgc import formats

BITS = (16, 11, 9, 8)
REPLICAS = 2
EVERY = 10


def main(arguments=None):
    """Trains and prints the table; returns the exit code."""
    options = parse(arguments)
    keras.utils.set_random_seed(options.seed)
    x, y, _, _ = image_data.load("cifar10", options.data, options.train, 1)
    model = networks.build(options.network, x.shape[1:], int(y.max()) + 1, options.width)
    counted = [
        (i, variable)
        for i, variable in enumerate(model.trainable_variables)
        if np.prod(variable.shape) >= options.least
    ]
    measured = measure(model, [i for i, _ in counted], x, y, options)
    print(table([variable for _, variable in counted], measured))
    return 0


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="resnet8", help="resnet8, ..., vgg8, ... (default: resnet8)")
    parser.add_argument("--width", type=exchange_options.positive, default=16, help="of the first layer (default: 16)")
    parser.add_argument("--steps", type=exchange_options.positive, default=200, help="(default: 200)")
    parser.add_argument("--batch", type=exchange_options.positive, default=64, help="of both replicas (default: 64)")
    parser.add_argument("--train", type=exchange_options.positive, default=4000, help="images (default: 4000)")
    parser.add_argument("--least", type=exchange_options.positive, default=1024, help="values of a tensor that counts")
    parser.add_argument("--rounding", choices=formats.ROUNDINGS, default="nearest")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", metavar="FILE.npz", help="images (default: CIFAR-10 through keras.datasets)")
    options = parser.parse_args(arguments)
    if options.batch % REPLICAS:
        parser.error(f"--batch is {options.batch}; it must be even")
    return options


def measure(model, counted, x, y, options):
    """Trains, and measures the gradients of some variables at every tenth step.

    Returns:
        An array of shape (formats, 3, variables): share below the range, share lost with block scaling, and
        signal-to-noise ratio in dB; means over the measured steps.
    """
    gradients_of = gradient_function(model)
    optimizer = training.momentum(0.1, options.steps)
    optimizer.build(model.trainable_variables)
    sums, steps = 0, 0
    batches = image_data.batches(x, y, options.batch, options.seed, augment=True).repeat()
    for step, (images, labels) in enumerate(batches.take(options.steps)):
        parts = zip(tf.split(images, REPLICAS), tf.split(labels, REPLICAS), strict=True)
        by_replica = [gradients_of(*part) for part in parts]
        if step % EVERY == EVERY - 1:
            chosen = [[gradients[i] for i in counted] for gradients in by_replica]
            sums = sums + np.array([statistics(chosen, bits, options.rounding) for bits in BITS])
            steps += 1
        optimizer.apply([tf.add_n(gradients) for gradients in zip(*by_replica, strict=True)])
    if not steps:
        raise ValueError(f"--steps is {options.steps}; it must be {EVERY} or more, since every tenth is measured")
    return sums / steps


def gradient_function(model):
    """A function from a replica's images and labels to its part of the gradients of the batch's mean loss."""
    criterion = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def gradients_of(images, labels):
        with tf.GradientTape() as tape:
            loss = criterion(labels, model(images, training=True)) / REPLICAS
        return tape.gradient(loss, [variable.value for variable in model.trainable_variables])

    return gradients_of


def statistics(by_replica, bits, rounding):
    """The three statistics of each variable, of shape (3, variables)."""
    exact = [tf.add_n(values) for values in zip(*by_replica, strict=True)]
    scaling = "none" if bits == 9 else "block"
    exchanged = tf_epgc.simulate_all_reduce(by_replica, bits, rounding, scaling, min_elements=0)
    first = by_replica[0]
    coded = [tf_epgc.quantize(values, bits, rounding, scaling) for values in first]
    return np.array(
        [
            [share(values, np.abs(values) < formats.FORMATS[bits].smallest) for values in first],
            [share(values, after == 0) for values, after in zip(first, coded, strict=True)],
            [decibel(before, after) for before, after in zip(exact, exchanged, strict=True)],
        ]
    )


def share(values, lost):
    """Which share of the values that are not 0 is lost."""
    present = np.asarray(values) != 0
    return np.sum(present & np.asarray(lost)) / max(np.sum(present), 1)


def decibel(exact, rounded):
    """Signal-to-noise ratio in dB, at most 200."""
    exact, rounded = np.asarray(exact, np.float64), np.asarray(rounded, np.float64)
    noise = max(np.sum((exact - rounded) ** 2), 1e-20 * np.sum(exact**2), 1e-300)
    return 10 * np.log10(max(np.sum(exact**2), 1e-300) / noise)


def table(variables, measured):
    """The measurements as Markdown."""
    names = [exchange_options.NAMES[bits] for bits in BITS]
    heads = [f"{what} {name}" for what in ("below range", "lost, block", "dB") for name in names]
    lines = ["| Tensor | Values | " + " | ".join(heads) + " |", "|---" * (2 + len(heads)) + "|"]
    for i, variable in enumerate(variables):
        shares = [f"{100 * measured[row, kind, i]:.2f} %" for kind in (0, 1) for row in range(len(BITS))]
        ratios = [f"{measured[row, 2, i]:.1f}" for row in range(len(BITS))]
        shape = " x ".join(map(str, variable.shape))
        lines.append(f"| {variable.path} ({shape}) | {np.prod(variable.shape)} | {' | '.join(shares + ratios)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
