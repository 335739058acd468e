"""`SharedDecisions`: all workers stop at the same epoch, with the same learning rate."""

from __future__ import annotations

import struct

from tf_epgc.keras_integration.callback import Callback
from tf_epgc.keras_integration.workers import has_workers, is_chief, strategy_of, sum_over_workers


class SharedDecisions(Callback):
    """Makes what callbacks decide on one worker hold on all of them, at the end of each epoch.

    Training stops on all workers if a callback set `model.stop_training` on any (`rule="any"`) or on all
    (`rule="all"`). The learning rate becomes the chief's; one that follows a `LearningRateSchedule` is left alone, as
    it is the same everywhere. Put it last in the list: it sees what the callbacks before it decided. Costs one small
    all-reduce an epoch. Every worker must have it. Works in `fit` of Keras 3 and of tf_keras.

    Args:
        rule: "any" or "all".

    Raises:
        ValueError: If `rule` is neither.

    Example:

    ```python
    model.fit(dataset, epochs=50, callbacks=[keras.callbacks.EarlyStopping("val_loss"), tf_epgc.SharedDecisions()])
    ```
    """

    _supports_tf_logs = True

    def __init__(self, rule: str = "any"):
        if rule not in ("any", "all"):
            raise ValueError(f"SharedDecisions(rule={rule!r}) is not supported; use 'any' or 'all'.")
        super().__init__()
        self._rule = rule

    def on_epoch_end(self, epoch, logs=None):
        """Shares the decisions."""
        strategy = strategy_of(self.model)
        if not has_workers(strategy):
            return
        rate = _rate_variable(self.model.optimizer)
        # The bits of the chief's rate, to which the others add nothing.
        bits = struct.unpack("q", struct.pack("d", rate.numpy()))[0] if rate is not None and is_chief(strategy) else 0
        stops, workers, bits = sum_over_workers(strategy, [int(self.model.stop_training), 1, bits])
        self.model.stop_training = stops > 0 if self._rule == "any" else stops == workers
        if rate is not None:
            rate.assign(struct.unpack("d", struct.pack("q", bits))[0])


def _rate_variable(optimizer):
    """The variable that holds the learning rate, inside of any wrappers; None with a schedule."""
    while True:
        inner = getattr(optimizer, "inner_optimizer", None) or getattr(optimizer, "_inner", None)
        if inner is None:
            break
        optimizer = inner
    rate = getattr(optimizer, "_learning_rate", None)
    return rate if hasattr(rate, "assign") else None
