"""The command-line options that the examples share, and the strategy they ask for."""

import argparse
import contextlib

FORMATS = (32, 16, 11, 9, 8)
NAMES = {32: "float32", 16: "LPDU", 11: "EPGC-11", 9: "EPGC-9", 8: "EPGC-8"}


def add_arguments(parser, epochs, batch):
    """Adds the options of the exchange and of training, with defaults for `--epochs` and `--batch`."""
    parser.add_argument("--bits", type=int, choices=FORMATS, default=11, help="of a gradient's value (default: 11)")
    parser.add_argument("--rounding", choices=("nearest", "truncate", "stochastic"), default="nearest")
    parser.add_argument("--scaling", choices=("block", "none"), help="(default: block, for 9 bits none)")
    parser.add_argument("--simulate", action="store_true", help="round the gradients, but send them as float32")
    parser.add_argument("--mpu", action="store_true", help="wrap the optimizer in tf_epgc.MPUOptimizer")
    parser.add_argument(
        "--workers", type=count, default=2, help="local workers; 0: plain Keras in this process (default: 2)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of weights, order and augmentation (default: 1)")
    parser.add_argument("--epochs", type=positive, default=epochs, help=f"(default: {epochs})")
    parser.add_argument("--batch", type=positive, default=batch, help=f"of all workers together (default: {batch})")


def check_batch(parser, options):
    """Ends the program with a message when the batch does not divide among the workers."""
    if options.workers and options.batch % options.workers:
        parser.error(f"--batch is {options.batch}; it must be a multiple of --workers, which is {options.workers}")


def strategy(options):
    """The strategy that the options ask for, or None for plain Keras."""
    if options.workers == 0:
        return None
    import tf_epgc

    return tf_epgc.EPGCMirroredStrategy(
        options.bits, options.rounding, options.scaling, options.simulate, seed=options.seed
    )


def scope(strategy):
    """The strategy's scope; of None, a context that does nothing."""
    return strategy.scope() if strategy else contextlib.nullcontext()


def optimizer(inner, options):
    """The optimizer, wrapped if `--mpu` asks for it."""
    if not options.mpu:
        return inner
    import tf_epgc

    return tf_epgc.MPUOptimizer(inner)


def settings(options):
    """What a result line says of how it was trained."""
    names = ("bits", "rounding", "scaling", "simulate", "mpu", "seed", "epochs", "batch")
    return {name: getattr(options, name) for name in names}


def positive(text):
    """A whole number of at least 1, for argparse."""
    return _at_least(1, text)


def count(text):
    """A whole number of at least 0, for argparse."""
    return _at_least(0, text)


def _at_least(least, text):
    number = int(text)
    if number < least:
        raise argparse.ArgumentTypeError(f"{text} is too small; it must be {least} or more")
    return number
