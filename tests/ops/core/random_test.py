"""Stochastic rounding: its random words, that it is unbiased, and that streams have nothing to do with each other.

That every bit follows from seed, step, stream and index is tested against the reference wherever packs are.
"""

import numpy as np
import pytest

from tests import reference
from tests.ops.core import codec_cases as cases
from tf_epgc import _core

SIZE = 1 << 18


def rounded_up(values, bits, **random):
    """Returns which values stochastic rounding moved away from zero, beyond truncation."""
    stochastic = _core.quantize(values, bits, "stochastic", "none", **random)
    truncated = _core.quantize(values, bits, "truncate", "none")
    return np.abs(stochastic) > np.abs(truncated)


def correlation(a, b):
    return abs(np.corrcoef(a.astype(np.float64), b.astype(np.float64))[0, 1])


@pytest.mark.parametrize("bits", cases.CODED_BITS)
def test_only_neighbours(isa, bits):
    values = np.concatenate([cases.gradients(5000), cases.edge_values(bits)[:50_000]])
    values = values[np.isfinite(values) & (np.abs(values) < 57344)]
    stochastic = np.abs(_core.quantize(values, bits, "stochastic", "none", seed=1).astype(np.float64))
    lower = np.abs(_core.quantize(values, bits, "truncate", "none").astype(np.float64))
    table = reference.magnitudes(bits)
    upper = table[np.searchsorted(table, lower) + 1]
    assert np.all((stochastic == lower) | ((stochastic == upper) & (lower != np.abs(values))))


@pytest.mark.parametrize("bits", cases.CODED_BITS)
@pytest.mark.parametrize("fraction", [1 / 64, 0.25, 0.5, 0.75, 63 / 64])
def test_unbiased(isa, bits, fraction):
    """The mean of many roundings is the value; 5 standard deviations of the mean are allowed."""
    gap = 2.0 ** -(bits - 6) if bits != 9 else 1.0
    for base, unit in [(1.0, gap), (-1.0, -gap)]:
        value = np.full(SIZE, base + fraction * unit, np.float32)
        up = rounded_up(value, bits, seed=4).mean()
        assert abs(up - fraction) < 5 * np.sqrt(fraction * (1 - fraction) / SIZE)


@pytest.mark.parametrize("bits, smallest", [(8, 2.0**-16), (9, 2.0**-126), (11, 2.0**-19), (16, 2.0**-24)])
def test_unbiased_below_the_smallest_code(isa, bits, smallest):
    for fraction in (2.0**-5, 0.3):
        up = rounded_up(np.full(SIZE, smallest * fraction, np.float32), bits, seed=6).mean()
        assert abs(up - fraction) < 5 * np.sqrt(fraction * (1 - fraction) / SIZE)


def test_representable_values_stay(isa):
    for bits in cases.CODED_BITS:
        codes = np.arange(1 << (bits - 1)).astype(np.uint32)
        values = reference.decode(codes, bits)
        values = values[~np.isnan(values)]
        np.testing.assert_array_equal(_core.quantize(values, bits, "stochastic", "none", seed=1), values)


@pytest.mark.parametrize("change", [{"seed": 1}, {"step": 1}, {"stream": 1}, {"seed": 2**63}, {"step": 2**40}])
def test_streams_are_uncorrelated(isa, change):
    halves = np.full(SIZE, 1.5, np.float32)
    first = rounded_up(halves, 9, **{"seed": 0, "step": 0, "stream": 0})
    second = rounded_up(halves, 9, **{"seed": 0, "step": 0, "stream": 0, **change})
    assert correlation(first, second) < 5 / np.sqrt(SIZE)
    np.testing.assert_array_equal(first, rounded_up(halves, 9))


def test_elements_are_uncorrelated(isa):
    up = rounded_up(np.full(SIZE, 1.5, np.float32), 9, seed=3)
    for lag in (1, 2, 3, 8, 16, 32, 1024):
        assert correlation(up[:-lag], up[lag:]) < 5 / np.sqrt(SIZE - lag)


def test_neighbouring_streams_of_an_exchange_average_out(isa):
    """What N replicas make of one value: the variance of the mean falls as 1/N if their streams are independent."""
    replicas = 16
    halves = np.full(SIZE >> 4, 1.5, np.float32)
    ups = np.stack([rounded_up(halves, 9, seed=1, step=7, stream=replica) for replica in range(replicas)])
    variance = ups.mean(axis=0).var()
    assert abs(variance * replicas / 0.25 - 1) < 0.1


def test_random_words_look_random():
    """The reference's words, which the codec follows: every bit is set half the time and none copies another."""
    words = reference.random_words(0, SIZE, seed=12, step=34, stream=56)
    bits = np.unpackbits(words.view(np.uint8).reshape(-1, 4), axis=1).astype(np.float64)
    assert np.all(np.abs(bits.mean(axis=0) - 0.5) < 5 * 0.5 / np.sqrt(SIZE))
    together = np.corrcoef(bits.T) - np.eye(32)
    assert np.abs(together).max() < 5.5 / np.sqrt(SIZE)


def test_high_half_of_the_index_counts():
    low = reference.random_words(0, SIZE)
    high = reference.random_words(1 << 32, SIZE)
    assert np.mean(low == high) < 1e-4
    assert correlation(low >> np.uint32(31), high >> np.uint32(31)) < 5 / np.sqrt(SIZE)
