"""Trains a small convolutional network with float32 and with float16 weights, and compares the curves.

Three runs for each seed, from the same initial weights, on the same batches: float32; float16 weights under
MPUOptimizer; float16 weights under Keras's LossScaleOptimizer, which scales the loss too but keeps no float32 masters.
Printed are the training loss of every epoch and the test accuracy, as mean +- standard deviation over the seeds.

    python benchmarks/float16_curves.py --data mnist.npz
"""

import argparse
import os
import time

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import image_data
import keras
import numpy as np

import tf_epgc.keras_integration

RUNS = {
    "float32": ("float32", lambda inner: inner),
    "float16, MPU": ("float16", tf_epgc.keras_integration.MPUOptimizer),
    "float16, no masters": ("float16", keras.optimizers.LossScaleOptimizer),
}


def main():
    options = parse_arguments()
    name, data = image_data.load_images(options.data, options.train, options.test)
    print(
        f"{len(data[0])} training and {len(data[2])} test images of {name}, {options.epochs} epochs, "
        f"rate {options.rate}, seeds {options.seeds}"
    )
    for run in RUNS:
        start = time.perf_counter()
        results = [train(run, seed, data, options) for seed in options.seeds]
        print(row(run, results, time.perf_counter() - start), flush=True)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    image_data.add_data_argument(parser)
    parser.add_argument("--train", type=int, default=20_000, help="training images (default: 20000)")
    parser.add_argument("--test", type=int, default=None, help="test images (default: all)")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--rate", type=float, default=0.05, help="learning rate of SGD (default: 0.05)")
    parser.add_argument("--batch", type=int, default=64)
    return parser.parse_args()


def train(run, seed, data, options):
    """Trains once; returns the losses of the epochs and the test accuracy."""
    policy, wrap = RUNS[run]
    x_train, y_train, x_test, y_test = data
    keras.utils.set_random_seed(seed)
    keras.config.set_dtype_policy(policy)
    model = image_data.build_model(x_train.shape[1:])
    inner = keras.optimizers.SGD(options.rate)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(wrap(inner), loss, metrics=["accuracy"], jit_compile=False)
    history = model.fit(x_train, y_train, batch_size=options.batch, epochs=options.epochs, verbose=0).history
    accuracy = model.evaluate(x_test, y_test, batch_size=500, verbose=0, return_dict=True)["accuracy"]
    return history["loss"], accuracy


def row(run, results, seconds):
    losses = np.array([losses for losses, _ in results])
    accuracies = np.array([accuracy for _, accuracy in results])
    curve = "  ".join(f"{mean:.4f}+-{std:.4f}" for mean, std in zip(losses.mean(0), losses.std(0), strict=True))
    return f"{run:20} accuracy {accuracies.mean():.4f}+-{accuracies.std():.4f}  loss {curve}  ({seconds:.0f} s)"


if __name__ == "__main__":
    main()
