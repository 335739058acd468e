"""The reduction of encoded shards, and the whole exchange."""

import functools

import numpy as np
import pytest

from tests import reference
from tests.ops.core import codec_cases as cases
from tf_epgc import _core

formats_and_scalings = pytest.mark.parametrize(
    "bits, scaling", [(bits, scaling) for bits in cases.BITS for scaling in cases.scalings(bits)]
)
every_rounding = pytest.mark.parametrize("rounding", cases.ROUNDINGS)


@functools.cache
def rows_of(kind, count, size, bits, scaling):
    """Returns `count` encoded shards of `size` values."""
    make = {"gradients": cases.gradients, "patterns": cases.random_patterns}[kind]
    rows = [reference.pack([make(size, seed)], 1, bits, "nearest", scaling)[0] for seed in range(count)]
    return np.stack(rows)


def same_sums(actual, expected, bits):
    """The payload of a sum's NaN is nobody's business; only 32 bits would carry it."""
    if bits == 32:
        actual, expected = actual.view(np.float32), expected.view(np.float32)
    cases.assert_same_bits(actual, expected)


@formats_and_scalings
@every_rounding
@pytest.mark.parametrize("kind", ["gradients", "patterns"])
def test_matches_reference(isa, bits, scaling, rounding, kind):
    for count, size, scale in [(1, 32, 1.0), (2, 1024, 0.5), (3, 3200, 1 / 3), (8, 1056, 0.125)]:
        rows = rows_of(kind, count, size, bits, scaling)
        options = (size, bits, rounding, scaling, scale)
        actual = _core.reduce(rows, *options, seed=3, step=4, stream=5)
        same_sums(actual, reference.reduce(rows, *options, seed=3, step=4, stream=5), bits)


@formats_and_scalings
def test_threads_and_ranges_do_not_matter(isa, bits, scaling):
    rows = rows_of("gradients", 3, 9984, bits, scaling)
    options = (9984, bits, "stochastic", scaling, 1 / 3)
    whole = _core.reduce(rows, *options, seed=1)
    for threads in (2, 3, 50):
        np.testing.assert_array_equal(_core.reduce(rows, *options, seed=1, threads=threads), whole)
    pieces = np.full_like(whole, 0xAAAAAAAA)
    for block in (3, 9, 0, 1, 8, 7, 2, 5, 6, 4):
        _core.reduce(rows, *options, seed=1, out=pieces, blocks=(block, block + 1))
    np.testing.assert_array_equal(pieces, whole)


@pytest.mark.parametrize("bits", cases.CODED_BITS)
@every_rounding
def test_one_row_is_passed_on(isa, bits, rounding):
    """Coding what has been coded changes nothing, with any rounding (a block's shift may, where its largest rose)."""
    rows = rows_of("gradients", 1, 2048, bits, "none")
    np.testing.assert_array_equal(_core.reduce(rows, 2048, bits, rounding, "none"), rows[0])


def test_the_order_of_the_rows_counts(isa):
    """Float32 sums depend on it: (1e8 + 1) - 1e8 is 0, (1e8 - 1e8) + 1 is not."""
    rows = [np.full((1, 32), value, np.float32).view(np.uint32) for value in (1e8, 1.0, -1e8)]
    forward = _core.reduce(np.concatenate(rows), 32, 32, "nearest", "none")
    other = _core.reduce(np.concatenate([rows[0], rows[2], rows[1]]), 32, 32, "nearest", "none")
    assert np.all(forward.view(np.float32) == 0) and np.all(other.view(np.float32) == 1)


def test_negative_zero_survives(isa):
    for bits in cases.BITS:
        row = _core.pack([np.full(32, -0.0, np.float32)], 1, bits, "nearest", "none")
        for count in (1, 3):
            np.testing.assert_array_equal(
                _core.reduce(np.repeat(row, count, axis=0), 32, bits, "nearest", "none"), row[0]
            )


