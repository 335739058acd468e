"""tf_keras's backups, for one path shared by all workers."""

from __future__ import annotations

import os

import tensorflow as tf
import tf_keras

from tf_epgc.keras_integration.workers import check_same_backup, strategy_of


class TfKerasBackupAndRestore(tf_keras.callbacks.BackupAndRestore):
    """`tf_keras.callbacks.BackupAndRestore` that refuses damaged backups, and workers that find different ones."""

    def on_train_begin(self, logs=None):
        folder = os.path.join(self.backup_dir, "chief")
        strategy, fault = strategy_of(self.model), _fault(folder)
        latest = None if fault else tf.train.latest_checkpoint(folder)
        check_same_backup(strategy, self.backup_dir, (_number(latest), 0) if latest else None, fault)
        super().on_train_begin(logs)


def _number(path: str) -> int:
    """Which checkpoint of its folder it is; tf_keras counts epochs only inside of it."""
    return int(path.rpartition("-")[2])


def _fault(folder: str) -> str | None:
    """What is wrong with the newest checkpoint of a folder; TensorFlow would begin anew without one that is missing."""
    if not tf.io.gfile.exists(os.path.join(folder, "checkpoint")):
        return None
    latest = tf.train.latest_checkpoint(folder)
    if latest is None:
        return f"{folder!r} is damaged, or lacks its newest checkpoint"
    try:
        reader = tf.train.load_checkpoint(latest)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    except (tf.errors.OpError, IndexError, RuntimeError, ValueError) as e:
        return f"{latest!r} is damaged ({type(e).__name__})"
    return None
