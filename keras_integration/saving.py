"""`save_model`, and files that appear under their names when they are whole."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import uuid

import tensorflow as tf

from tf_epgc.keras_integration.workers import is_keras3, is_writer, strategy_of, wait_for_all

#: What a single file ends with; other formats are folders or several files.
_FILE_ENDINGS = (".keras", ".h5", ".hdf5")


def save_model(model, filepath, **arguments) -> None:
    """Does `model.save(filepath, ...)` with one path for all workers: one of them writes, the file whole or not at all.

    Every worker must call it, inside or outside of the strategy's scope. When it returns, each may read the file. One
    worker writes on a shared file system; workers with disks of their own each write theirs.

    Args:
        model: Of Keras 3 or tf_keras, made under any strategy or none.
        filepath: As for `model.save`.
        **arguments: Likewise.

    Raises:
        ValueError: For arguments that `model.save` refuses.
        TimeoutError: If another worker does not call it.
        tf.errors.UnavailableError: If a worker has gone.

    Example:

    ```python
    model.fit(dataset)
    tf_epgc.save_model(model, "model.keras")
    ```
    """
    strategy = strategy_of(model)
    filepath = os.fspath(filepath)
    if is_writer(strategy, filepath):
        write_whole(model.save, filepath, arguments)
    elif not is_keras3(model):
        # Statistics are added up when they are read, which all workers must do together.
        with _temporary_folder() as folder:
            model.save(os.path.join(folder, os.path.basename(filepath)), **arguments)
    wait_for_all(strategy)


def write_whole(save, filepath: str, arguments: dict) -> None:
    """Calls `save` with another name in the same folder, and renames the file when it is written."""
    if not filepath.endswith(_FILE_ENDINGS):
        save(filepath, **arguments)
        return
    folder, name = os.path.split(filepath)
    tf.io.gfile.makedirs(folder or ".")
    part = os.path.join(folder, f"part-{uuid.uuid4().hex}-{name}")  # the ending says the format
    try:
        save(part, **arguments)
        tf.io.gfile.rename(part, filepath, overwrite=True)
    finally:
        if tf.io.gfile.exists(part):
            tf.io.gfile.remove(part)


@contextlib.contextmanager
def _temporary_folder():
    folder = tempfile.mkdtemp()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
