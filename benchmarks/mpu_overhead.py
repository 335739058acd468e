"""Measures what MPUOptimizer adds to a training step: step time wrapped and bare, in one process.

Both steps take turns, so that a busy machine disturbs them alike. Printed are the medians, the quartiles and the ratio
of the medians, for float32 weights, mixed_float16 (bare there is Keras's LossScaleOptimizer) and float16 weights (where
the float32 masters come on top).

    python benchmarks/mpu_overhead.py --steps 200
"""

import argparse
import os
import statistics
import time

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
import tensorflow as tf

import tf_epgc.keras_integration

OPTIMIZERS = {
    "SGD": lambda: keras.optimizers.SGD(0.01, momentum=0.9),
    "Adam": lambda: keras.optimizers.Adam(0.001, epsilon=1e-3),
}


def main():
    options = parse_arguments()
    print(f"{'policy':14} {'optimizer':9} {'parameters':>10} {'bare ms':>22} {'MPU ms':>22} {'ratio':>6}")
    for policy in options.policies:
        for name in options.optimizers:
            bare, wrapped = (make_step(policy, name, wrap, options) for wrap in (False, True))
            times = measure([bare, wrapped], options.steps)
            count = sum(layer * (previous + 1) for previous, layer in pairs(options))
            print(row(policy, name, count, times), flush=True)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", nargs="+", default=["float32", "mixed_float16", "float16"])
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=list(OPTIMIZERS))
    parser.add_argument(
        "--widths", type=int, nargs="+", default=[784, 1024, 1024, 10], help="of the layers, input first"
    )
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100, help="measured steps of each (default: 100)")
    return parser.parse_args()


def pairs(options):
    return zip(options.widths, options.widths[1:], strict=False)


def make_step(policy, optimizer, wrap, options):
    """Returns a function that trains one step on the same batch."""
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(policy)
    hidden = [keras.layers.Dense(width, activation="relu") for width in options.widths[1:-1]]
    model = keras.Sequential(
        [keras.layers.Input((options.widths[0],)), *hidden, keras.layers.Dense(options.widths[-1])]
    )
    inner = OPTIMIZERS[optimizer]()
    if wrap:
        inner = tf_epgc.keras_integration.MPUOptimizer(inner)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(inner, loss, jit_compile=False)
    generator = np.random.default_rng(0)
    x = tf.constant(generator.standard_normal((options.batch, options.widths[0])), tf.float32)
    y = tf.constant(generator.integers(0, options.widths[-1], options.batch))
    model.optimizer.build(model.trainable_variables)
    step = tf.function(lambda: model.train_step((x, y)))
    step()  # traces it
    return step


def measure(steps, repeats):
    """Returns the seconds of each repeat of each step."""
    times = [[] for _ in steps]
    for repeat in range(repeats + 5):
        for step, seconds in zip(steps, times, strict=True):
            start = time.perf_counter()
            step()["loss"].numpy()
            if repeat >= 5:
                seconds.append(time.perf_counter() - start)
    return times


def row(policy, optimizer, parameters, times):
    texts = []
    for seconds in times:
        low, median, high = (1000 * q for q in statistics.quantiles(seconds, n=4))
        texts.append(f"{median:7.2f} ({low:5.2f}-{high:5.2f})")
    ratio = statistics.median(times[1]) / statistics.median(times[0])
    return f"{policy:14} {optimizer:9} {parameters:10,} {texts[0]:>22} {texts[1]:>22} {ratio:6.3f}"


if __name__ == "__main__":
    main()
