"""Float32 masters of a model's narrower variables."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf_epgc.keras_integration.gradients import NARROW_DTYPES
from tf_epgc.keras_integration.replicas import Replicas, branch, raw_variable


class Masters:
    """Pairs of a model's variables and what the inner optimizer updates in their place.

    A plain object, in which neither library looks for variables: those of the model are not the optimizer's to save.

    Args:
        pairs: Variables and masters; the master of a wide variable is itself.
    """

    def __init__(self, pairs: Sequence):
        self._pairs = pairs
        self._by_id = {id(raw_variable(v)): m for v, m in pairs}

    def _narrow_pairs(self) -> list:
        return [(v, m) for v, m in self._pairs if m is not v]

    def of(self, variable):
        """The master of a variable the optimizer was built with.

        Raises:
            ValueError: If it was not.
        """
        master = self._by_id.get(id(raw_variable(variable)))
        if master is None:
            raise ValueError(
                f"MPUOptimizer does not know the variable {variable.name!r} of shape {variable.shape}: it was built "
                f"with {len(self._pairs)} others. Make a new optimizer, or build it with all variables at first."
            )
        return master

    def take_over_changes(self, replicas: Replicas) -> None:
        """Values that the variables were given since they were last rounded into become the masters'."""
        pairs = self._narrow_pairs()
        if not pairs:
            return

        def take_over():
            for variable, master in pairs:
                replicas.update(master, _take_over_changes, variable)

        # Rarely is there any: looking costs half of what taking over would.
        branch(tf.reduce_any([_differs(*pair) for pair in pairs]), take_over, lambda: None)

    def round_into_variables(self, replicas: Replicas) -> None:
        """Gives the variables their masters' values, to the nearest that their dtypes hold."""
        for variable, master in self._narrow_pairs():
            replicas.update(variable, lambda v, m: v.assign(tf.cast(m, v.dtype)), master)


def _differs(variable, master) -> tf.Tensor:
    value = tf.convert_to_tensor(raw_variable(variable))
    return tf.reduce_any(tf.not_equal(tf.cast(raw_variable(master), value.dtype), value))


def _take_over_changes(master, variable):
    is_same = tf.equal(tf.cast(master, variable.dtype), variable)
    return master.assign(tf.where(is_same, master, tf.cast(variable, master.dtype)))


def is_narrow(variable) -> bool:
    """Whether a variable needs a master."""
    return tf.as_dtype(getattr(variable, "true_dtype", variable.dtype)) in NARROW_DTYPES
