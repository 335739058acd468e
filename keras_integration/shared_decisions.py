"""`SharedDecisions`: all workers stop at the same epoch, with the same learning rate and the same weights."""

from __future__ import annotations

import logging
import struct
import zlib

import numpy as np

from tf_epgc.keras_integration.callback import Callback
from tf_epgc.keras_integration.workers import (
    gather_from_workers,
    has_workers,
    strategy_of,
    sum_over_workers,
    worker_names,
    worker_number,
)

_LOG = logging.getLogger("tf_epgc")


class SharedDecisions(Callback):
    """Makes what callbacks decide on one worker hold on all of them, at the end of each epoch.

    Training stops on all workers if a callback set `model.stop_training` on any (`rule="any"`) or on all
    (`rule="all"`); one that does so within an epoch stops it at the epoch's end, unless the loss, which all see, is no
    number. The learning rate becomes the chief's; one that follows a `LearningRateSchedule` is left alone, as it is the
    same everywhere. If the weights differ when training ends, since callbacks have set them on each worker for itself
    (`EarlyStopping(restore_best_weights=True)` on numbers of its own), they become the chief's, and a line says so.

    Put it last in the list: it sees what the callbacks before it decided. Costs one small all-reduce an epoch. Every
    worker must have it. Works in `fit` of Keras 3 and of tf_keras.

    Args:
        rule: "any" or "all".

    Raises:
        ValueError: If `rule` is neither.
        TimeoutError: In `fit`, if another worker does not come to the epoch's end in half an hour.
        tf.errors.UnavailableError: In `fit`, if a worker has gone.

    Example:

    ```python
    model.fit(dataset, epochs=50, callbacks=[keras.callbacks.EarlyStopping("val_loss"), tf_epgc.SharedDecisions()])
    ```
    """

    _supports_tf_logs = True
    #: Keras 3 may go on to the next batch: what stops training within an epoch makes it wait by itself.
    async_safe = True

    def __init__(self, rule: str = "any"):
        if rule not in ("any", "all"):
            raise ValueError(f"SharedDecisions(rule={rule!r}) is not supported; use 'any' or 'all'.")
        super().__init__()
        self._rule = rule
        self._stops = False

    def _implements_train_batch_hooks(self):
        return True

    def on_train_begin(self, logs=None):
        self._stops = False

    def on_train_batch_end(self, batch, logs=None):
        """Puts a decision off to the epoch's end: the others, who do not know of it, wait for this worker's steps."""
        if self.model.stop_training and not _is_nan(logs) and has_workers(strategy_of(self.model)):
            self._stops = True
            self.model.stop_training = False

    def on_epoch_end(self, epoch, logs=None):
        """Shares the decisions."""
        strategy = strategy_of(self.model)
        if not has_workers(strategy):
            return
        rate = _rate_variable(self.model.optimizer)
        bits = struct.unpack("q", struct.pack("d", rate.numpy() if rate is not None else 0.0))[0]
        everybody = gather_from_workers(strategy, [int(self._stops or self.model.stop_training), bits])
        stops = [stop for stop, _ in everybody]
        self._stops = False
        self.model.stop_training = bool(any(stops) if self._rule == "any" else all(stops))
        if rate is not None:
            rate.assign(struct.unpack("d", struct.pack("q", everybody[0][1]))[0])

    def on_train_end(self, logs=None):
        """Gives all workers the chief's weights, if they differ."""
        strategy = strategy_of(self.model)
        if not has_workers(strategy):
            return
        weights = [np.ascontiguousarray(w) for w in self.model.get_weights()]
        checksum = 0
        for weight in weights:
            checksum = zlib.crc32(weight.tobytes(), checksum)
        if len({c for (c,) in gather_from_workers(strategy, [checksum])}) == 1:
            return
        self.model.set_weights([_from_chief(strategy, weight) for weight in weights])
        if worker_number(strategy) == 0:
            _LOG.warning(
                "The workers' weights differed when training ended, as when callbacks restore the best by numbers of "
                "their own; all have those of %s now.",
                worker_names(strategy)[0],
            )


def _from_chief(strategy, weight: np.ndarray) -> np.ndarray:
    """The chief's bits on all workers: the others add nothing to them."""
    words = np.frombuffer(weight.tobytes() + b"\0" * (-weight.nbytes % 8), np.int64)
    words = sum_over_workers(strategy, words if worker_number(strategy) == 0 else np.zeros_like(words))
    return np.frombuffer(words.tobytes()[: weight.nbytes], weight.dtype).reshape(weight.shape)


def _is_nan(logs) -> bool:
    """Whether the loss is no number, which is so on all workers at once: each may stop by itself."""
    loss = (logs or {}).get("loss")
    return loss is not None and not np.isfinite(np.asarray(loss)).all()


def _rate_variable(optimizer):
    """The variable that holds the learning rate, inside of any wrappers; None with a schedule."""
    while True:
        inner = getattr(optimizer, "inner_optimizer", None) or getattr(optimizer, "_inner", None)
        if inner is None:
            break
        optimizer = inner
    rate = getattr(optimizer, "_learning_rate", None)
    return rate if hasattr(rate, "assign") else None
