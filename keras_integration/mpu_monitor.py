"""`MPUMonitor`: a callback that reports what an `MPUOptimizer` does."""

from __future__ import annotations

import importlib.util
import logging
import math

import tensorflow as tf

from tf_epgc.keras_integration.callback import Callback
from tf_epgc.keras_integration.mpu_optimizer import MPUOptimizer

_LOG = logging.getLogger("tf_epgc")

#: Names of what is reported, in `logs` and in TensorBoard.
SCALE, SKIPPED, ZEROS, NON_FINITE = "loss_scale", "skipped_steps", "zero_gradients", "non_finite_gradients"


class MPUMonitor(Callback):
    """Reports loss scale, skipped steps, and shares of zero and of non-finite gradient values at the end of each epoch.

    They go into the epoch's `logs` (as `loss_scale`, `skipped_steps`, `zero_gradients`, `non_finite_gradients`), from
    where `History` and every callback later in the list, such as `TensorBoard` or `CSVLogger`, take them. The shares
    are of the gradients after the exchange, as means over the epoch's steps, the skipped ones included;
    `skipped_steps` counts from the optimizer's start. It also says when steps still overflow at `min_scale`.

    Works in `fit` of Keras 3 and of tf_keras, on every worker.

    Args:
        log_dir: Where to write TensorBoard summaries besides; None writes none. Give one worker's only, or one for
            each.

    Raises:
        ImportError: If `log_dir` is given and TensorBoard is not installed.
        ValueError: In `fit`, if the model's optimizer is not an `MPUOptimizer`.

    Example:

    ```python
    model.fit(dataset, epochs=5, callbacks=[tf_epgc.MPUMonitor(), keras.callbacks.TensorBoard("logs")])
    ```
    """

    def __init__(self, log_dir: str | None = None):
        if log_dir is not None and importlib.util.find_spec("tensorboard") is None:
            raise ImportError(
                f"MPUMonitor(log_dir={log_dir!r}) needs TensorBoard, which is not installed; run `pip install "
                "tensorboard`, or leave log_dir out: the report is in the epochs' logs all the same."
            )
        super().__init__()
        self._log_dir = log_dir
        self._writer = None
        self._has_said_floor = False

    def on_train_begin(self, logs=None):
        """Starts counting zeros and non-finite values."""
        self._optimizer()._watcher.watch()
        self._has_said_floor = False

    def on_train_end(self, logs=None):
        """Stops counting."""
        self._optimizer()._watcher.watch(False)
        if self._writer is not None:
            self._writer.flush()

    def on_epoch_end(self, epoch, logs=None):
        """Adds the report to `logs`."""
        report = self._report()
        if logs is not None:
            logs.update(report)
        self._write(report, epoch)
        self._say_floor()

    def _optimizer(self) -> MPUOptimizer:
        optimizer = getattr(self.model, "optimizer", None)
        if not isinstance(optimizer, MPUOptimizer):
            raise ValueError(
                f"MPUMonitor watches an MPUOptimizer, but the model's optimizer is {optimizer!r}; compile the model "
                "with tf_epgc.MPUOptimizer(...)."
            )
        return optimizer

    def _report(self) -> dict:
        optimizer = self._optimizer()
        zeros, non_finite = optimizer._watcher.take()
        return {
            SCALE: float(optimizer.loss_scale),
            SKIPPED: int(optimizer.skipped_steps),
            ZEROS: zeros,
            NON_FINITE: non_finite,
        }

    def _write(self, report: dict, epoch: int) -> None:
        if self._log_dir is None:
            return
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(self._log_dir)
        with self._writer.as_default():
            for name, value in report.items():
                if not math.isnan(value):
                    tf.summary.scalar(f"mpu/{name}", value, step=epoch)

    def _say_floor(self) -> None:
        loss_scale = self._optimizer()._loss_scale
        if loss_scale.has_overflowed_at_floor() and not self._has_said_floor:
            self._has_said_floor = True
            _LOG.warning(loss_scale.floor_message())
