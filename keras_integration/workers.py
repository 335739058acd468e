"""What callbacks need to know of the other workers."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf


def strategy_of(model):
    """The strategy a model of either library was made under."""
    optimizer = getattr(model, "optimizer", None)
    for strategy in (
        getattr(model, "_distribute_strategy", None),  # Keras 3
        getattr(model, "_distribution_strategy", None),  # tf_keras
        getattr(optimizer, "_distribution_strategy", None),
    ):
        if strategy is not None:
            return strategy
    return tf.distribute.get_strategy()


def has_workers(strategy) -> bool:
    """Whether there is more than one worker process."""
    resolver = strategy.cluster_resolver
    return resolver is not None and resolver.task_type is not None and _worker_count(resolver) > 1


def _worker_count(resolver) -> int:
    jobs = resolver.cluster_spec().as_dict()
    return sum(len(jobs.get(job, ())) for job in ("chief", "worker"))


def is_chief(strategy) -> bool:
    return strategy.extended.should_checkpoint


def is_keras3(model) -> bool:
    """Whether a model is one of Keras 3; tf_keras models come from another package."""
    return not any(cls.__module__.split(".")[0] == "tf_keras" for cls in type(model).__mro__)


def sum_over_workers(strategy, values: Sequence[int]) -> list[int]:
    """Sums integers, which travel exactly, over the workers; every worker must call it.

    Raises:
        tf.errors.UnavailableError: If a worker has gone.
    """

    def sum_over_replicas():
        context = tf.distribute.get_replica_context()
        is_first = context.replica_id_in_sync_group % len(strategy.extended.worker_devices) == 0
        own = tf.constant(values if is_first else [0] * len(values), tf.int64)
        return context.all_reduce(tf.distribute.ReduceOp.SUM, own)

    return strategy.experimental_local_results(strategy.run(sum_over_replicas))[0].numpy().tolist()


def wait_for_all(strategy) -> None:
    """Returns when every worker has called it.

    Raises:
        tf.errors.UnavailableError: If a worker has gone.
    """
    if has_workers(strategy):
        sum_over_workers(strategy, [1])
