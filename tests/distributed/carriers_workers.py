"""Values of every dtype, between workers; what carriers_test.py runs."""

import numpy as np
import tensorflow as tf

import tf_epgc
from tests.distributed.harness import worker_index

#: One array a dtype with what a wrong carrier would lose.
VALUES = {
    "uint64": np.array([0, 1, 2**63, 2**64 - 1], np.uint64),
    "uint32": np.array([0, 2**32 - 1], np.uint32),
    "int64": np.array([-(2**63), 2**63 - 1], np.int64),
    "complex64": np.array([1 + 2j, -0.5 - 1j], np.complex64),
    "complex128": np.array([1 / 3 + 2j, 0], np.complex128),
    "bool": np.array([True, False]),
    "float16": np.array([1.5, 65504.0], np.float16),
    "string": np.array([b"", b"abc", b"a\\0b", "\u00e9".encode()], object),
}


def rows(name, worker):
    """What a worker gathers: 2 rows of the first, 5 of the second."""
    values = VALUES[name]
    return np.stack([np.roll(values, i + worker) for i in range(2 + 3 * worker)])


def gathered_and_made():
    """Gathered rows, in graph and eagerly, and what a variable holds that worker 0 was given first."""
    strategy = tf_epgc.EPGCMirroredStrategy(bits=8)
    gathered, made = {}, {}
    for name, values in VALUES.items():
        mine = tf.constant(rows(name, worker_index()))
        gathered[name] = strategy.gather(mine, axis=0).numpy()
        along_columns = tf.function(lambda v: strategy.gather(v, axis=1))
        gathered[name + "_columns"] = along_columns(tf.constant(rows(name, 0))).numpy()
        if name != "string":
            with strategy.scope():
                made[name] = tf.Variable(values if worker_index() == 0 else np.zeros_like(values)).numpy()
    gathered["empty"] = strategy.gather(tf.constant([], tf.string), axis=0).numpy()
    return gathered, made


def string_variable():
    with tf_epgc.EPGCMirroredStrategy(bits=8).scope():
        tf.Variable("a")
