"""Initial values of variables: what TensorFlow's broadcast from the first worker leaves to be done."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tf_epgc.carriers import from_carrier, to_carrier

#: The name of Keras 3's state of random layers, and how far apart replicas' seeds are.
_SEED_STATE = "seed_generator_state"
_SEED_DISTANCE = 1_000_003


class Carried:
    """An initial value that is broadcast in a dtype that can be.

    Args:
        initial_value: A tensor or what can be made one, or a function that returns it.
        dtype: Of the variable, or None for the value's own.
    """

    def __init__(self, initial_value, dtype):
        self._initial_value = initial_value
        self._dtype = dtype
        self.shape = None
        self._own_dtype = None

    def __call__(self):
        """The value to broadcast."""
        value = self._initial_value() if callable(self._initial_value) else self._initial_value
        # A value out of a checkpoint comes wrapped.
        value = tf.convert_to_tensor(getattr(value, "wrapped_value", value), self._dtype)
        self.shape, self._own_dtype = value.shape, value.dtype
        return to_carrier(value)

    def unwrap(self, value: tf.Tensor) -> tf.Tensor:
        """The broadcast value in its own dtype."""
        return from_carrier(value, self._own_dtype)


def with_own_seed(name: str | None, initial_value: Callable, replica: int) -> Callable:
    """Gives each replica's random layers a seed of its own: Keras 3 would drop the same units on all of them."""
    if name != _SEED_STATE or replica == 0:
        return initial_value

    def offset():
        state = initial_value()
        return state + tf.cast([_SEED_DISTANCE * replica, 0], state.dtype)

    return offset
