"""Trains a small network on real data with every gradient format, and counts what crossed the wire.

The network classifies scikit-learn's 1797 scanned digits. Each format gets a run of its own on several local worker
processes, from the same initial weights and with the same batches; then a table compares accuracy, bytes sent by a
worker in a step (counted by the kernel on the workers' sockets, not computed), and whether all workers hold
bit-identical weights at the end.

    python examples/digits_demo.py
    python examples/digits_demo.py --formats 32 8 --epochs 10 --workers 3
"""

import argparse
import dataclasses
import json
import os
import sys
import time

from tf_epgc import launcher, wire_counter

FORMATS = (32, 16, 11, 9, 8)
NAMES = {32: "float32", 16: "LPDU", 11: "EPGC-11", 9: "EPGC-9", 8: "EPGC-8"}

GLOBAL_BATCH = 64
TEST_BATCH = 40
SEED = 7
SECONDS_A_RUN = 300
RESULT_MARK = "RESULT "
PROGRESS_MARK = "PROGRESS "


@dataclasses.dataclass(frozen=True)
class Run:
    """What came of training with one format.

    Attributes:
        bits: The format.
        accuracy: Share of the test images classified rightly in the end.
        bytes_a_step: What a worker sent in a step, on average over workers and counted steps.
        identical: Whether all workers end with the same weights, bit for bit.
        seconds: Time of the run, start of the processes included.
    """

    bits: int
    accuracy: float
    bytes_a_step: float
    identical: bool
    seconds: float


def main(arguments=None):
    """Runs the demo; also the entry point of the workers it starts.

    Args:
        arguments: Command-line arguments; None takes those of the process.

    Returns:
        The exit code: 0 when every run ended with identical replicas, else 1.
    """
    options = parse(arguments)
    if options.worker:
        work(options.formats[0], options.epochs)
        return 0
    try:
        runs = [train_on_workers(bits, options) for bits in options.formats]
    except (RuntimeError, KeyboardInterrupt) as error:
        print(f"digits_demo: {error or 'interrupted'}", file=sys.stderr)
        return 1
    print("\n" + table(runs))
    return 0 if all(run.identical for run in runs) else 1


def parse(arguments):
    """Reads the command line; ends the program with a message when it is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--formats",
        type=int,
        nargs="+",
        choices=FORMATS,
        default=list(FORMATS),
        metavar="BITS",
        help="bits of the formats to train with, of 32 16 11 9 8 (default: all)",
    )
    parser.add_argument("--epochs", type=positive, default=10, help="epochs of each run (default: 10)")
    parser.add_argument("--workers", type=positive, default=2, help="local worker processes (default: 2)")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if GLOBAL_BATCH % options.workers or TEST_BATCH % options.workers:
        parser.error(
            f"--workers is {options.workers}; it must divide the batches of {GLOBAL_BATCH} and {TEST_BATCH}: "
            "use 1, 2, 4 or 8"
        )
    return options


def positive(text):
    """A whole number of at least 1, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is too small; it must be 1 or more")
    return number


# The launching process.


def train_on_workers(bits, options):
    """Starts the workers for one format and gathers their results into a `Run`."""
    command = [
        sys.executable,
        os.path.abspath(__file__),
        "--worker",
        "--formats",
        str(bits),
        "--epochs",
        str(options.epochs),
    ]

    def show(index, line):
        if index == 0 and line.startswith(PROGRESS_MARK):
            print(f"{NAMES[bits]:8} {line[len(PROGRESS_MARK) :]}", flush=True)

    print(f"{NAMES[bits]:8} starting {options.workers} workers", flush=True)
    start = time.monotonic()
    ended = launcher.launch(command, options.workers, timeout=SECONDS_A_RUN, on_line=show)
    return summarize(bits, ended, time.monotonic() - start)


def summarize(bits, ended, seconds):
    """Turns the workers' output into a `Run`; RuntimeError when one failed."""
    for worker in ended:
        if worker.returncode and not worker.stopped:
            raise RuntimeError(
                f"worker {worker.index} failed with {NAMES[bits]} (exit code {worker.returncode}):\n{worker.output}"
            )
    reports = [report(worker.output) for worker in ended]
    return Run(
        bits,
        reports[0]["accuracy"],
        sum(each["bytes_a_step"] for each in reports) / len(reports),
        len({each["weights"] for each in reports}) == 1,
        seconds,
    )


