"""An embedding, whose gradients are sparse (tf.IndexedSlices): predicts the next character of Python source code.

    python examples/embedding.py --bits 8

starts two workers on this machine; where TF_CONFIG is set, it trains as one worker of that cluster. Only the rows that
a step has used travel, in the strategy's format; the result says how many bytes a worker sent in a step, counted on its
sockets, and how many the whole table has. The text is that of modules of Python's standard library.
"""

import argparse
import os
import sys

import exchange_options
import local_workers
import numpy as np

TRAIN_MODULES = ("argparse", "json.decoder", "logging", "pathlib", "subprocess", "tarfile")
TEST_MODULES = ("configparser",)
CHARACTERS = 128
LONGEST_GRAM = 5
WIDTH = 32


def parse(arguments=None):
    """Reads the command line; ends the program with a message when it is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    exchange_options.add_arguments(parser, epochs=3, batch=256)
    parser.add_argument("--rows", type=exchange_options.positive, default=20000, help="of the table (default: 20000)")
    parser.add_argument("--train", type=exchange_options.positive, default=100000, help="characters (default: 100000)")
    options = parser.parse_args(arguments)
    exchange_options.check_batch(parser, options)
    return options


def train(options):
    """Trains as one worker and returns the result."""
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import keras

    strategy = exchange_options.strategy(options)
    keras.utils.set_random_seed(options.seed)
    with exchange_options.scope(strategy):
        model = build_model(options.rows)
        model.compile(
            exchange_options.optimizer(keras.optimizers.SGD(2.0), options),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    traffic = traffic_callback(options)
    train_text, test_text = source_of(TRAIN_MODULES)[: options.train], source_of(TEST_MODULES)
    model.fit(batches(train_text, options), epochs=options.epochs, verbose=0, callbacks=[traffic])
    _, accuracy = model.evaluate(batches(test_text, options), verbose=0)
    return {
        **exchange_options.settings(options),
        "accuracy": round(accuracy, 4),
        "bytes_a_step": round(traffic.sent / max(traffic.steps, 1)),
        "bytes_of_table": 4 * options.rows * WIDTH,
        "weights": local_workers.fingerprint(model),
    }


def build_model(rows):
    """Adds up what the table holds for the last characters, and predicts the next one from that."""
    from keras import Sequential, layers, ops

    return Sequential(
        [
            layers.Input((LONGEST_GRAM,), dtype="int32"),
            layers.Embedding(rows, WIDTH),
            layers.Lambda(lambda x: ops.sum(x, axis=1), output_shape=(WIDTH,)),
            layers.Dense(CHARACTERS),
        ]
    )


def source_of(modules):
    """The source code of modules, as ASCII codes in an array of shape (n,)."""
    import importlib
    import inspect

    text = "".join(inspect.getsource(importlib.import_module(module)) for module in modules)
    return np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int64)


def grams(text, rows):
    """The rows that stand for the 1, 2, ... last characters before each one.

    Args:
        text: ASCII codes, of shape (n,).
        rows: Of the table.

    Returns:
        int32 of shape (n - LONGEST_GRAM, LONGEST_GRAM), and the characters that follow, of shape (n - LONGEST_GRAM,).
    """
    count = len(text) - LONGEST_GRAM
    columns, code = [], np.zeros(count, np.int64)
    for length in range(1, LONGEST_GRAM + 1):
        code = (code * 1009 + text[LONGEST_GRAM - length :][:count] + length) % 2147483647
        columns.append(code * 40503 % 2147483647 % rows)
    return np.stack(columns, 1).astype(np.int32), text[LONGEST_GRAM:]


def batches(text, options):
    """Whole batches of `grams` in random order, of which every worker takes its part."""
    import tensorflow as tf

    inputs, following = grams(text, options.rows)
    dataset = tf.data.Dataset.from_tensor_slices((inputs, following)).shuffle(len(following), seed=options.seed)
    policy = tf.data.Options()
    policy.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return dataset.batch(options.batch, drop_remainder=True).with_options(policy)


def traffic_callback(options):
    """A callback that counts the bytes this worker sends in all steps but each epoch's first."""
    import keras

    from tf_epgc import wire_counter

    class Traffic(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.counter = wire_counter.WireCounter()
            self.sent = self.steps = 0

        def on_train_batch_end(self, batch, logs=None):
            now = self.counter.bytes_sent()
            if batch:
                self.sent += now - self.before
                self.steps += 1
            self.before = now

        def on_epoch_end(self, epoch, logs=None):
            local_workers.say(
                f"epoch {epoch + 1}/{options.epochs}: loss {logs['loss']:.4f}, accuracy {logs['accuracy']:.4f}"
            )

    return Traffic()


def main(arguments=None):
    """Runs the example; also the entry point of the workers it starts. Returns the exit code."""
    options = parse(arguments)
    return local_workers.main(__file__, train, options, arguments)


if __name__ == "__main__":
    sys.exit(main())
