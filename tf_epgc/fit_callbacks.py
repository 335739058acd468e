"""Finds the callbacks `fit` was given, before Keras begins with them, and has them made right for several workers.

A strategy is not asked about callbacks; but both libraries enter its scope in `fit` before they look at them.
"""

from __future__ import annotations

import importlib

from tf_epgc.keras_steps import _TRAINERS, _callers

#: How far up `fit` is looked for, in frames.
_DEPTH = 12


def share_callbacks_of_fit(strategy) -> None:
    """Called where the strategy's scope is entered, on every worker of several.

    Raises:
        ValueError: If the workers have different ones of tf_epgc's callbacks.
    """
    given = _given_to_fit()
    if given is not None:
        # Not an import at the top: keras_integration uses tf_epgc, and nobody without Keras comes here.
        importlib.import_module("tf_epgc.keras_integration.fit_callbacks").share_callbacks(strategy, *given)


def _given_to_fit():
    """The model that `fit` trains and the callbacks it was given; None elsewhere, and once Keras has a list of them."""
    calls = 0
    for frame in _callers(_DEPTH):
        calls += frame.f_code is share_callbacks_of_fit.__code__
        if calls > 1:
            return None  # sharing enters the scope itself
        if frame.f_code.co_name == "fit" and frame.f_globals.get("__name__") in _TRAINERS:
            callbacks = frame.f_locals.get("callbacks")
            return None if hasattr(callbacks, "callbacks") else (frame.f_locals.get("self"), callbacks)
    return None
