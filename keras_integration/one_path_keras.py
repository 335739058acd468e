"""Keras 3's saving callbacks, for one path shared by all workers."""

from __future__ import annotations

import json
import logging
import os
import shutil
import uuid
import zlib

import keras
import numpy as np

from tf_epgc.keras_integration.workers import (
    check_same_backup,
    gather_from_workers,
    is_chief,
    strategy_of,
    worker_names,
    worker_number,
)

_LOG = logging.getLogger("tf_epgc")


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
        if not self.model.built:
            raise ValueError("BackupAndRestore needs a built model; call it on a batch, or give it an Input.")
        strategy = strategy_of(self.model)
        self._newest, faults = self._find()
        fault = None
        if faults and self._newest is None:
            fault = f"{'; '.join(faults)}: use double_checkpoint=True to keep the backup before the last one, too"
        found = (self._newest["epoch"], self._newest["checksum"]) if self._newest else None
        check_same_backup(strategy, self.backup_dir, found, fault)
        if self._newest is None:
            return
        if faults:
            _LOG.warning("%s; going on from the backup before it, of epoch %d.", "; ".join(faults), found[0])
        self._restore(strategy)

    def _find(self):
        """The metadata of the newest whole backup, if there is any; and what is wrong with newer ones."""
        faults = []
        for path in (self._training_metadata_path, self._prev_training_metadata_path):
            if os.path.exists(path):
                try:
                    return _read_backup(path), faults
                except ValueError as e:
                    faults.append(str(e))
        return None, faults

    def _restore(self, strategy):
        if self.model.optimizer is not None and not self.model.optimizer.built:
            self.model.optimizer.build(self.model.trainable_variables)
        self.model.load_weights(os.path.join(self.backup_dir, self._newest["weights"]))
        seeds = self._newest["seeds"]
        if len(seeds) == len(worker_names(strategy)):
            _set_seeds(strategy, self.model, seeds[worker_number(strategy)])
        self.model._initial_epoch = self._newest["epoch"]

    def _save_model(self):
        strategy = strategy_of(self.model)
        seeds = gather_from_workers(strategy, _get_seeds(strategy, self.model))
        if not is_chief(strategy):
            return
        os.makedirs(self.backup_dir, exist_ok=True)
        name = f"{uuid.uuid4().hex}.weights.h5"
        path = os.path.join(self.backup_dir, name)
        self.model.save_weights(path)
        previous = self._newest if self.double_checkpoint else None
        if previous is not None:
            _write_json(self._prev_training_metadata_path, previous)
        self._newest = {"epoch": self._current_epoch, "batch": self._last_batch_seen, "weights": name,
                        "checksum": _checksum(path), "seeds": seeds}  # fmt: skip
        _write_json(self._training_metadata_path, self._newest)
        kept = {name, previous["weights"] if previous else name}
        for other in os.listdir(self.backup_dir):
            if other.endswith(".weights.h5") and other not in kept:
                os.remove(os.path.join(self.backup_dir, other))

    def on_train_end(self, logs=None):
        if self.delete_checkpoint and is_chief(strategy_of(self.model)):
            shutil.rmtree(self.backup_dir, ignore_errors=True)


def _read_backup(path) -> dict:
    """A backup's metadata, if the weights it names are whole."""
    try:
        with open(path) as file:
            backup = json.load(file)
        epoch, checksum = int(backup["epoch"]), int(backup["checksum"])
        backup.setdefault("seeds", [])
        weights = os.path.join(os.path.dirname(path), backup["weights"])
    except (ValueError, KeyError, TypeError) as e:
        raise ValueError(f"{path!r} is damaged, or was not written by tf_epgc.BackupAndRestore") from e
    if not os.path.exists(weights) or _checksum(weights) != checksum:
        raise ValueError(f"{weights!r}, the backup of epoch {epoch}, is missing or damaged")
    return backup


def _write_json(path, value) -> None:
    with open(path + ".part", "w") as file:
        json.dump(value, file)
    os.replace(path + ".part", path)


def _checksum(path) -> int:
    value = 0
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            value = zlib.crc32(chunk, value)
    return value


def _seed_states(strategy, model) -> list:
    """What random layers draw from, a variable for each layer and local replica; Keras's files leave it out."""
    states = {id(v): v for v in model.variables if v.path.endswith("seed_generator_state")}
    return [part for state in states.values() for part in strategy.experimental_local_results(state.value)]


def _get_seeds(strategy, model) -> list[int]:
    return [int(word) for state in _seed_states(strategy, model) for word in state.numpy()]


def _set_seeds(strategy, model, words) -> None:
    states = _seed_states(strategy, model)
    if len(words) != 2 * len(states):
        return  # a backup of another number of replicas
    for i, state in enumerate(states):
        state.assign(np.array(words[2 * i : 2 * i + 2]).astype(state.dtype.as_numpy_dtype))
