"""The compiled ops: loading them, and thin wrappers that take a `CodecConfig`."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Sequence

import tensorflow as tf

from tf_epgc.formats import CodecConfig

_REBUILD = "rebuild tf_epgc with `pip install --no-build-isolation --force-reinstall --no-deps .` in this environment"


def _build_info():
    try:
        from tf_epgc import _build_info as build_info
    except ImportError as e:
        raise ImportError(f"tf_epgc's compiled parts are not installed; {_REBUILD}.") from e
    return build_info


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _check_build(build_info) -> None:
    """Refuses a library of another TensorFlow before it is loaded: its C++ symbols change with every minor version."""
    if _minor(build_info.TF_VERSION) != _minor(tf.__version__):
        raise ImportError(
            f"tf_epgc's ops were built for TensorFlow {build_info.TF_VERSION}, but this is TensorFlow {tf.__version__}"
            f"; {_REBUILD}."
        )
    if not pathlib.Path(build_info.OP_LIBRARY).exists():
        raise ImportError(f"tf_epgc's op library {build_info.OP_LIBRARY} is missing; {_REBUILD}.")


@functools.cache
def library():
    """The module of the compiled ops, loaded at the first call.

    Raises:
        ImportError: The library is missing, was built for another TensorFlow, or cannot be loaded.
    """
    build_info = _build_info()
    _check_build(build_info)
    try:
        return tf.load_op_library(str(build_info.OP_LIBRARY))
    except (tf.errors.NotFoundError, tf.errors.AlreadyExistsError, tf.errors.InvalidArgumentError) as e:
        raise ImportError(
            f"tf_epgc's ops, built for TensorFlow {build_info.TF_VERSION}, cannot be loaded into TensorFlow "
            f"{tf.__version__}: {e.message}; if another copy of tf_epgc is loaded, use one copy only, else {_REBUILD}."
        ) from e


@tf.RegisterGradient("EpgcQuantize")
def _quantize_gradient(op, gradient):
    """Straight-through: rounding has a derivative of zero almost everywhere, which would stop all learning."""
    del op
    return gradient, None


def pack(tensors: Sequence[tf.Tensor], config: CodecConfig, shards: int, step=0, stream: int = 0) -> tf.Tensor:
    """Encodes tensors, laid end to end, into `shards` equal shards.

    Returns:
        int32 words of shape `[shards, words of a shard]` (docs/wire_format.md, section 3).
    """
    return library().epgc_pack(
        tensors=tensors,
        step=step,
        shards=shards,
        bits=config.bits,
        rounding=config.rounding,
        scaling=config.scaling,
        seed=config.seed,
        stream=stream,
    )


def reduce(rows: tf.Tensor, config: CodecConfig, scale: float = 1.0, step=0, stream: int = 0) -> tf.Tensor:
    """Decodes `[replicas, words]` rows of one shard, adds them in float32 in order, scales and encodes the sum.

    Returns:
        int32 words of shape `[1, words]`: a row of what all replicas gather.
    """
    return library().epgc_reduce(
        rows=rows,
        step=step,
        scale=scale,
        bits=config.bits,
        rounding=config.rounding,
        scaling=config.scaling,
        seed=config.seed,
        stream=stream,
    )


def unpack(codes: tf.Tensor, config: CodecConfig, like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Decodes `[shards, words]` into tensors of the shapes and dtypes of `like`, whose values are not read."""
    return library().epgc_unpack(codes=codes, like=like, bits=config.bits, scaling=config.scaling)


def _floating(tensor, argument: str) -> tf.Tensor:
    """`tensor` as a tensor of a dtype that the codec takes, or a TypeError."""
    tensor = tf.convert_to_tensor(tensor)
    if tensor.dtype not in (tf.float32, tf.float16, tf.bfloat16, tf.float64):
        raise TypeError(
            f"{argument} has dtype {tensor.dtype.name}; the codec takes float32, float16, bfloat16 and float64: "
            "cast it."
        )
    return tensor


def encode(tensor, bits: int = 11, rounding: str = "nearest", scaling: str | None = None, seed: int = 0, step=0):
    """Encodes one tensor into words as they travel.

    Args:
        tensor: float32, float16, bfloat16 or float64, of any shape.
        bits: 8, 9, 11, 16 or 32.
        rounding: `"truncate"`, `"nearest"` or `"stochastic"`.
        scaling: `"block"`, `"none"` or None for the format's default.
        seed: Of stochastic rounding.
        step: An integer or int64 scalar; together with `seed` it makes stochastic rounding reproducible.

    Returns:
        An int32 tensor of shape `[words]`.

    Raises:
        ValueError: For settings that are not supported.
        TypeError: If the tensor is not floating.

    Example:

    >>> codes = tf_epgc.encode([1.0, 2.5, -3.1], bits=8)
    >>> tf_epgc.decode(codes, shape=[3], bits=8).numpy()
    array([ 1. ,  2.5, -3. ], dtype=float32)
    """
    config = CodecConfig(bits, rounding, scaling, seed)
    return pack([_floating(tensor, "tensor")], config, shards=1, step=step)[0]


def decode(codes, shape, bits: int = 11, scaling: str | None = None, dtype=tf.float32) -> tf.Tensor:
    """Decodes what `encode` made.

    Args:
        codes: int32 words of shape `[words]`.
        shape: Of the encoded tensor.
        bits: As in `encode`.
        scaling: As in `encode`.
        dtype: Of the result: float32, float16, bfloat16 or float64.

    Returns:
        A tensor of `shape` and `dtype`.

    Raises:
        ValueError: For settings that are not supported.
        tf.errors.InvalidArgumentError: If `codes` has another number of words than `shape` needs.
    """
    codes = tf.convert_to_tensor(codes, tf.int32)
    like = _floating(tf.zeros(shape, dtype), "dtype")
    return unpack(codes[tf.newaxis], CodecConfig(bits, scaling=scaling), [like])[0]


def quantize(x, bits: int = 11, rounding: str = "nearest", scaling: str | None = None, seed: int = 0, step=0):
    """Rounds every value to one that the format holds: what `decode(encode(x))` gives, in one pass.

    With `bits=9, rounding="truncate"` this is the published simulation: all mantissa bits become zero. The gradient is
    passed straight through.

    Args:
        x: A floating tensor.
        bits: 8, 9, 11, 16, or 32, which returns `x`.
        rounding: As in `encode`.
        scaling: As in `encode`.
        seed: As in `encode`.
        step: As in `encode`.

    Returns:
        A tensor like `x`.

    Raises:
        ValueError: For settings that are not supported.
        TypeError: If `x` is not floating.
    """
    return quantize_with(_floating(x, "x"), CodecConfig(bits, rounding, scaling, seed), step)


def quantize_with(x: tf.Tensor, config: CodecConfig, step=0, stream: int = 0) -> tf.Tensor:
    """`quantize` for a `CodecConfig` and a stream of random numbers."""
    if config.is_exact:
        return tf.identity(x)
    return library().epgc_quantize(
        x=x,
        step=step,
        bits=config.bits,
        rounding=config.rounding,
        scaling=config.scaling,
        seed=config.seed,
        stream=stream,
    )
