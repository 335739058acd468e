"""What callbacks need to know of the other workers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

#: Seconds that workers wait for each other in callbacks: while one of them writes a large model, too.
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
    if not has_workers(strategy):
        return 0
    resolver = strategy.cluster_resolver
    return worker_names(strategy).index(f"{resolver.task_type.capitalize()} {resolver.task_id}")


def has_workers(strategy) -> bool:
    """Whether there is more than one worker process."""
    return len(worker_names(strategy)) > 1


def is_chief(strategy) -> bool:
    return strategy.extended.should_checkpoint


def is_keras3(model) -> bool:
    """Whether a model is one of Keras 3; tf_keras models come from another package."""
    return not any(cls.__module__.split(".")[0] == "tf_keras" for cls in type(model).__mro__)


def sum_over_workers(strategy, values: np.ndarray) -> np.ndarray:
    """Sums int64 values, which travel exactly, over the workers; every worker must call it with as many.

    Raises:
        TimeoutError: If another worker has not come in time.
        RuntimeError: If another worker has come to a step or another callback instead.
        tf.errors.UnavailableError: If a worker has gone.
    """
    if not has_workers(strategy):
        return values

    def sum_over_replicas():
        context = tf.distribute.get_replica_context()
        is_first = context.replica_id_in_sync_group % len(strategy.extended.worker_devices) == 0
        own = tf.constant(values if is_first else np.zeros_like(values))
        options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=TIME_LIMIT)
        return context.all_reduce(tf.distribute.ReduceOp.SUM, own, options)

    names = worker_names(strategy)
    own = names.pop(worker_number(strategy))
    remedy = "give every worker the same callbacks and as many steps"
    try:
        return strategy.experimental_local_results(strategy.run(sum_over_replicas))[0].numpy()
    except tf.errors.DeadlineExceededError as e:
        raise TimeoutError(
            f"{own} waited {TIME_LIMIT:.0f} s in a callback of tf_epgc for {' and '.join(names)}; {remedy}, and look "
            "for what keeps the other from going on."
        ) from e
    except (tf.errors.InternalError, tf.errors.InvalidArgumentError) as e:
        raise RuntimeError(
            f"{own} is in a callback of tf_epgc, and {' or '.join(names)} in a step or another callback, so that their "
            f"data does not fit together; {remedy}. TensorFlow says: {e.message}"
        ) from e


def gather_from_workers(strategy, values: Sequence[int]) -> list[list[int]]:
    """Every worker's integers, in the order of their numbers; every worker must call it with as many.

    Raises:
        TimeoutError: If another worker has not come in time.
        tf.errors.UnavailableError: If a worker has gone.
    """
    rows = np.zeros([len(worker_names(strategy)), len(values)], np.int64)
    rows[worker_number(strategy)] = values
    return sum_over_workers(strategy, rows).tolist()


def wait_for_all(strategy) -> None:
    """Returns when every worker has called it.

    Raises:
        TimeoutError: If another worker has not come in time.
        tf.errors.UnavailableError: If a worker has gone.
    """
    sum_over_workers(strategy, np.ones(1, np.int64))


def check_same_backup(strategy, folder: str, found: tuple[int, int] | None, fault: str | None) -> None:
    """Compares what the workers are about to restore; every worker must call it.

    Args:
        strategy: The workers' strategy.
        folder: Where the backups are, for the message.
        found: Number and checksum of the backup that this worker has found; None for none.
        fault: What is wrong with it; None if nothing is.

    Raises:
        ValueError: If a worker has found a fault, or workers have found different backups.
        TimeoutError: If another worker has not come in time.
        tf.errors.UnavailableError: If a worker has gone.
    """
    everybody = gather_from_workers(strategy, [int(fault is not None), *(found or (-1, 0))])
    names = worker_names(strategy)
    faulty = [name for name, (is_faulty, _, _) in zip(names, everybody, strict=True) if is_faulty]
    if faulty:
        raise ValueError(
            f"{' and '.join(faulty)} cannot restore the backup in {folder!r} ({fault or 'see its own message'}); "
            "remove the folder to start from the beginning."
        )
    if any(row != everybody[0] for row in everybody):
        rows = zip(names, everybody, strict=True)
        listed = ", ".join(f"{name} finds {'none' if n < 0 else f'number {n}'}" for name, (_, n, _) in rows)
        raise ValueError(
            f"The workers find different backups in {folder!r} ({listed}); give all of them one folder that they "
            "share, or remove it on every worker to start from the beginning."
        )
