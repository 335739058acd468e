"""Batches that do not divide evenly: every example weighs the same, and an empty share does no harm.

The last global batch of a data set gives some replicas fewer rows than others, or none. Keras averages the loss over
each replica's rows and then over replicas, so that rows of a short share weigh more than in one process; and the mean
over no rows is NaN. Here a replica's gradients and batch statistics are weighted by its share of the rows, `rows *
replicas / all rows`, which is exactly 1 in an even batch. That is done in `fit` with Keras's own `train_step`. A step
of the user's own has its own idea of how losses are averaged, and is left alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence

import tensorflow as tf

from tf_epgc._tf_compat import is_tape_watching
from tf_epgc.exchange import is_sparse


@dataclasses.dataclass(frozen=True)
class ShareWeights:
    """What the local replicas' values of one step are worth.

    Args:
        weights: Of each local replica, float32 scalars.
    """

    weights: Sequence[tf.Tensor]

    def apply(self, value, replica: int):
        """A local replica's gradient, weighted."""
        if is_sparse(value):
            return tf.IndexedSlices(self._weighted(value.values, replica), value.indices, value.dense_shape)
        return self._weighted(value, replica)

    def _weighted(self, value: tf.Tensor, replica: int) -> tf.Tensor:
        """A branch for each value, so that an even batch costs no pass over memory and no value waits for another."""
        weight = self.weights[replica]
        return _either(weight != 1.0, lambda: _times_or_zero(value, weight), value)


def _either(condition, changed: Callable, value: tf.Tensor) -> tf.Tensor:
    if tf.executing_eagerly():
        return changed() if condition else value
    result = tf.cond(condition, changed, lambda: tf.identity(value))
    result.set_shape(value.shape)
    return result


def _times_or_zero(value: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """`value * weight`, and zero where the weight is zero, whatever the value."""
    return tf.math.multiply_no_nan(value, tf.cast(weight, value.dtype))


def weighing_statistics(fn: Callable) -> Callable:
    """`fn` with the replica's weight as a further first argument, for what replicas add up inside of the loss.

    The gradient of an all-reduce adds up the gradients of all replicas' losses, and the result becomes a part of this
    replica's gradient, which is weighted later. So each replica's part has to be weighted before it is added, and the
    sum freed of this replica's weight. Synchronized batch normalization needs it.
    """

    @tf.autograph.experimental.do_not_convert
    def replica_fn(weight, *args, **kwargs):
        with _weighted_all_reduces(tf.distribute.get_replica_context(), weight):
            return fn(*args, **kwargs)

    return replica_fn


@contextlib.contextmanager
def _weighted_all_reduces(context, weight: tf.Tensor):
    all_reduce = context.all_reduce

    def weighted(reduce_op, value, options=None):
        if not is_tape_watching():  # the optimizer's, or a gradient's own
            return all_reduce(reduce_op, value, options)
        inverse = tf.math.divide_no_nan(1.0, weight)
        free = tf.nest.map_structure(lambda v: _with_gradient_times(v, inverse), value)
        return tf.nest.map_structure(lambda v: _with_gradient_times(v, weight), all_reduce(reduce_op, free, options))

    context.all_reduce = weighted
    try:
        yield
    finally:
        del context.all_reduce


def _with_gradient_times(value, factor: tf.Tensor):
    """`value`, whose gradient is multiplied by a factor."""
    value = tf.convert_to_tensor(value)
    if not value.dtype.is_floating:
        return value

    @tf.custom_gradient
    def identity(x):
        return tf.identity(x), lambda gradient: _times_or_zero(gradient, factor)

    return identity(value)


def rows_of_shares(local_results: Callable, args: Sequence, replicas: int) -> list[tf.Tensor] | None:
    """Rows of each local replica's share, from the first argument that has rows.

    Args:
        local_results: `Strategy.experimental_local_results`.
        args: What `Strategy.run` was given.
        replicas: Number of local replicas.

    Returns:
        int32 scalars, or None if nothing has rows or all batches are known to have the same number.
    """
    for leaf in tf.nest.flatten(args, expand_composites=False):
        shares = local_results(leaf)
        if len(shares) != replicas or not all(isinstance(s, tf.Tensor) and s.shape.rank for s in shares):
            continue
        if not tf.executing_eagerly() and all(s.shape.rank is not None and s.shape[0] is not None for s in shares):
            return None
        return [tf.shape(share)[0] for share in shares]
    return None
