"""What callbacks need to know of the other workers."""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Sequence

import tensorflow as tf

#: Seconds that workers wait for each other between steps: while one of them writes a large model, too.
TIME_LIMIT = 1800.0


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


def worker_names(strategy) -> list[str]:
    """All workers, as "Chief 0" or "Worker 1", the chief first; one without a cluster."""
    resolver = strategy.cluster_resolver
    if resolver is None or resolver.task_type is None:
        return ["Worker 0"]
    jobs = resolver.cluster_spec().as_dict()
    return [f"{job.capitalize()} {i}" for job in ("chief", "worker") for i in range(len(jobs.get(job, ())))]


def worker_number(strategy) -> int:
    """This worker's place among them."""
    names = worker_names(strategy)
    if len(names) == 1:
        return 0
    resolver = strategy.cluster_resolver
    return names.index(f"{resolver.task_type.capitalize()} {resolver.task_id}")


def has_workers(strategy) -> bool:
    """Whether there is more than one worker process."""
    return len(worker_names(strategy)) > 1


def is_chief(strategy) -> bool:
    return strategy.extended.should_checkpoint


def is_keras3(model) -> bool:
    """Whether a model is one of Keras 3; tf_keras models come from another package."""
    return not any(cls.__module__.split(".")[0] == "tf_keras" for cls in type(model).__mro__)


def sum_over_workers(strategy, values: Sequence[int]) -> list[int]:
    """Sums integers, which travel exactly, over the workers; every worker must call it.

    Raises:
        TimeoutError: If another worker has not come in time.
        tf.errors.UnavailableError: If a worker has gone.
    """

    def sum_over_replicas():
        context = tf.distribute.get_replica_context()
        is_first = context.replica_id_in_sync_group % len(strategy.extended.worker_devices) == 0
        own = tf.constant(values if is_first else [0] * len(values), tf.int64)
        options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=TIME_LIMIT)
        return context.all_reduce(tf.distribute.ReduceOp.SUM, own, options)

    if not has_workers(strategy):
        return list(values)
    try:
        return strategy.experimental_local_results(strategy.run(sum_over_replicas))[0].numpy().tolist()
    except tf.errors.DeadlineExceededError as e:
        names = worker_names(strategy)
        own = names.pop(worker_number(strategy))
        raise TimeoutError(
            f"{own} waited {TIME_LIMIT:.0f} s for {', '.join(names)} in a callback or in save_model; give every worker "
            "the same callbacks, and look for what keeps the other from going on."
        ) from e


def gather_from_workers(strategy, values: Sequence[int]) -> list[list[int]]:
    """Every worker's integers, in the order of their numbers; every worker must call it with as many.

    Raises:
        TimeoutError: If another worker has not come in time.
        tf.errors.UnavailableError: If a worker has gone.
    """
    workers, own, count = len(worker_names(strategy)), worker_number(strategy), len(values)
    slots = [0] * (workers * count)
    slots[own * count : (own + 1) * count] = values
    slots = sum_over_workers(strategy, slots)
    return [slots[i * count : (i + 1) * count] for i in range(workers)]


def wait_for_all(strategy) -> None:
    """Returns when every worker has called it.

    Raises:
        TimeoutError: If another worker has not come in time.
        tf.errors.UnavailableError: If a worker has gone.
    """
    sum_over_workers(strategy, [1])


def is_writer(strategy, path: str) -> bool:
    """Whether this worker is the one to write `path`: the first of those for which it is the same file.

    On a shared file system that is the chief alone; workers with disks of their own each write theirs. All workers
    must call it, each with its own path.

    Args:
        strategy: The workers' strategy.
        path: A file's path; parts of it in braces are filled in later.

    Raises:
        TimeoutError: If another worker has not come in time.
        tf.errors.UnavailableError: If a worker has gone.
    """
    if not has_workers(strategy):
        return True
    folder, name = os.path.split(path)
    while "{" in folder:
        folder = os.path.dirname(folder)
    tf.io.gfile.makedirs(folder or ".")
    own = worker_number(strategy)
    # One number for all, which no other run's files have, and the file's name: other files are other writers'.
    common = sum_over_workers(strategy, [random.SystemRandom().getrandbits(48) if own == 0 else 0])[0]
    stem = os.path.join(folder, f".writer-{common:x}-{zlib.crc32(name.encode()):x}-")
    with tf.io.gfile.GFile(f"{stem}{own}", "w") as file:
        file.write("")
    wait_for_all(strategy)
    first = next(i for i in range(own + 1) if i == own or tf.io.gfile.exists(f"{stem}{i}"))
    wait_for_all(strategy)
    tf.io.gfile.remove(f"{stem}{own}")
    return first == own
