"""Makes the callbacks that `fit` is given right for several workers, before Keras begins with them."""

from __future__ import annotations

import warnings
import zlib

import tensorflow as tf

from tf_epgc.keras_integration.one_path import _OnePath
from tf_epgc.keras_integration.shared_decisions import SharedDecisions, SharedLogs
from tf_epgc.keras_integration.workers import gather_from_workers, is_keras3, worker_names, worker_number

#: Keras's callbacks that decide by numbers in the logs.
_DECIDING = ("EarlyStopping", "ModelCheckpoint", "ReduceLROnPlateau")
#: Keras's callbacks that may stop or change the training, and those above.
_STOPPING = ("EarlyStopping", "LearningRateScheduler", "ReduceLROnPlateau", "TerminateOnNaN")

#: What `fit` was given: nothing, a list, to which a callback can be added, or something else.
_NOTHING, _LIST, _OTHER = range(3)


class _Added(SharedLogs):
    """Takes what was added to the script's list out again, when Keras has made its own list of it."""

    def __init__(self, callbacks: list):
        super().__init__()
        self._callbacks = callbacks
        self.added = [self]

    def on_train_begin(self, logs=None):
        for callback in self.added:
            if callback in self._callbacks:
                self._callbacks.remove(callback)


def share_callbacks(strategy, model, callbacks) -> None:
    """Makes callbacks right for several workers; each worker calls it with what its `fit` was given.

    `ModelCheckpoint` and `BackupAndRestore` of Keras 3, if all workers have them, write on one worker only; in lists,
    `SharedDecisions` is added, and before the first callback that decides by numbers in the logs, those are made alike.

    Args:
        strategy: The strategy of several workers.
        model: The model to be trained.
        callbacks: As `fit` got them.

    Raises:
        ValueError: If the workers have different ones of tf_epgc's callbacks.
    """
    given = tf.nest.flatten(callbacks) if callbacks else []
    if any(isinstance(c, _Added) for c in given):
        return
    kind = _NOTHING if callbacks is None else _LIST if isinstance(callbacks, list) else _OTHER
    ours = [type(c).__name__ for c in given if isinstance(c, (_OnePath, SharedDecisions))]
    savers = _savers(given) if is_keras3(model) else []
    own = [kind, _checksum(ours), _checksum(type(c).__name__ for c in savers)]
    kinds, all_ours, all_savers = zip(*gather_from_workers(strategy, own), strict=True)
    if len(set(all_ours)) > 1:
        raise ValueError(
            f"{worker_names(strategy)[worker_number(strategy)]} gives fit {', '.join(ours) or 'none'} of tf_epgc's "
            "callbacks, and another worker others; give every worker the same."
        )
    if len(set(all_savers)) == 1:
        for saver in savers:
            _write_once(saver)
    if set(kinds) == {_LIST}:
        _add(callbacks, given)
    elif any(_may_stop(c) for c in given) and not any(isinstance(c, SharedDecisions) for c in given):
        warnings.warn(
            "What callbacks decide on one worker is not shared with the others: give fit a list of callbacks on every "
            "worker, or add tf_epgc.SharedDecisions().",
            stacklevel=2,
        )


def _checksum(names) -> int:
    return zlib.crc32(",".join(names).encode())


def _savers(callbacks) -> list:
    from tf_epgc.keras_integration import one_path_keras as ours

    return [c for c in callbacks if isinstance(c, tuple(ours.MIXED_WITH))]


def _write_once(callback) -> None:
    """Makes a callback one of a class derived from its own, in which one worker writes."""
    from tf_epgc.keras_integration import one_path_keras as ours

    for keras_class, mixin in ours.MIXED_WITH.items():
        if isinstance(callback, keras_class) and not isinstance(callback, mixin):
            own = type(callback)
            callback.__class__ = type(own.__name__, (mixin, own), {"__module__": own.__module__})


def _add(callbacks: list, given: list) -> None:
    logs = _Added(callbacks)
    at = next((i for i, c in enumerate(callbacks) if _is_named(c, _DECIDING)), len(callbacks))
    callbacks.insert(at, logs)
    if not any(isinstance(c, SharedDecisions) for c in given):
        logs.added.append(SharedDecisions())
        callbacks.append(logs.added[-1])


def _is_named(callback, names) -> bool:
    return any(cls.__name__ in names for cls in type(callback).__mro__)


def _may_stop(callback) -> bool:
    library = type(callback).__module__.split(".")[0]
    return library not in ("keras", "tf_keras", "tf_epgc") or _is_named(callback, _STOPPING)
