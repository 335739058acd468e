"""Counts, layer by layer, what the formats do to the gradients of a real training.

    python examples/study/gradients.py --network resnet8 --steps 60

A network learns CIFAR-10 in float32 in this process, each batch split between two replicas. At every tenth step their
gradients also go through the exchange that two workers would do (tf_epgc.simulate_all_reduce). Printed as Markdown, for
each large tensor: the share of its values, zeros left out, below the format's smallest one, and the share that becomes
0 with the format's usual scaling (block; none for 9 bits); then the signal-to-noise ratio of the exchanged sum in dB,
packed (rounded before and after the sum) and simulated (only before).
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

BITS = (16, 11, 9, 8)
REPLICAS = 2
EVERY = 10


def main(arguments=None):
    """Trains and prints the table; returns the exit code."""
    options = parse(arguments)
    keras.utils.set_random_seed(options.seed)
    x, y, _, _ = image_data.load("cifar10", options.data, options.train, 1)
    model = networks.build(options.network, x.shape[1:], int(y.max()) + 1, options.width)
    sizes = [np.prod(variable.shape) for variable in model.trainable_variables]
    counted = [i for i, size in enumerate(sizes) if size >= options.least]
    measured = measure(model, counted, x, y, options)
    variables = [model.trainable_variables[i] for i in counted]
    print(table(variables, measured[:, :2], ("below range", "becomes 0"), lambda share: f"{100 * share:.2f} %"))
    print("\n" + table(variables, measured[:, 2:], ("packed", "simulated"), lambda ratio: f"{ratio:.1f} dB"))
    return 0


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="resnet8", help="resnet8, ..., vgg8, ... (default: resnet8)")
    parser.add_argument("--width", type=exchange_options.positive, default=16, help="of the first layer (default: 16)")
    parser.add_argument("--steps", type=exchange_options.positive, default=200, help="(default: 200)")
    parser.add_argument("--batch", type=exchange_options.positive, default=64, help="of both replicas (default: 64)")
    parser.add_argument("--train", type=exchange_options.positive, default=4000, help="images (default: 4000)")
    parser.add_argument("--least", type=exchange_options.positive, default=1024, help="values of a tensor that counts")
    parser.add_argument("--rounding", choices=("nearest", "truncate", "stochastic"), default="nearest")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", metavar="FILE.npz", help="images (default: CIFAR-10 through keras.datasets)")
    options = parser.parse_args(arguments)
    if options.batch % REPLICAS:
        parser.error(f"--batch is {options.batch}; it must be even")
    return options


def measure(model, counted, x, y, options):
    """Trains, and measures the gradients of some variables at every tenth step.

    Returns:
        An array of shape (formats, 4, variables): what `statistics` returns, as means over the measured steps.
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
    """What a format does to each variable's gradient.

    Returns:
        An array of shape (4, variables): the share of a replica's values below the format's range, the share that
        becomes 0, and the signal-to-noise ratios of the packed and of the simulated exchange in dB.
    """
    scaling = tf_epgc.FORMATS[bits].default_scaling
    exact = [tf.add_n(values) for values in zip(*by_replica, strict=True)]
    packed = tf_epgc.simulate_all_reduce(by_replica, bits, rounding, scaling, min_elements=0)
    coded = [[tf_epgc.quantize(values, bits, rounding, scaling) for values in gradients] for gradients in by_replica]
    simulated = [tf.add_n(values) for values in zip(*coded, strict=True)]
    first, smallest = by_replica[0], tf_epgc.FORMATS[bits].smallest
    return np.array(
        [
            [share(values, np.abs(values) < smallest) for values in first],
            [share(values, after == 0) for values, after in zip(first, coded[0], strict=True)],
            [decibel(before, after) for before, after in zip(exact, packed, strict=True)],
            [decibel(before, after) for before, after in zip(exact, simulated, strict=True)],
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


def table(variables, measured, heads, text):
    """Two of the statistics as Markdown.

    Args:
        variables: That were measured.
        measured: Of shape (formats, 2, variables).
        heads: What the two are called.
        text: Turns a number into text.
    """
    names = [f"{head} {exchange_options.NAMES[bits]}" for head in heads for bits in BITS]
    lines = ["| Tensor | Shape | " + " | ".join(names) + " |", "|---" * (2 + len(names)) + "|"]
    for i, variable in enumerate(variables):
        shape = " x ".join(map(str, variable.shape))
        values = " | ".join(text(measured[row, kind, i]) for kind in (0, 1) for row in range(len(BITS)))
        lines.append(f"| {variable.path} | {shape} | {values} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
