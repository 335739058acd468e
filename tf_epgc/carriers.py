"""Sending dtypes that TensorFlow's broadcast and all-gather lack, in one that they have: nothing is lost."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

#: What the collectives carry on every device.
_SENT = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)

#: For other dtypes, one that holds all their values.
_CAST = {
    tf.bfloat16: tf.float32,
    tf.bool: tf.int32,
    tf.int8: tf.int32,
    tf.int16: tf.int32,
    tf.uint8: tf.int32,
    tf.uint16: tf.int32,
    tf.uint32: tf.int64,
}

#: For those that none holds, one of half or all their bits.
_BITCAST = {tf.uint64: tf.int64, tf.complex64: tf.float32, tf.complex128: tf.float64}


def is_carried(dtype: tf.DType) -> bool:
    """Whether values of this dtype travel in another one."""
    return dtype not in _SENT


def to_carrier(value: tf.Tensor) -> tf.Tensor:
    """`value` in a dtype that can be sent; a complex one gets a last dimension of 2.

    Raises:
        TypeError: If there is none.
    """
    if value.dtype in _SENT:
        return value
    if value.dtype in _CAST:
        return tf.cast(value, _CAST[value.dtype])
    if value.dtype in _BITCAST:
        return tf.bitcast(value, _BITCAST[value.dtype])
    raise TypeError(
        f"Values of dtype {value.dtype.name} cannot be sent to other workers; use a floating, complex, integer or "
        "boolean dtype."
    )


def from_carrier(value: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """What `to_carrier` was given."""
    return tf.bitcast(value, dtype) if dtype in _BITCAST else tf.cast(value, dtype)


def gather_strings(gather: Callable, value, axis: int):
    """All-gathers strings as rows of bytes, as long as the longest of them.

    Args:
        gather: All-gathers a value with a part for each local replica along an axis.
        value: The strings: a tensor, or a value with a part for each local replica.
        axis: Of the strings along which they are joined.

    Returns:
        As `gather` returns it.
    """

    def on_each(fn, *values):
        return tf.nest.map_structure(fn, *values, expand_composites=True)

    lengths = gather(on_each(tf.strings.length, value), axis)
    longest = on_each(lambda n: tf.reduce_max(tf.concat([[1], tf.reshape(n, [-1])], 0)), lengths)
    coded = gather(on_each(_to_bytes, value, longest), axis)
    return on_each(_to_strings, coded, lengths)


def _to_bytes(strings: tf.Tensor, longest: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.io.decode_raw(strings, tf.uint8, fixed_length=longest), tf.int32)


def _to_strings(codes: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
    letters = tf.gather(tf.constant([bytes([i]) for i in range(256)]), codes)
    return tf.strings.substr(tf.strings.reduce_join(letters, -1), tf.zeros_like(lengths), lengths)
