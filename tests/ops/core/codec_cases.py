"""What the tests of the codec share: formats, inputs at the edges, comparisons."""

import functools

import ml_dtypes
import numpy as np

BITS = (8, 9, 11, 16, 32)
CODED_BITS = (8, 9, 11, 16)
ROUNDINGS = ("truncate", "nearest", "stochastic")
SCALINGS = ("none", "block")
DTYPES = (np.float32, np.float16, np.float64, ml_dtypes.bfloat16)

#: Mantissa bits of float32 that a format drops from normal numbers.
DROPPED = {8: 21, 9: 23, 11: 18, 16: 13}


def scalings(bits):
    return ("none",) if bits == 32 else SCALINGS


def floats(patterns):
    return np.asarray(patterns, np.uint32).view(np.float32)


def patterns(values):
    return np.ascontiguousarray(values, np.float32).view(np.uint32)


def _edge_mantissas(dropped):
    """Returns mantissas at and beside every half-way point, and with one bit or a run of bits set."""
    kept = np.arange(1 << (23 - dropped), dtype=np.int64)
    kept = kept if len(kept) <= 32 else np.concatenate([kept[:8], kept[-8:], kept[:: len(kept) // 16]])
    half_way = [(kept << dropped) + (1 << (dropped - 1)) + delta for delta in (-1, 0, 1)]
    beside = [(kept << dropped) + delta for delta in (-1, 0, 1)]
    single = 1 << np.arange(23, dtype=np.int64)
    mantissas = np.concatenate([*half_way, *beside, single - 1, single, single + 1, 0x7FFFFF - single, [0x7FFFFF]])
    return np.unique(np.clip(mantissas, 0, 0x7FFFFF))


@functools.cache
def edge_values(bits):
    """Returns float32 values of every exponent and both signs around all that rounding can trip over."""
    mantissas = _edge_mantissas(DROPPED.get(bits, 13))
    magnitudes = (np.arange(256, dtype=np.int64)[:, None] << 23 | mantissas).reshape(-1)
    return floats(np.concatenate([magnitudes, magnitudes | 1 << 31]).astype(np.uint32))


@functools.cache
def random_patterns(size, seed=0):
    """Returns float32 values of all kinds, NaNs included."""
    return floats(np.random.default_rng(seed).integers(0, 2**32, size, np.uint64).astype(np.uint32))


def gradients(size, seed=0, dtype=np.float32):
    """Returns values as training has them."""
    return (np.random.default_rng(seed).standard_normal(size) * 1e-3).astype(dtype)


def assert_same_bits(actual, expected):
    """Compares bit for bit, except that one NaN is as good as another."""
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    unsigned = np.dtype(f"u{actual.dtype.itemsize}")
    same = actual.reshape(-1).view(unsigned) == expected.reshape(-1).view(unsigned)
    if actual.dtype.kind in "fV":
        same |= np.isnan(actual.reshape(-1)) & np.isnan(expected.reshape(-1))
    wrong = np.flatnonzero(~same)
    assert not len(wrong), (
        f"{len(wrong)} of {len(same)} differ, the first at {wrong[0]}: "
        f"{actual.reshape(-1)[wrong[0]]!r} instead of {expected.reshape(-1)[wrong[0]]!r}"
    )
