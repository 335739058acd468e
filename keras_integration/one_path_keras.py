"""Keras 3's saving callbacks, for one path shared by all workers."""

from __future__ import annotations

import json
import os
import shutil
import uuid
import zlib

import keras

from tf_epgc.keras_integration.workers import has_workers, is_chief, strategy_of, wait_for_all


class _WholeFiles:
    """A model whose files appear under their names when they are whole."""

    def __init__(self, model):
        self._whole_model = model

    def __getattr__(self, name):
        return getattr(self._whole_model, name)

    def save(self, filepath, **arguments):
        _write_whole(self._whole_model.save, filepath, arguments)

    def save_weights(self, filepath, **arguments):
        _write_whole(self._whole_model.save_weights, filepath, arguments)


def _write_whole(save, filepath, arguments) -> None:
    folder, name = os.path.split(os.fspath(filepath))
    os.makedirs(folder or ".", exist_ok=True)
    part = os.path.join(folder, f"part-{uuid.uuid4().hex}-{name}")  # the ending says the format
    try:
        save(part, **arguments)
        os.replace(part, filepath)
    finally:
        if os.path.exists(part):
            os.remove(part)


class KerasModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """`keras.callbacks.ModelCheckpoint` that writes on the chief only."""

    def _save_model(self, epoch, batch, logs):
        if not is_chief(strategy_of(self.model)):
            return
        model = self.model
        self.set_model(_WholeFiles(model))
        try:
            super()._save_model(epoch, batch, logs)
        finally:
            self.set_model(model)


class KerasBackupAndRestore(keras.callbacks.BackupAndRestore):
    """`keras.callbacks.BackupAndRestore` that writes on the chief only, whole or not at all.

    Each backup is a weights file of its own; the metadata names it, and is replaced in one step.
    """

    def on_train_begin(self, logs=None):
        wait_for_all(strategy_of(self.model))
        if not self.model.built:
            raise ValueError("BackupAndRestore needs a built model; call it on a batch, or give it an Input.")
        backup = self._read_metadata(self._training_metadata_path)
        if backup is not None:
            self._restore(backup)
        wait_for_all(strategy_of(self.model))

    def _read_metadata(self, path):
        if not os.path.exists(path):
            return None
        with open(path) as file:
            return json.load(file)

    def _restore(self, backup):
        path = os.path.join(self.backup_dir, backup["weights"])
        if not os.path.exists(path) or _checksum(path) != backup["checksum"]:
            previous = self._read_metadata(self._prev_training_metadata_path) if self.double_checkpoint else None
            if previous is None or previous == backup:
                raise ValueError(
                    f"The backup {path!r} is missing or damaged; remove {self.backup_dir!r} to start from the "
                    "beginning, or use double_checkpoint=True to keep the one before it."
                )
            self._restore(previous)
            return
        if self.model.optimizer is not None and not self.model.optimizer.built:
            self.model.optimizer.build(self.model.trainable_variables)
        seeds = _seed_states(self.model)
        own = [int(s.numpy()[0]) for s in seeds]
        self.model.load_weights(path)
        if has_workers(strategy_of(self.model)):
            _keep_own_seeds(seeds, own)
        self.model._initial_epoch = backup["epoch"]

    def _save_model(self):
        if not is_chief(strategy_of(self.model)):
            return
        os.makedirs(self.backup_dir, exist_ok=True)
        name = f"{uuid.uuid4().hex}.weights.h5"
        path = os.path.join(self.backup_dir, name)
        self.model.save_weights(path)
        backup = {"epoch": self._current_epoch, "batch": self._last_batch_seen, "weights": name,
                  "checksum": _checksum(path)}  # fmt: skip
        if self.double_checkpoint and os.path.exists(self._training_metadata_path):
            shutil.copyfile(self._training_metadata_path, self._prev_training_metadata_path + ".part")
            os.replace(self._prev_training_metadata_path + ".part", self._prev_training_metadata_path)
        with open(self._training_metadata_path + ".part", "w") as file:
            json.dump(backup, file)
        os.replace(self._training_metadata_path + ".part", self._training_metadata_path)
        self._remove_others(name)

    def _remove_others(self, name):
        previous = self._read_metadata(self._prev_training_metadata_path) if self.double_checkpoint else None
        kept = {name, previous["weights"] if previous else name}
        for other in os.listdir(self.backup_dir):
            if other.endswith(".weights.h5") and other not in kept:
                os.remove(os.path.join(self.backup_dir, other))

    def on_train_end(self, logs=None):
        strategy = strategy_of(self.model)
        wait_for_all(strategy)
        if self.delete_checkpoint and is_chief(strategy):
            shutil.rmtree(self.backup_dir, ignore_errors=True)
        wait_for_all(strategy)


def _checksum(path) -> int:
    value = 0
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            value = zlib.crc32(chunk, value)
    return value


def _seed_states(model) -> list:
    states = {id(v): v for v in model.variables if v.path.endswith("seed_generator_state")}
    return list(states.values())


def _keep_own_seeds(seeds, own) -> None:
    """The file holds the chief's seeds; each worker keeps its own, and takes over how often it was drawn from."""
    for state, seed in zip(seeds, own, strict=True):
        value = state.numpy()
        value[0] = seed
        state.assign(value)
