"""The legacy Keras, tf_keras: the same strategy and `fit`, on scanned digits.

    python examples/tf_keras_fit.py --bits 8

starts two workers on this machine; where TF_CONFIG is set, it trains as one worker of that cluster. Needs tf_keras
(`pip install tf_keras`); the digits come with scikit-learn.
"""

import argparse
import sys

import digits
import exchange_options
import local_workers


def parse(arguments=None):
    """Reads the command line; ends the program with a message when it is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    exchange_options.add_arguments(parser, epochs=10, batch=64)
    options = parser.parse_args(arguments)
    exchange_options.check_batch(parser, options)
    return options


def train(options):
    """Trains as one worker and returns the result."""
    import tf_keras

    strategy = exchange_options.strategy(options)
    tf_keras.utils.set_random_seed(options.seed)
    with exchange_options.scope(strategy):
        model = digits.build_model(tf_keras)
        model.compile(
            exchange_options.optimizer(tf_keras.optimizers.SGD(0.05, momentum=0.9), options),
            tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    (x_train, y_train), (x_test, y_test) = digits.load(options.seed)
    progress = tf_keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: local_workers.say(
            f"epoch {epoch + 1}/{options.epochs}: loss {logs['loss']:.4f}, accuracy {logs['accuracy']:.4f}"
        )
    )
    model.fit(
        digits.batches(x_train, y_train, options.batch, options.seed),
        epochs=options.epochs,
        verbose=0,
        callbacks=[progress],
    )
    _, accuracy = model.evaluate(digits.batches(x_test, y_test, 40, options.seed), verbose=0)
    return {
        **exchange_options.settings(options),
        "accuracy": round(accuracy, 4),
        "weights": local_workers.fingerprint(model),
    }


def main(arguments=None):
    """Runs the example; also the entry point of the workers it starts. Returns the exit code."""
    options = parse(arguments)
    return local_workers.main(__file__, train, options, arguments)


if __name__ == "__main__":
    sys.exit(main())
