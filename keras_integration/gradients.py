"""What is done to gradients between the backward pass and the inner optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

import tf_epgc
from tf_epgc.keras_integration.replicas import merges

#: Dtypes in which sums, unscaling and updates lose too much.
NARROW_DTYPES = (tf.float16, tf.bfloat16)


def _map_values(fn: Callable, gradient):
    """`fn` of a tensor, or of the rows of `tf.IndexedSlices`."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(fn(gradient.values), gradient.indices, gradient.dense_shape)
    return fn(gradient)


def _values_of(gradient) -> tf.Tensor:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def widen(gradient):
    """A float16 or bfloat16 gradient as float32, so that a sum over replicas overflows no earlier than float32."""
    gradient = gradient if isinstance(gradient, tf.IndexedSlices) else tf.convert_to_tensor(gradient)
    return _map_values(lambda v: tf.cast(v, tf.float32) if v.dtype in NARROW_DTYPES else v, gradient)


def multiply(gradient, factor: tf.Tensor):
    return _map_values(lambda v: v * tf.cast(factor, v.dtype), gradient)


def exchange(gradients: Sequence) -> list:
    """Sums gradients over all replicas; called in every replica.

    Under `EPGCMirroredStrategy` they are marked as gradients, so that they travel in its format; under another strategy
    they travel as it sends them.

    Args:
        gradients: Tensors and `tf.IndexedSlices`.

    Returns:
        The sums, the same bits on every replica.
    """
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return list(gradients)
    if not merges():  # TensorFlow would merge replicas to gather rows
        gradients = [tf.convert_to_tensor(g) for g in gradients]
    options = tf_epgc.GradientOptions() if _is_epgc(context.strategy) else None
    return context.all_reduce(tf.distribute.ReduceOp.SUM, list(gradients), options=options)


def _is_epgc(strategy) -> bool:
    # Without the first condition every strategy would import what only ours needs.
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) and isinstance(
        strategy, tf_epgc.EPGCMirroredStrategy
    )


def all_finite(gradients: Sequence) -> tf.Tensor:
    """Whether no value is Inf or NaN: a boolean scalar."""
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(_values_of(g))) for g in gradients])


def shares(gradients: Sequence) -> tf.Tensor:
    """The shares of zeros and of non-finite values, and 1 for the step: a float32 vector of 3."""
    values = [_values_of(g) for g in gradients]
    total = tf.add_n([tf.size(v, tf.int64) for v in values])
    zeros = total - tf.add_n([tf.math.count_nonzero(v) for v in values])
    finite = tf.add_n([tf.math.count_nonzero(tf.math.is_finite(v)) for v in values])
    counts = tf.cast(tf.stack([zeros, total - finite]), tf.float64) / tf.cast(tf.maximum(total, 1), tf.float64)
    return tf.concat([tf.cast(counts, tf.float32), [1.0]], 0)
