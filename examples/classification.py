"""Trains a ResNet or a VGG on CIFAR-10 with gradients exchanged in few bits.

    python examples/classification.py --bits 8 --network resnet8 --train 4000 --test 2000 --epochs 3

starts two workers on this machine. On a cluster, where TF_CONFIG is set on every machine, the same line trains as one
of its workers. The images come through keras.datasets; `--data FILE.npz` reads them from a file with x_train, y_train,
x_test and y_test. The last line of the output is the result as JSON.
"""

import argparse
import os
import sys

import exchange_options
import image_data
import local_workers
import networks
import training


def parse(arguments=None):
    """Reads the command line; ends the program with a message when it is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="resnet20", help="resnet8, resnet14, resnet20, ..., vgg8, vgg11, ...")
    parser.add_argument("--width", type=exchange_options.positive, default=16, help="of the first layer (default: 16)")
    exchange_options.add_arguments(parser, epochs=10, batch=64)
    parser.add_argument("--rate", type=float, default=0.1, help="highest learning rate (default: 0.1)")
    parser.add_argument("--data", metavar="FILE.npz", help="images (default: CIFAR-10 through keras.datasets)")
    parser.add_argument("--train", type=exchange_options.positive, help="images to train on (default: all)")
    parser.add_argument("--test", type=exchange_options.positive, help="images to test on (default: all)")
    options = parser.parse_args(arguments)
    try:
        networks.parse(options.network)
    except ValueError as error:
        parser.error(str(error))
    exchange_options.check_batch(parser, options)
    return options


def train(options):
    """Trains as one worker, or with `--workers 0` alone, and returns the result."""
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import keras

    strategy = exchange_options.strategy(options)
    keras.utils.set_random_seed(options.seed)
    x_train, y_train, x_test, y_test = image_data.load("cifar10", options.data, options.train, options.test)
    classes = int(y_train.max()) + 1
    steps = max(1, len(x_train) // options.batch) * options.epochs
    with exchange_options.scope(strategy):
        model = networks.build(options.network, x_train.shape[1:], classes, options.width)
        model.compile(
            exchange_options.optimizer(training.momentum(options.rate, steps), options),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    progress = training.progress(options, "test accuracy", lambda logs: logs["val_accuracy"])
    history = model.fit(
        image_data.batches(x_train, y_train, options.batch, options.seed, augment=True),
        validation_data=image_data.batches(x_test, y_test, min(2 * options.batch, len(x_test))),
        epochs=options.epochs,
        verbose=0,
        callbacks=[progress],
    ).history
    return result(options, model, history, progress)


def result(options, model, history, progress):
    """What the training came to, as a dict for JSON."""
    return {
        "task": "classification",
        "network": options.network,
        "width": options.width,
        "parameters": model.count_params(),
        **exchange_options.settings(options),
        "train": options.train,
        "test": options.test,
        "accuracy": progress.curve[-1],
        "curve": progress.curve,
        "loss": [round(value, 4) for value in history["loss"]],
        "epoch_seconds": progress.seconds,
        **training.loss_scale(model),
        "weights": local_workers.fingerprint(model),
    }


def main(arguments=None):
    """Runs the example; also the entry point of the workers it starts. Returns the exit code."""
    options = parse(arguments)
    return local_workers.main(__file__, train, options, arguments)


if __name__ == "__main__":
    sys.exit(main())
