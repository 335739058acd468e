"""Keras 3's saving callbacks, for one path shared by all workers."""

from __future__ import annotations

import json
import os
import uuid
import zlib

import keras
import numpy as np
import tensorflow as tf

from tf_epgc.keras_integration.saving import write_whole
from tf_epgc.keras_integration.workers import (
    gather_from_workers,
    is_writer,
    strategy_of,
    wait_for_all,
    worker_names,
)

#: What stands for an epoch when a worker's backup is damaged.
_DAMAGED = -2

#: What the metadata of Keras's own callback leaves out.
_KERAS_BACKUP = {"weights": "latest.weights.h5", "checksum": None, "seeds": []}


class _WholeFiles:
    """A model whose files appear under their names when they are whole, or not at all."""

    def __init__(self, model, writes: bool):
        self._whole_model = model
        self._writes = writes

    def __getattr__(self, name):
        return getattr(self._whole_model, name)

    def save(self, filepath, **arguments):
        self._write(self._whole_model.save, filepath, arguments)

    def save_weights(self, filepath, **arguments):
        self._write(self._whole_model.save_weights, filepath, arguments)

    def _write(self, save, filepath, arguments):
        if self._writes:
            write_whole(save, os.fspath(filepath), arguments)


class WritesOnce:
    """What a `keras.callbacks.ModelCheckpoint` is mixed with, so that one worker writes each file."""

    def on_train_begin(self, logs=None):
        self._writes = is_writer(strategy_of(self.model), self.filepath)
        super().on_train_begin(logs)

    def _save_model(self, epoch, batch, logs):
        model = self.model
        self.set_model(_WholeFiles(model, self._writes))
        try:
            super()._save_model(epoch, batch, logs)
        finally:
            self.set_model(model)

    def on_train_end(self, logs=None):
        super().on_train_end(logs)
        wait_for_all(strategy_of(self.model))  # whoever reads a file after fit finds it whole


class BacksUpOnce:
    """What a `keras.callbacks.BackupAndRestore` is mixed with: one worker writes each backup, whole or not at all.

    Each backup is a weights file of its own; the metadata names it, and is replaced in one step.
    """

    def on_train_begin(self, logs=None):
        strategy = strategy_of(self.model)
        if not self.model.built:
            raise ValueError("BackupAndRestore needs a built model; call it on a batch, or give it an Input.")
        self._writes = is_writer(strategy, self._training_metadata_path)
        backup, damaged = self._whole_backup()
        epoch = _DAMAGED if damaged else backup["epoch"] if backup else -1
        self._check_alike(strategy, [e for (e,) in gather_from_workers(strategy, [epoch])], damaged)
        self._seeds = _Seeds(strategy, self.model)
        if backup is not None:
            self._restore(backup)
        wait_for_all(strategy)  # nobody replaces what another still reads

    def _whole_backup(self):
        """The newest whole backup's metadata, if there is one; and the path of the newest, if none is whole."""
        damaged = None
        for path in [self._training_metadata_path, self._prev_training_metadata_path][: 1 + self.double_checkpoint]:
            backup = _read_json(path)
            if backup is None:
                continue
            weights = os.path.join(self.backup_dir, backup["weights"])
            if tf.io.gfile.exists(weights) and backup["checksum"] in (None, _checksum(weights)):
                return backup, None
            damaged = damaged or weights
        return None, damaged

    def _check_alike(self, strategy, epochs, damaged):
        if damaged or _DAMAGED in epochs:
            raise ValueError(
                f"The backup {damaged or self.backup_dir!r} is missing or damaged; remove {self.backup_dir!r} to start "
                "from the beginning, or use double_checkpoint=True to keep the one before it."
            )
        if len(set(epochs)) > 1:
            found = [f"{n}: {'none' if e < 0 else f'epoch {e}'}" for n, e in zip(worker_names(strategy), epochs)]
            raise ValueError(
                f"The workers find different backups in {self.backup_dir!r} ({', '.join(found)}); give all workers one "
                "folder that they share, or remove it on every worker to start from the beginning."
            )

    def _restore(self, backup):
        if self.model.optimizer is not None and not self.model.optimizer.built:
            self.model.optimizer.build(self.model.trainable_variables)
        self.model.load_weights(os.path.join(self.backup_dir, backup["weights"]))
        self._seeds.restore(backup["seeds"])
        self.model._initial_epoch = backup["epoch"]

    def _save_model(self):
        if not self._writes:
            return
        name = f"{uuid.uuid4().hex}.weights.h5"
        path = os.path.join(self.backup_dir, name)
        tf.io.gfile.makedirs(self.backup_dir)
        self.model.save_weights(path)
        backup = {"epoch": self._current_epoch, "batch": self._last_batch_seen, "weights": name,
                  "checksum": _checksum(path), "seeds": self._seeds.common()}  # fmt: skip
        previous = _read_json(self._training_metadata_path) if self.double_checkpoint else None
        if previous is not None:
            _write_json(self._prev_training_metadata_path, previous)
        _write_json(self._training_metadata_path, backup)
        kept = {name, previous["weights"] if previous else name}
        for other in tf.io.gfile.listdir(self.backup_dir):
            if other.endswith(".weights.h5") and other not in kept:
                tf.io.gfile.remove(os.path.join(self.backup_dir, other))

    def on_train_end(self, logs=None):
        strategy = strategy_of(self.model)
        wait_for_all(strategy)
        if self.delete_checkpoint and self._writes and tf.io.gfile.exists(self.backup_dir):
            tf.io.gfile.rmtree(self.backup_dir)
        wait_for_all(strategy)


