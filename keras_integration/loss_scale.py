"""The loss scale: its settings, its state, and the rule by which it follows good and bad steps."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable

import tensorflow as tf

from tf_epgc.keras_integration.replicas import Replicas, in_xla, raw_variable

#: Within these the scale and its reciprocal are normal float32 numbers, so that scaling and unscaling round nothing.
SMALLEST_SCALE = 2.0**-126
LARGEST_SCALE = 2.0**126


@dataclasses.dataclass(frozen=True)
class LossScaleSettings:
    """How a loss scale starts and moves.

    Args:
        initial: The scale of the first step.
        dynamic: Whether it moves at all.
        growth_steps: After so many finite steps in a row it doubles.
        minimum: It never goes below.
        maximum: It never goes above.

    Raises:
        ValueError: For settings that make no sense.
    """

    initial: float
    dynamic: bool
    growth_steps: int
    minimum: float
    maximum: float

    def __post_init__(self):
        for name, value in (("initial_scale", self.initial), ("min_scale", self.minimum), ("max_scale", self.maximum)):
            _check_scale(name, value)
        if not isinstance(self.dynamic, bool):
            raise ValueError(f"dynamic={self.dynamic!r} is not supported; use True, or False for a fixed scale.")
        if not isinstance(self.growth_steps, int) or isinstance(self.growth_steps, bool) or self.growth_steps < 1:
            raise ValueError(f"growth_steps={self.growth_steps!r} is not supported; use an integer of at least 1.")
        if self.minimum > self.maximum:
            raise ValueError(f"min_scale={self.minimum} is above max_scale={self.maximum}; use one that is not.")
        if self.dynamic and not self.minimum <= self.initial <= self.maximum:
            raise ValueError(
                f"initial_scale={self.initial} is not between min_scale={self.minimum} and max_scale={self.maximum}; "
                "start inside of them, or move them."
            )


def _check_scale(name: str, value) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or math.isnan(value) or not SMALLEST_SCALE <= value <= LARGEST_SCALE:
        raise ValueError(
            f"{name}={value!r} is not supported; use a number between 2**-126 and 2**126, such as 2.0**15."
        )


class LossScale:
    """The scale and the counters that move it.

    Args:
        settings: The rule.
        make_variable: Called with a name, an initial value and a dtype; makes a variable that belongs to the
            optimizer's saved state.
    """

    def __init__(self, settings: LossScaleSettings, make_variable: Callable):
        self.settings = settings
        self.scale = make_variable("loss_scale", settings.initial, "float32")
        #: Finite steps since the scale last moved.
        self.good_steps = make_variable("good_steps", 0, "int64")
        self.skipped_steps = make_variable("skipped_steps", 0, "int64")
        #: Steps that overflowed although the scale could not shrink any more.
        self.floored_steps = make_variable("floored_steps", 0, "int64")

    def value(self) -> tf.Tensor:
        return tf.convert_to_tensor(raw_variable(self.scale))

    def after_good_step(self, replicas: Replicas) -> None:
        """Counts a finite step; the scale doubles at the end of a growth interval."""
        if not self.settings.dynamic:
            return
        scale, good = self.value(), tf.convert_to_tensor(raw_variable(self.good_steps)) + 1
        grows = good >= self.settings.growth_steps
        replicas.assign(self.scale, tf.where(grows, tf.minimum(scale * 2.0, self.settings.maximum), scale))
        replicas.assign(self.good_steps, tf.where(grows, tf.zeros_like(good), good))

    def after_bad_step(self, replicas: Replicas) -> None:
        """Counts a skipped step; the scale halves, down to its floor."""
        replicas.assign_add(self.skipped_steps, tf.constant(1, tf.int64))
        if not self.settings.dynamic:
            return
        scale = self.value()
        at_floor = scale <= self.settings.minimum
        self._say_at_floor(at_floor)
        replicas.assign_add(self.floored_steps, tf.cast(at_floor, tf.int64))
        replicas.assign(self.scale, tf.maximum(scale * 0.5, self.settings.minimum))
        replicas.assign(self.good_steps, tf.constant(0, tf.int64))

    def has_overflowed_at_floor(self) -> bool:
        return bool(tf.convert_to_tensor(raw_variable(self.floored_steps)) > 0)

    def floor_message(self) -> str:
        return (
            f"MPUOptimizer: gradients are not finite although the loss scale is at min_scale={self.settings.minimum}; "
            "this and later such steps are skipped. The loss or the data hold Inf or NaN, the learning rate is too "
            "high, or min_scale is."
        )

    def _say_at_floor(self, at_floor: tf.Tensor) -> None:
        """Says once that shrinking has come to an end. XLA cannot print: there, MPUMonitor says it."""
        if in_xla():
            return
        first = tf.logical_and(at_floor, tf.equal(raw_variable(self.floored_steps), 0))
        message = self.floor_message()
        tf.cond(first, lambda: _print(message), lambda: tf.constant(0))


def _print(message: str) -> tf.Tensor:
    printed = tf.print(message, output_stream=sys.stderr)
    with tf.control_dependencies([] if printed is None else [printed]):
        return tf.constant(0)
