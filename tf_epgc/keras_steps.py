"""Recognizing Keras's calls: whose training step runs, and what its optimizer does that several replicas change.

Keras is never imported here; objects that it made are looked at.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

#: Modules of Keras 3 and tf_keras that define `train_step`.
_TRAINERS = ("keras.src.backend.tensorflow.trainer", "tf_keras.src.engine.training")

_LOSS_SCALE_OPTIMIZER = "keras.src.optimizers.loss_scale_optimizer"

_BATCH_NORMALIZATION = "keras.src.layers.normalization.batch_normalization"

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


def _callers(depth: int = _DEPTH):
    """The frames of the callers' callers, the nearest first."""
    frame = sys._getframe(2)
    for _ in range(depth):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def in_keras_saving() -> bool:
    """Whether Keras 3 is saving, and makes layers or an optimizer only to see what attributes such objects have."""
    return any(
        f.f_code.co_name == "get_attr_skipset" and f.f_globals.get("__name__", "").startswith("keras.")
        for f in _callers(depth=60)
    )


def in_keras(method: str) -> bool:
    """Whether this method of a model of Keras 3 or tf_keras is among the callers."""
    return any(f.f_code.co_name == method and f.f_globals.get("__name__") in _TRAINERS for f in _callers())


def in_batch_normalization() -> bool:
    """Whether a batch normalization of Keras 3 is being called."""
    return any(
        f.f_code.co_name == "call" and f.f_globals.get("__name__") == _BATCH_NORMALIZATION for f in _callers(depth=12)
    )


def reads_generator() -> bool:
    """Whether Keras 3 is making the data set it trains on out of a Python generator."""
    adapters = (
        getattr(frame.f_locals.get("self"), "data_adapter", None)
        for frame in _callers()
        if frame.f_globals.get("__name__") == _TRAINERS[0]
    )
    return any(type(adapter).__name__ == "GeneratorDataAdapter" for adapter in adapters)
