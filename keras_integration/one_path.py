"""`ModelCheckpoint`, `BackupAndRestore` and `TensorBoard` with one path for all workers."""

from __future__ import annotations

import importlib

from tf_epgc.keras_integration.callback import HOOKS
from tf_epgc.keras_integration.workers import is_chief, is_keras3, strategy_of, wait_for_all


class _OnePath:
    """A callback of the library of the model it is set on, made when that is known.

    Args:
        *args: As for the callback of the same name in `keras.callbacks` or `tf_keras.callbacks`.
        **kwargs: Likewise.
    """

    #: Module and class of our form of it, by library; Keras's own where there is none.
    _ours = {}
    #: Whether Keras 3's is called on the chief only.
    _chief_only = False

    def __init__(self, *args, **kwargs):
        self._arguments = args, kwargs
        self._callback = None
        self._is_called = True
        self.model = None
        self.params = {}

    def set_params(self, params):
        self.params = params
        if self._callback is not None:
            self._callback.set_params(params)

    def set_model(self, model):
        """Makes the callback for this model, or hands the model on to it."""
        self.model = model
        if self._callback is None:
            args, kwargs = self._arguments
            self._callback = self._class_for(model)(*args, **kwargs)
            self._callback.set_params(self.params)
        self._is_called = not (self._chief_only and is_keras3(model)) or is_chief(strategy_of(model))
        if self._is_called:
            self._callback.set_model(model)

    def _class_for(self, model):
        library = "keras" if is_keras3(model) else "tf_keras"
        if library in self._ours:
            module, name = self._ours[library]
            return getattr(importlib.import_module(f"{__package__}.{module}"), name)
        # tf_keras sends what the other workers write to temporary folders.
        return getattr(importlib.import_module(library).callbacks, type(self).__name__)

    @property
    def _supports_tf_logs(self):
        return getattr(self._callback, "_supports_tf_logs", False)

    async_safe = False

    def _implements(self, mode):
        # tf_keras asks before it calls hooks of batches; Keras 3 does not.
        asked = getattr(self._callback, f"_implements_{mode}_batch_hooks", None)
        return asked is None or asked()

    def _implements_train_batch_hooks(self):
        return self._implements("train")

    def _implements_test_batch_hooks(self):
        return self._implements("test")

    def _implements_predict_batch_hooks(self):
        return self._implements("predict")


class ModelCheckpoint(_OnePath):
    """Keras's `ModelCheckpoint`, with one path for all workers: the chief alone writes, each file whole or not at all.

    Give it to `fit` on every worker. At the end of `fit` all wait for the chief, so that each may read the file.
    (In tf_keras it is that library's own callback.)

    Args:
        *args: As for the callback of `keras.callbacks` or `tf_keras.callbacks`.
        **kwargs: Likewise.

    Raises:
        ValueError: In `fit`, for arguments Keras refuses.
        TimeoutError: In `fit`, if another worker does not come to its begin or end in half an hour.
        tf.errors.UnavailableError: In `fit`, if a worker has gone.
    """

    _ours = {"keras": ("one_path_keras", "KerasModelCheckpoint")}


class BackupAndRestore(_OnePath):
    """Keras's `BackupAndRestore`, with one path for all workers: the chief alone writes, and all restore.

    Give it to `fit` on every worker. A run that was stopped goes on as if it had not been, provided that its data comes
    in the same order: with the weights, the optimizer's state, the loss scale and, in Keras 3, each worker's random
    layers. A backup that was only half written is not used; the one before it is. Of one that was damaged later
    `fit` says so, and in Keras 3 takes the one before it if there is one (`double_checkpoint=True`).

    Args:
        *args: As for the callback of `keras.callbacks` or `tf_keras.callbacks`.
        **kwargs: Likewise.

    Raises:
        ValueError: In `fit`, for arguments Keras refuses, an unbuilt model, a damaged backup, or workers that find
            different ones.
        TimeoutError: In `fit`, if another worker does not come to its begin or end in half an hour.
        tf.errors.UnavailableError: In `fit`, if a worker has gone.
    """

    _ours = {
        "keras": ("one_path_keras", "KerasBackupAndRestore"),
        "tf_keras": ("one_path_tf_keras", "TfKerasBackupAndRestore"),
    }


class TensorBoard(_OnePath):
    """Keras's `TensorBoard`, with one path for all workers: the chief alone writes.

    Args:
        *args: As for the callback of `keras.callbacks` or `tf_keras.callbacks`.
        **kwargs: Likewise.
    """

    _chief_only = True


def _hand_on(hook):
    def call(self, *args, **kwargs):
        if self._is_called:
            getattr(self._callback, hook)(*args, **kwargs)

    call.__name__ = hook
    return call


def _begin_training(self, logs=None):
    _hand_on("on_train_begin")(self, logs)
    wait_for_all(strategy_of(self.model))  # nobody replaces what another still reads


def _end_training(self, logs=None):
    wait_for_all(strategy_of(self.model))
    _hand_on("on_train_end")(self, logs)
    wait_for_all(strategy_of(self.model))  # whoever reads a file after fit finds it whole


for _hook in HOOKS:
    setattr(_OnePath, _hook, _hand_on(_hook))
_OnePath.on_train_begin = _begin_training
_OnePath.on_train_end = _end_training
