"""`SharedDecisions`: all workers stop at the same epoch, with the same learning rate and the same weights."""

from __future__ import annotations

import struct
import zlib

import numpy as np

from tf_epgc.keras_integration.mpu_monitor import _HOOKS, _do_nothing
from tf_epgc.keras_integration.workers import (
    gather_from_workers,
    has_workers,
    strategy_of,
    sum_over_workers,
    worker_number,
)


class _EveryHook:
    """A callback for both libraries, whose hooks do nothing."""

    _supports_tf_logs = True
    async_safe = True

    def __init__(self):
        self.model = None
        self.params = {}

    def set_model(self, model):
        self.model = model

    def set_params(self, params):
        self.params = params

    def _implements_train_batch_hooks(self):
        return False

    def _implements_test_batch_hooks(self):
        return False

    def _implements_predict_batch_hooks(self):
        return False


for _hook in _HOOKS:
    setattr(_EveryHook, _hook, _do_nothing)


class SharedDecisions(_EveryHook):
    """Makes what callbacks decide on one worker hold on all of them, at the end of each epoch.

    Training stops on all workers if a callback set `model.stop_training` on any (`rule="any"`) or on all
    (`rule="all"`); one that does so within an epoch stops it at the epoch's end. If weights then differ, since each
    worker restored its own best, all take those of the first that decided. The learning rate becomes the chief's; one
    that follows a `LearningRateSchedule` is left alone, as it is the same everywhere.

    Put it last in the list: it sees what the callbacks before it decided. Costs one small all-reduce an epoch. Every
    worker must have it. Works in `fit` of Keras 3 and of tf_keras.

    Args:
        rule: "any" or "all".

    Raises:
        ValueError: If `rule` is neither.
        TimeoutError: In `fit`, if another worker does not come to the epoch's end.
        tf.errors.UnavailableError: In `fit`, if a worker has gone.

    Example:

    ```python
    model.fit(dataset, epochs=50, callbacks=[keras.callbacks.EarlyStopping("val_loss"), tf_epgc.SharedDecisions()])
    ```
    """

    def __init__(self, rule: str = "any"):
        if rule not in ("any", "all"):
            raise ValueError(f"SharedDecisions(rule={rule!r}) is not supported; use 'any' or 'all'.")
        super().__init__()
        self._rule = rule
        self._asked = False
        self._decided_by = None

    def on_train_begin(self, logs=None):
        self._asked = False
        self._decided_by = None

    def on_train_batch_end(self, batch, logs=None):
        """Puts a decision within an epoch off to its end: the others do not know of it and go on."""
        if self.model.stop_training and not _is_nan(logs) and has_workers(strategy_of(self.model)):
            self._asked = True
            self.model.stop_training = False

    def on_epoch_end(self, epoch, logs=None):
        """Shares the decisions."""
        strategy = strategy_of(self.model)
        if not has_workers(strategy):
            return
        rate = _rate_variable(self.model.optimizer)
        own = [int(self._asked or self.model.stop_training), _bits(rate.numpy() if rate is not None else 0.0)]
        everybody = gather_from_workers(strategy, own)
        stops = [i for i, (stop, _) in enumerate(everybody) if stop]
        self.model.stop_training = bool(stops) if self._rule == "any" else len(stops) == len(everybody)
        self._asked = False
        if stops:
            self._decided_by = stops[0]
        if rate is not None:
            rate.assign(_float(everybody[0][1]))

    def on_train_end(self, logs=None):
        """Gives all workers the weights of the one that decided first."""
        strategy = strategy_of(self.model)
        if self._decided_by is None or not has_workers(strategy):
            return
        weights = [np.ascontiguousarray(w) for w in self.model.get_weights()]
        checksum = 0
        for weight in weights:
            checksum = zlib.crc32(weight.tobytes(), checksum)
        if len({c for (c,) in gather_from_workers(strategy, [checksum])}) > 1:
            is_source = worker_number(strategy) == self._decided_by
            self.model.set_weights([_from_source(strategy, weight, is_source) for weight in weights])

    def _implements_train_batch_hooks(self):
        return True


class SharedLogs(_EveryHook):
    """Makes numbers that differ between workers in an epoch's `logs` their mean, for the callbacks after it."""

    def on_epoch_end(self, epoch, logs=None):
        strategy = strategy_of(self.model)
        if not logs or not has_workers(strategy):
            return
        names = sorted(name for name, value in logs.items() if np.ndim(value) == 0 and _is_real(value))
        bits = [_bits(logs[name]) for name in names]
        own = [zlib.crc32(",".join(names).encode()), zlib.crc32(struct.pack(f"{len(bits)}q", *bits))]
        everybody = gather_from_workers(strategy, own)
        if len({n for n, _ in everybody}) > 1 or len({b for _, b in everybody}) == 1:
            return
        everybody = gather_from_workers(strategy, bits)
        for name, values in zip(names, zip(*everybody, strict=True), strict=True):
            if len(set(values)) > 1:
                logs[name] = float(np.mean([_float(v) for v in values]))


def _from_source(strategy, weight: np.ndarray, is_source: bool) -> np.ndarray:
    """One worker's bits on all of them: the others add nothing to them."""
    words = np.frombuffer(weight.tobytes() + b"\0" * (-weight.nbytes % 8), np.int64)
    words = np.asarray(sum_over_workers(strategy, words if is_source else np.zeros_like(words)), np.int64)
    return np.frombuffer(words.tobytes()[: weight.nbytes], weight.dtype).reshape(weight.shape)


def _bits(value) -> int:
    return struct.unpack("q", struct.pack("d", float(value)))[0]


def _float(bits: int) -> float:
    return struct.unpack("d", struct.pack("q", bits))[0]


def _is_real(value) -> bool:
    return np.issubdtype(np.asarray(value).dtype, np.floating) or isinstance(value, int)


def _is_nan(logs) -> bool:
    """Whether the loss, which is the same on all workers, is no number: all stop alike."""
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
