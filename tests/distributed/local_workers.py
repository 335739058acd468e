"""One process of two replicas; what strategy_test.py runs."""

import numpy as np
import tensorflow as tf

import tf_epgc


def reduce_and_gather():
    strategy = tf_epgc.EPGCMirroredStrategy(bits=8)

    def replica_fn():
        number = tf.distribute.get_replica_context().replica_id_in_sync_group + 1
        one = tf.cast(number, tf.float32)
        return {"a": one, "b": one * 10.0}, tf.fill([number], one)

    nest, rows = strategy.run(tf.function(replica_fn))
    total = strategy.reduce("SUM", nest)
    return {
        "replicas": strategy.num_replicas_in_sync,
        "sum": {name: float(value) for name, value in total.items()},
        "mean": float(strategy.reduce("MEAN", nest["a"], axis=0)),
        "gathered": strategy.gather(rows, axis=0).numpy(),
    }


def simulated():
    """bits -> (the replicas' values, what each gets from a simulating strategy)."""
    values = [np.random.default_rng(r).normal(size=(40, 50)).astype(np.float32) for r in range(2)]
    results = {}
    for bits in (8, 9, 11, 16):
        strategy = tf_epgc.EPGCMirroredStrategy(bits=bits, simulate=True)

        def replica_fn(value):
            context = tf.distribute.get_replica_context()
            return context.all_reduce("SUM", [value + 0.0], options=tf_epgc.GradientOptions())[0]

        distributed = strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(values[context.replica_id_in_sync_group])
        )
        result = strategy.run(tf.function(replica_fn), args=(distributed,))
        results[bits] = values, [v.numpy() for v in strategy.experimental_local_results(result)]
    return results


def graph_mode():
    """What is said where eager execution is disabled."""
    tf.compat.v1.disable_eager_execution()
    try:
        tf_epgc.EPGCMirroredStrategy()
    except RuntimeError as error:
        return str(error)


def nested():
    """An all-reduce in a `tf.function` inside the replica function, with the whole traced and run eagerly."""
    strategy = tf_epgc.EPGCMirroredStrategy(bits=8)

    def make_replica_fn():
        @tf.function
        def inner(value):
            return tf.distribute.get_replica_context().all_reduce("SUM", tf.cast(value, tf.float32) + 1.0)

        return lambda: inner(tf.distribute.get_replica_context().replica_id_in_sync_group)

    replica_fn = make_replica_fn()
    traced = strategy.experimental_local_results(tf.function(lambda: strategy.run(replica_fn))())
    try:
        strategy.run(make_replica_fn())
        eager = "no error"
    except RuntimeError as error:
        eager = str(error)
    return {"traced": [v.numpy() for v in traced], "eager": eager}