@pytest.mark.parametrize("bits", cases.CODED_BITS)
@pytest.mark.parametrize("scaling", cases.SCALINGS)
def test_non_finite_values_reach_the_result(isa, bits, scaling):
    def row(special):
        values = cases.gradients(64)
        values[: len(special)] = special
        return _core.pack([values], 1, bits, "nearest", scaling)

    rows = np.concatenate([row([np.inf, np.inf, 1.0, np.nan, -np.inf]), row([1.0, -np.inf, np.nan, np.nan, -1.0])])
    reduced = _core.reduce(rows, 64, bits, "nearest", scaling)
    decoded = _core.unpack(reduced[None], [(64,)], ["float32"], bits, scaling)[0]
    nan = np.inf if bits == 9 else np.nan
    np.testing.assert_array_equal(decoded[:5], [np.inf, nan, nan, nan, -np.inf])
    assert np.isfinite(decoded[5:]).all()


@pytest.mark.parametrize("bits", [8, 11, 16])
def test_sums_overflow_to_infinity_without_scaling_and_not_with_it(isa, bits):
    for scaling, overflows in [("none", True), ("block", False)]:
        row = _core.pack([np.full(32, 40000.0, np.float32)], 1, bits, "nearest", scaling)
        reduced = _core.reduce(np.repeat(row, 2, axis=0), 32, bits, "nearest", scaling)
        decoded = _core.unpack(reduced[None], [(32,)], ["float32"], bits, scaling)[0]
        assert np.all(np.isinf(decoded) == overflows)


def test_products_and_sums_are_rounded_one_by_one(isa):
    """A fused multiply-add would give other bits: here 2^-s times the code has a half in its last place."""
    rng = np.random.default_rng(0)
    codes = rng.integers(1, 64, (4, 1024), np.uint32) | rng.integers(0, 2, (4, 1024), np.uint32) << np.uint32(15)
    shift = np.array([126, 0, 0, 0], np.int8).view(np.uint32)
    rows = np.stack([np.concatenate([shift, reference.pack_groups(row, 16)]) for row in codes])
    expected = reference.reduce(rows, 1024, 16, "nearest", "block")
    np.testing.assert_array_equal(_core.reduce(rows, 1024, 16, "nearest", "block"), expected)

    values = [reference.decode(row, 16).astype(np.float64) * 2.0**-126 for row in codes]
    fused = values[0].astype(np.float32)
    for row in values[1:]:
        fused = (fused.astype(np.float64) + row).astype(np.float32)
    assert np.any(reference.pack([fused], 1, 16, "nearest", "block")[0] != expected), "the test would not notice"


@formats_and_scalings
@every_rounding
def test_exchange_of_replicas(isa, bits, scaling, rounding):
    shapes = [(700,), (3, 5), (), (0, 2), (1500,)]
    for replicas in (1, 2, 5):
        inputs = [
            [cases.gradients(int(np.prod(shape)), 10 * r + i).reshape(shape) for i, shape in enumerate(shapes)]
            for r in range(replicas)
        ]
        options = (bits, rounding, scaling)
        random = {"seed": 2, "step": 9}
        sent = [
            _core.pack(tensors, replicas, *options, stream=3 * 2 * replicas + r, **random)
            for r, tensors in enumerate(inputs)
        ]
        size = _core.shard_layout(2216, replicas, bits, scaling)["shard_elements"]
        reduced = [
            _core.reduce(
                np.stack([row[r] for row in sent]),
                size,
                *options,
                scale=1 / replicas,
                stream=3 * 2 * replicas + replicas + r,
                **random,
            )
            for r in range(replicas)
        ]
        actual = _core.unpack(np.stack(reduced), shapes, ["float32"] * len(shapes), bits, scaling)
        expected = reference.exchange(inputs, *options, scale=1 / replicas, pack_number=3, **random)
        for one, other in zip(actual, expected, strict=True):
            cases.assert_same_bits(one, other)
