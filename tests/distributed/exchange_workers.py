"""What the worker processes of exchange_test.py do."""

import time

import numpy as np
import tensorflow as tf

import tf_epgc
from tf_epgc.wire_counter import WireCounter

#: Shapes and dtypes of one replica's dense gradients: large and small, odd sizes, empty, a scalar, each dtype.
DENSE = [
    ((37, 61), "float32"),
    ((3,), "float32"),
    ((0, 5), "float32"),
    ((), "float32"),
    ((50, 41), "float16"),
    ((7, 3), "float16"),
    ((1100,), "bfloat16"),
    ((33, 40), "float64"),
    ((9,), "float64"),
    ((2, 3000), "float32"),
]
#: A worker is done with a step when it has received all; what it sends may still be on its way.
_SETTLE_SECONDS = 0.5

#: (rows, columns) of the variables whose gradients are sparse.
SPARSE = [(50, 64), (20, 8)]


def gradients(replica, special=None, rows=None):
    """One replica's gradients, the same wherever they are made: the dense ones, then two sparse ones.

    Args:
      replica: Its number.
      special: A value to put into some places of replica 1's gradients.
      rows: Rows of the sparse gradients by replica; replica + 2 by default.
    """
    generator = np.random.default_rng(100 + replica)
    values = []
    for shape, dtype in DENSE:
        scale = 10.0 ** generator.integers(-7, 1)
        values.append(tf.cast(tf.constant(generator.normal(size=shape) * scale, tf.float64), dtype))
    if special is not None and replica == 1:
        values[0] = tf.tensor_scatter_nd_update(values[0], [[0, 0], [36, 60]], [special, special])
        values[1] = tf.tensor_scatter_nd_update(values[1], [[2]], [special])
    count = (replica + 2) if rows is None else rows[replica]
    for vocabulary, width in SPARSE:
        indices = generator.integers(0, vocabulary, size=count)
        values.append(
            tf.IndexedSlices(
                tf.constant(generator.normal(size=(count, width)) * 1e-4, tf.float32),
                tf.constant(indices, tf.int64),
                tf.constant([vocabulary, width], tf.int64),
            )
        )
    return values


def to_numpy(values):
    """Bytes that can be compared: the dense form of sparse values, in the order of their rows."""
    return [(v.values.numpy(), v.indices.numpy()) if isinstance(v, tf.IndexedSlices) else v.numpy() for v in values]


def exchange(cases, graph=True):
    """All-reduces `gradients` for each case with one strategy; the results of this worker's replicas.

    Args:
      cases: Dicts: `options` for GradientOptions, `op`, `special`, `rows`, `steps`.
      graph: Inside a tf.function, or eagerly.
    """
    strategy = tf_epgc.EPGCMirroredStrategy(bits=11, seed=7)
    return [_exchange(strategy, graph, **case) for case in cases]


def _exchange(strategy, graph, options, op="SUM", special=None, rows=None, steps=1):
    def replica_fn(values):
        context = tf.distribute.get_replica_context()
        values = [_as_made_by_a_tape(v) for v in values]
        return context.all_reduce(op, values, options=tf_epgc.GradientOptions(**options))

    def step(values):
        return strategy.run(replica_fn, args=(values,))

    step = tf.function(step) if graph else step
    for _ in range(steps):
        values = strategy.experimental_distribute_values_from_function(
            lambda context: gradients(context.replica_id_in_sync_group, special, rows)
        )
        results = step(values)
    per_value = [strategy.experimental_local_results(v) for v in results]
    return [to_numpy(values) for values in zip(*per_value)]


def _as_made_by_a_tape(value):
    """On the replica's device, and a sparse gradient with its variable's shape known."""
    if not isinstance(value, tf.IndexedSlices):
        return tf.identity(value)
    shape = next(shape for shape in SPARSE if shape[1] == value.values.shape[1])
    return tf.IndexedSlices(tf.identity(value.values), tf.identity(value.indices), tf.constant(shape, tf.int64))


def simulate(cases, replicas):
    """The same from `simulate_all_reduce`, in one process."""
    return [_simulate(replicas, **case) for case in cases]


def _simulate(replicas, options, op="SUM", special=None, rows=None, steps=1):
    by_replica = [gradients(r, special, rows) for r in range(replicas)]
    # Every exchange of the worker's strategy that rounds stochastically takes a step of its own.
    return to_numpy(tf_epgc.simulate_all_reduce(by_replica, reduce_op=op, seed=7, step=steps - 1, **options))


def empty():
    """Shapes of what has no elements when it has been reduced, as gradients and exactly, and gathered."""
    strategy = tf_epgc.EPGCMirroredStrategy(bits=8)

    def replica_fn(options=None):
        values = [
            tf.ones([0, 5]),
            tf.ones([0, 3], tf.float64),
            tf.IndexedSlices(tf.ones([3, 0]), tf.constant([1, 1, 2])),
        ]
        return tf.distribute.get_replica_context().all_reduce("SUM", values, options=options)

    reduced = strategy.run(tf.function(lambda: replica_fn(tf_epgc.GradientOptions())))
    exact = strategy.run(tf.function(replica_fn))[:2]
    gathered = [
        strategy.gather(tf.zeros([0, 3]), axis=0),
        strategy.reduce("SUM", tf.zeros([0]), axis=None),
        strategy.run(lambda: tf.distribute.get_replica_context().all_gather(tf.zeros([0, 2]), axis=0)),
    ]
    values = [v.values if isinstance(v, tf.IndexedSlices) else v for v in (*reduced, *exact, *gathered)]
    return [tuple(v.shape) for v in values]


def bytes_of_a_step(formats, shapes):
    """Bytes that this worker's sockets sent in one training step of a model with `shapes`, by format."""
    strategy = tf_epgc.EPGCMirroredStrategy(bits=32)
    with strategy.scope():
        variables = [tf.Variable(tf.ones(shape)) for shape in shapes]
    counter = WireCounter()
    sent = {}
    for bits in formats:

        def replica_fn(bits=bits):
            context = tf.distribute.get_replica_context()
            values = [v * 1e-3 for v in variables]
            reduced = context.all_reduce("SUM", values, options=tf_epgc.GradientOptions(bits=bits))
            for variable, gradient in zip(variables, reduced, strict=True):
                variable.assign_sub(gradient)

        step = tf.function(lambda fn=replica_fn: strategy.run(fn))
        step()
        time.sleep(_SETTLE_SECONDS)
        before = counter.bytes_sent()
        step()
        time.sleep(_SETTLE_SECONDS)
        sent[bits] = counter.bytes_sent() - before
    return sent
