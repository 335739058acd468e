"""The codec on numpy arrays, without TensorFlow: what the strategy's operations compute, one phase a function.

An exchange between N replicas is `pack` on each, an all-to-all of the shards, `reduce` of the rows that each replica
received, an all-gather of the results, and `unpack` on each. `docs/wire_format.md` specifies every bit.

Arguments that several functions share:

* `bits`: 8, 9, 11, 16, or 32 for exact float32.
* `rounding`: `"truncate"`, `"nearest"` (ties to even) or `"stochastic"`; 32 bits ignore it.
* `scaling`: `"block"` (one power of two for 1024 values) or `"none"`; 32 bits allow `"none"` only.
* `seed`, `step`, `stream`: integers of up to 64 bits that the random words of stochastic rounding depend on. In an
  exchange, `stream` is `pack * 2 * N + replica` for `pack`, and `pack * 2 * N + N + shard` for `reduce`.
* `threads`: how many threads share the work. It does not change the result.

Arrays may be float32, float16, float64 or `ml_dtypes.bfloat16`, of any shape. Wrong values raise `ValueError`, wrong
types `TypeError`; `RuntimeError` means that the environment variable `EPGC_FORCE_ISA` names no instruction set of this
CPU.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np

from tf_epgc import _core

#: Values that share one scale with `scaling="block"`.
BLOCK_SIZE: int = _core.BLOCK_SIZE
#: Values that are coded together; a shard holds a multiple of it.
GROUP_SIZE: int = _core.GROUP_SIZE


def shard_layout(elements: int, shards: int, bits: int, scaling: str) -> dict[str, int]:
    """Returns how a pack is cut up.

    Args:
        elements: Values in the pack, of all its tensors.
        shards: Replicas that take part.
        bits: See the module.
        scaling: See the module.

    Returns:
        `shards`, `shard_elements` (values of each shard, padding included), `shard_blocks`, `shift_words` and
        `shard_words` (words of each shard, and how many of them hold shifts).

    Raises:
        ValueError: For negative `elements`, `shards` below 1, or unknown `bits` or `scaling`.

    >>> shard_layout(1000, 4, 11, "none")["shard_words"]
    88
    """
    return _core.shard_layout(
        _integer("elements", elements), _integer("shards", shards), _bits(bits), _name("scaling", scaling)
    )


def pack(
    tensors: Sequence[np.ndarray],
    shards: int,
    bits: int,
    rounding: str,
    scaling: str,
    *,
    seed: int = 0,
    step: int = 0,
    stream: int = 0,
    threads: int = 1,
) -> np.ndarray:
    """Encodes arrays, laid end to end, into one row of words for each replica.

    Args:
        tensors: The arrays, of any shapes and of several types at once.
        shards: Replicas that take part.
        bits: See the module, also for the rest.
        rounding: How values between two codes are rounded.
        scaling: Whether blocks are scaled.
        seed: Of stochastic rounding.
        step: The training step.
        stream: The replica's stream.
        threads: Threads to use.

    Returns:
        uint32 of shape `[shards, shard_words]`; row `r` is for replica `r`.

    Raises:
        TypeError: If an array is of another type than those of the module.
        ValueError: If another argument is out of range.
        RuntimeError: If `EPGC_FORCE_ISA` is wrong.

    >>> hex(pack([np.array([1.0, -2.0, 3.0], np.float32)], 1, 8, "nearest", "none")[0, 0])
    '0x42c03c'
    """
    arrays = [_contiguous(tensor) for tensor in tensors]
    return _core.pack(
        arrays,
        _integer("shards", shards),
        _bits(bits),
        _name("rounding", rounding),
        _name("scaling", scaling),
        **_random(seed, step, stream, threads),
    )


def reduce(
    rows: np.ndarray,
    shard_elements: int,
    bits: int,
    rounding: str,
    scaling: str,
    scale: float = 1.0,
    *,
    seed: int = 0,
    step: int = 0,
    stream: int = 0,
    threads: int = 1,
) -> np.ndarray:
    """Adds up encoded shards and encodes the sum.

    Args:
        rows: uint32 of shape `[replicas, shard_words]`, one encoded shard of each replica, in their order.
        shard_elements: Values of a shard, from `shard_layout`.
        bits: See the module, also for the rest.
        rounding: How values between two codes are rounded.
        scaling: Whether blocks are scaled.
        scale: What the float32 sum is multiplied by, 1 / replicas for a mean.
        seed: Of stochastic rounding.
        step: The training step.
        stream: The shard's stream.
        threads: Threads to use.

    Returns:
        uint32 of shape `[shard_words]`.

    Raises:
        TypeError: If `rows` are not uint32.
        ValueError: If their shape does not fit the other arguments, or one of those is out of range.
        RuntimeError: If `EPGC_FORCE_ISA` is wrong.
    """
    return _core.reduce(
        _contiguous(rows),
        _integer("shard_elements", shard_elements),
        _bits(bits),
        _name("rounding", rounding),
        _name("scaling", scaling),
        float(scale),
        **_random(seed, step, stream, threads),
    )


def unpack(
    packed: np.ndarray,
    shapes: Sequence[Sequence[int]],
    dtypes: Sequence[np.dtype | type | str],
    bits: int,
    scaling: str,
    *,
    threads: int = 1,
) -> list[np.ndarray]:
    """Decodes packed shards into arrays.

    Args:
        packed: uint32 of shape `[shards, shard_words]`.
        shapes: The shape of each array.
        dtypes: The type of each array; `"bfloat16"` needs the package ml_dtypes.
        bits: See the module, also for the rest.
        scaling: Whether blocks are scaled.
        threads: Threads to use.

    Returns:
        A new array for each shape.

    Raises:
        TypeError: If `packed` is not uint32 or a type cannot be decoded to.
        ValueError: If the shape of `packed` does not fit the other arguments, or one of those is out of range.
        RuntimeError: If `EPGC_FORCE_ISA` is wrong.
    """
    names = [_dtype_name(dtype) for dtype in dtypes]
    sizes = [tuple(_integer("a size in shapes", size) for size in shape) for shape in shapes]
    scaling, threads = _name("scaling", scaling), _integer("threads", threads)
    arrays = _core.unpack(_contiguous(packed), sizes, names, _bits(bits), scaling, threads=threads)
    return [_as_bfloat16(array) if name == "bfloat16" else array for array, name in zip(arrays, names, strict=True)]


def quantize(
    array: np.ndarray,
    bits: int,
    rounding: str,
    scaling: str,
    *,
    seed: int = 0,
    step: int = 0,
    stream: int = 0,
    threads: int = 1,
) -> np.ndarray:
    """Returns what is left of an array after encoding and decoding it, as a pack of one shard would carry it.

    Args:
        array: The values.
        bits: See the module, also for the rest.
        rounding: How values between two codes are rounded.
        scaling: Whether blocks are scaled.
        seed: Of stochastic rounding.
        step: The training step.
        stream: The replica's stream.
        threads: Threads to use.

    Returns:
        A new array of the same shape and type.

    Raises:
        TypeError: If `array` is of another type than those of the module.
        ValueError: If another argument is out of range.
        RuntimeError: If `EPGC_FORCE_ISA` is wrong.

    >>> quantize(np.array([1.0, 1.1, 1.2], np.float32), 8, "nearest", "none")
    array([1.  , 1.  , 1.25], dtype=float32)
    """
    rounding, scaling = _name("rounding", rounding), _name("scaling", scaling)
    return _core.quantize(_contiguous(array), _bits(bits), rounding, scaling, **_random(seed, step, stream, threads))


def active_isa() -> str:
    """Returns the instruction set that the codec uses, `"avx512"`, `"avx2"` or `"scalar"`.

    Raises:
        RuntimeError: If the environment variable `EPGC_FORCE_ISA` names one that this CPU cannot run.
    """
    return _core.active_isa()


def runnable_isas() -> list[str]:
    """Returns the instruction sets that this CPU can run, best first."""
    return _core.runnable_isas()


# --- Arguments ---


def _integer(name, value):
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r} is not an integer; pass an int.") from None


def _name(argument, value):
    if not isinstance(value, str):
        raise TypeError(f"{argument}={value!r} is not a string; pass one of the names in this module's description.")
    return value


def _bits(bits):
    bits = _integer("bits", bits)
    if not 0 <= bits <= 64:
        raise ValueError(f"bits is {bits}; choose 8, 9, 11, 16 or 32.")
    return bits


def _random(seed, step, stream, threads):
    """Returns the keyword arguments, negative ones as their 64-bit two's complement."""
    arguments = {"seed": seed, "step": step, "stream": stream}
    for name, value in arguments.items():
        value = _integer(name, value)
        if not -(2**63) <= value < 2**64:
            raise ValueError(f"{name}={value} does not fit into 64 bits; pass a smaller integer.")
        arguments[name] = value % 2**64
    return {**arguments, "threads": _integer("threads", threads)}


def _contiguous(array):
    """Returns the array, copied if its elements do not lie in order."""
    array = np.asarray(array)
    return array if array.flags.c_contiguous else array.copy(order="C")


def _dtype_name(dtype):
    return dtype if dtype == "bfloat16" else np.dtype(dtype).name


def _as_bfloat16(patterns):
    try:
        import ml_dtypes
    except ModuleNotFoundError:
        raise TypeError("bfloat16 arrays need the package ml_dtypes; install it or ask for float32.") from None
    return patterns.view(ml_dtypes.bfloat16)
