"""Telling gradients, which are coded, from everything else that is all-reduced, which travels exactly.

The rule: values are gradients if the call is marked with `GradientOptions`; without a mark, if it is a SUM of floating
values into variables, or of floating values whose shapes are, counted, all shapes of trainable variables. A lone value
that could as well be a statistic over channels, of shape (1, .., 1, C), stays exact.
"""

from __future__ import annotations

import collections
import weakref
from collections.abc import Sequence

import tensorflow as tf

from tf_epgc._tf_compat import DistributedVariable
from tf_epgc.exchange import is_sparse

#: A shape as far as it matters here: a sparse gradient's number of rows is its variable's, known or not.
_ANY_ROWS = -1


class TrainableVariables:
    """The trainable variables made under a strategy, as long as they live."""

    def __init__(self):
        self._references: list[weakref.ref] = []

    def add(self, variable) -> None:
        self._references.append(weakref.ref(variable))

    def alive(self) -> list:
        """The variables that still exist, in the order of their creation."""
        self._references = [r for r in self._references if r() is not None]
        return [v for v in (r() for r in self._references) if v is not None]

    def cover(self, values: Sequence) -> bool:
        """Whether every value's shape is that of a trainable variable, none more often than such variables."""
        shapes = [tuple(v.shape) for v in self.alive() if v.shape.is_fully_defined()]
        dense = collections.Counter(shapes)
        sparse = collections.Counter((_ANY_ROWS, *shape[1:]) for shape in shapes if shape)
        for value in values:
            shape, available = _shape_of(value), sparse if is_sparse(value) else dense
            if shape is None or available[shape] == 0:
                return False
            available[shape] -= 1
        return True


def _shape_of(value) -> tuple | None:
    """The shape to look up, or None if it is not known."""
    shape = value.values.shape if is_sparse(value) else value.shape
    if shape.rank is None:
        return None
    dims = shape.as_list()
    if is_sparse(value):
        dims[0] = _ANY_ROWS
    return None if None in dims else tuple(dims)


def _could_be_channel_statistic(values: Sequence) -> bool:
    """A lone (1, .., 1, C): synchronized batch normalization reduces its moments one by one in that shape."""
    if len(values) != 1 or is_sparse(values[0]):
        return False
    shape = _shape_of(values[0])
    return shape is not None and len(shape) > 1 and all(d == 1 for d in shape[:-1])


def are_gradients(
    reduce_op: tf.distribute.ReduceOp, values: Sequence, trainable: TrainableVariables, destinations: Sequence = ()
) -> bool:
    """Whether an unmarked all-reduce carries gradients.

    Args:
        reduce_op: Of the call.
        values: One replica's, tensors or `tf.IndexedSlices`.
        trainable: The strategy's trainable variables.
        destinations: Where the results go, if the call says so.

    Returns:
        True if they are surely gradients; what is undecided is not.
    """
    if reduce_op != tf.distribute.ReduceOp.SUM or not values:
        return False
    if not all(hasattr(v, "dtype") and v.dtype.is_floating for v in values):
        return False
    if destinations and all(isinstance(d, DistributedVariable) and d.trainable for d in destinations):
        return True
    return not _could_be_channel_statistic(values) and trainable.cover(values)
