"""Recognizing Keras's calls: whose training step runs, and what its optimizer does that several replicas change.

Keras is never imported here; objects that it made are looked at.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

#: Modules of Keras 3 and tf_keras that define `train_step`.
_TRAINERS = ("keras.src.backend.tensorflow.trainer", "tf_keras.src.engine.training")

_LOSS_SCALE_OPTIMIZER = "keras.src.optimizers.loss_scale_optimizer"

#: How far up a call is looked for, in frames.
_DEPTH = 25


def model_of_step(fn: Callable):
    """The model whose training step `fn` runs, or None.

    Keras 3 gives `Strategy.run` the bound method `train_step`, tf_keras a function `run_step` that encloses the model.
    """
    name = getattr(fn, "__name__", "")
    if name == "train_step":
        return getattr(fn, "__self__", None)
    if name != "run_step":
        return None
    cells = [_content(cell) for cell in getattr(fn, "__closure__", None) or ()]
    return next((content for content in cells if hasattr(type(content), "train_step")), None)


def has_keras_train_step(model) -> bool:
    """Whether a model's `train_step` is Keras's own, which averages the loss over each replica's rows."""
    return getattr(type(model).train_step, "__module__", None) in _TRAINERS


def _content(cell):
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell
        return None


def refuse_local_clipping(model) -> None:
    """Refuses an optimizer of Keras 3 that clips each replica's gradients before they are added.

    Raises:
        ValueError: Saying what to use.
    """
    optimizer = getattr(model, "optimizer", None)
    if type(optimizer).__module__ == _LOSS_SCALE_OPTIMIZER:  # not MPUOptimizer, which is one and clips the sum
        optimizer = optimizer.inner_optimizer
    if not type(optimizer).__module__.startswith("keras."):
        return
    for name in ("clipnorm", "global_clipnorm", "clipvalue"):
        limit = getattr(optimizer, name, None)
        if limit is not None:
            raise ValueError(
                f"{type(optimizer).__name__}({name}={limit}) would clip each replica's gradients before they are added"
                ", which gives another result than one process; wrap it, tf_epgc.MPUOptimizer(optimizer), which clips "
                "their sum."
            )


def _is_loss_scale_optimizer(optimizer) -> bool:
    return any(base.__module__ == _LOSS_SCALE_OPTIMIZER for base in type(optimizer).__mro__)


def is_loss_scale_check(fn: Callable) -> bool:
    """Whether `fn` is the finite check of Keras 3's `LossScaleOptimizer`.

    It looks at gradients that are not yet added, and each worker acts on its own result; so workers that disagree would
    wait for each other for ever.
    """
    return getattr(fn, "__name__", "") == "check_finite" and _is_loss_scale_optimizer(getattr(fn, "__self__", None))


def in_keras_predict() -> bool:
    """Whether Keras 3's `predict` is among the callers."""
    frame = sys._getframe(1)
    for _ in range(_DEPTH):
        if frame is None:
            return False
        if frame.f_code.co_name == "predict" and frame.f_globals.get("__name__") == _TRAINERS[0]:
            return True
        frame = frame.f_back
    return False