def report(output):
    """Finds the line in which a worker says what it got."""
    for line in output.splitlines():
        if line.startswith(RESULT_MARK):
            return json.loads(line[len(RESULT_MARK) :])
    raise RuntimeError(f"a worker ended without a result; it wrote:\n{output}")


def table(runs):
    """Lays the runs out as text, one line a format."""
    exact = next((run.bytes_a_step for run in runs if run.bits == 32), None)
    lines = [
        f"{'format':8}  {'test accuracy':>13}  {'bytes/step/worker':>17}  {'fewer bytes':>11}  "
        f"{'replicas':>9}  {'seconds':>7}"
    ]
    for run in runs:
        ratio = f"{exact / run.bytes_a_step:.2f}x" if exact and run.bytes_a_step else "-"
        replicas = "identical" if run.identical else "DIFFERENT"
        lines.append(
            f"{NAMES[run.bits]:8}  {run.accuracy:13.4f}  {run.bytes_a_step:17,.0f}  {ratio:>11}  "
            f"{replicas:>9}  {run.seconds:7.1f}"
        )
    return "\n".join(lines)


# The workers.


def work(bits, epochs):
    """Trains as one worker of the cluster in TF_CONFIG and prints the result for the launching process."""
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import keras

    import tf_epgc

    strategy = tf_epgc.EPGCMirroredStrategy(bits=bits)
    keras.utils.set_random_seed(SEED)
    with strategy.scope():
        model = build_model()
        model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    train, test = datasets()
    traffic = traffic_callback(epochs)
    model.fit(train, epochs=epochs, verbose=0, callbacks=[traffic])
    _, accuracy = model.evaluate(test, verbose=0)
    print(
        RESULT_MARK
        + json.dumps({"accuracy": accuracy, "bytes_a_step": traffic.bytes_a_step(), "weights": fingerprint(model)}),
        flush=True,
    )


def build_model():
    """A convolutional network with 151,306 parameters."""
    import keras

    return keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


def datasets():
    """Four fifths of the digits to train on, one fifth to test; the same on every worker."""
    import numpy as np
    import tensorflow as tf
    from sklearn import datasets as sklearn_datasets

    digits = sklearn_datasets.load_digits()
    images = (digits.images[..., np.newaxis] / 16.0).astype(np.float32)
    order = np.random.default_rng(SEED).permutation(len(images))
    images, labels = images[order], digits.target[order]
    cut = len(images) * 4 // 5
    train = tf.data.Dataset.from_tensor_slices((images[:cut], labels[:cut])).shuffle(cut, seed=SEED)
    test = tf.data.Dataset.from_tensor_slices((images[cut:], labels[cut:]))
    # Whole batches only: every worker then always has the same number of images.
    return (
        sharded(train.batch(GLOBAL_BATCH, drop_remainder=True)),
        sharded(test.batch(TEST_BATCH, drop_remainder=True)),
    )


def sharded(dataset):
    """Lets every worker take its part of each batch."""
    import tensorflow as tf

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return dataset.with_options(options)


def traffic_callback(epochs):
    """A callback that counts the bytes this worker sends from the fourth step on, and tells how training goes."""
    import keras

    class Traffic(keras.callbacks.Callback):
        """Counts the steps of each epoch, not what lies between epochs."""

        skipped_steps = 3

        def __init__(self):
            super().__init__()
            self.counter = wire_counter.WireCounter()
            self.sent = 0
            self.steps = 0
            self.before = None
            self.seen = 0

        def on_train_batch_end(self, batch, logs=None):
            self.seen += 1
            if self.before is not None:
                now = self.counter.bytes_sent()
                self.sent += now - self.before
                self.steps += 1
                self.before = now
            elif self.seen >= self.skipped_steps:
                self.before = self.counter.bytes_sent()

        def on_epoch_end(self, epoch, logs=None):
            self.before = None
            print(
                f"{PROGRESS_MARK}epoch {epoch + 1}/{epochs}: loss {logs['loss']:.4f}, accuracy {logs['accuracy']:.4f}",
                flush=True,
            )

        def bytes_a_step(self):
            return self.sent / max(self.steps, 1)

    return Traffic()


def fingerprint(model):
    """A hash of all weights; equal only when they are the same bits."""
    import hashlib

    digest = hashlib.sha256()
    for weight in model.get_weights():
        digest.update(weight.tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