class KerasModelCheckpoint(WritesOnce, keras.callbacks.ModelCheckpoint):
    """`keras.callbacks.ModelCheckpoint` of which one worker writes."""


class KerasBackupAndRestore(BacksUpOnce, keras.callbacks.BackupAndRestore):
    """`keras.callbacks.BackupAndRestore` of which one worker writes."""


#: By Keras's class, what makes one worker write.
MIXED_WITH = {keras.callbacks.ModelCheckpoint: WritesOnce, keras.callbacks.BackupAndRestore: BacksUpOnce}


def _read_json(path):
    if not tf.io.gfile.exists(path):
        return None
    with tf.io.gfile.GFile(path) as file:
        return {**_KERAS_BACKUP, **json.loads(file.read())}


def _write_json(path, value) -> None:
    with tf.io.gfile.GFile(path + ".part", "w") as file:
        file.write(json.dumps(value))
    tf.io.gfile.rename(path + ".part", path, overwrite=True)


def _checksum(path) -> int:
    value = 0
    with tf.io.gfile.GFile(path, "rb") as file:
        while chunk := file.read(1 << 20):
            value = zlib.crc32(chunk, value)
    return value


class _Seeds:
    """States of a model's random layers, which Keras does not put into its files.

    Args:
        strategy: Gives each worker a seed of its own, at a fixed distance from the chief's.
        model: A built model.
    """

    def __init__(self, strategy, model):
        states = {id(v): v for v in model.variables if v.path.endswith("seed_generator_state")}
        self._states = list(states.values())
        own = [int(seed) for seed, _ in self._values()]
        chief = gather_from_workers(strategy, own)[0] if own else []
        self._distances = [seed - first for seed, first in zip(own, chief, strict=True)]

    def _values(self):
        return [np.asarray(state.numpy()) for state in self._states]

    def common(self) -> list[list[int]]:
        """The chief's states: seeds, and how often they were drawn from."""
        values = zip(self._values(), self._distances, strict=True)
        return [[int(seed) - distance, int(drawn)] for (seed, drawn), distance in values]

    def restore(self, common) -> None:
        if len(common) != len(self._states):
            return  # a backup of Keras's own
        for state, (seed, drawn), distance in zip(self._states, common, self._distances, strict=True):
            state.assign(np.array([seed + distance, drawn]).astype(np.asarray(state.numpy()).dtype))
