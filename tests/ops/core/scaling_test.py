"""Block scaling: the shift of each block, and blocks that have none."""

import numpy as np
import pytest

from tests import reference
from tests.ops.core import codec_cases as cases
from tf_epgc import _core

every_scaled_format = pytest.mark.parametrize("bits", cases.CODED_BITS)
every_rounding = pytest.mark.parametrize("rounding", cases.ROUNDINGS)


def shift_of_block(values, bits=8):
    """Returns the shift of a pack of one block."""
    word = _core.pack([np.asarray(values, np.float32)], 1, bits, "nearest", "block")[0, 0]
    shift, *padding = np.array([word], np.uint32).view(np.int8).tolist()
    assert padding == [0, 0, 0]
    return shift


def check(values, bits, rounding="nearest"):
    """Compares pack, unpack and quantize with the reference."""
    values = np.asarray(values, np.float32)
    packed = _core.pack([values], 1, bits, rounding, "block", seed=2)
    np.testing.assert_array_equal(packed, reference.pack([values], 1, bits, rounding, "block", seed=2))
    unpacked = _core.unpack(packed, [values.shape], ["float32"], bits, "block")[0]
    cases.assert_same_bits(unpacked, reference.unpack(packed, [values.shape], [np.float32], bits, "block")[0])
    cases.assert_same_bits(_core.quantize(values, bits, rounding, "block", seed=2), unpacked)
    return unpacked


@every_rounding
@every_scaled_format
def test_blocks_of_every_magnitude(isa, bits, rounding):
    """One block for each exponent that a float32 can have, each with values far below its largest."""
    small = cases.gradients(1024) * np.float32(100)
    blocks = [np.ldexp(small, exponent) for exponent in range(-160, 129)]
    with np.errstate(all="ignore"):
        check(np.concatenate(blocks), bits, rounding)


@every_rounding
@every_scaled_format
def test_blocks_of_all_patterns(isa, bits, rounding):
    check(cases.random_patterns(1 << 15), bits, rounding)
    check(cases.edge_values(8)[:50_000], bits, rounding)


@pytest.mark.parametrize(
    "largest, shift",
    [
        (1.0, 14),
        (np.nextafter(np.float32(2), np.float32(0)), 14),
        (2.0, 13),
        (-2.0, 13),
        (16384.0, 0),
        (2.0**127, -113),
        (np.finfo(np.float32).max, -113),
        (2.0**-112, 126),
        (2.0**-113, 126),
        (2.0**-126, 126),
        (2.0**-149, 126),
        (0.0, 0),
        (np.inf, 0),
        (np.nan, 0),
    ],
)
def test_shift(isa, largest, shift):
    assert shift_of_block([largest]) == shift
    for position in (0, 31, 500, 1023):
        block = np.zeros(1024, np.float32)
        block[position] = largest
        assert shift_of_block(block) == shift


def test_non_finite_values_have_no_say(isa):
    block = cases.gradients(1024)
    expected = shift_of_block(block)
    for position, intruder in [(0, np.inf), (17, -np.inf), (500, np.nan), (1023, -np.nan)]:
        block[position] = intruder
    assert shift_of_block(block) == expected
    decoded = check(block, 11)
    assert np.isposinf(decoded[0]) and np.isneginf(decoded[17]) and np.isnan(decoded[[500, 1023]]).all()
    assert np.isfinite(np.delete(decoded, [0, 17, 500, 1023])).all()


@every_scaled_format
@pytest.mark.parametrize("value", [0.0, -0.0, np.inf, -np.inf, np.nan])
def test_uniform_blocks(isa, bits, value):
    decoded = check(np.full(2100, value, np.float32), bits)
    expected = np.inf if bits == 9 and np.isnan(value) else value
    cases.assert_same_bits(decoded, np.full(2100, expected, np.float32))


@every_rounding
@every_scaled_format
def test_no_finite_value_becomes_infinite(isa, bits, rounding):
    largest = np.full(1024, np.finfo(np.float32).max, np.float32)
    for exponent in range(-252, 0, 7):
        assert np.isfinite(_core.quantize(np.ldexp(largest, exponent), bits, rounding, "block")).all()


@every_scaled_format
def test_a_value_that_rounds_to_2_to_the_128_decodes_to_infinity(isa, bits):
    largest = np.full(32, np.finfo(np.float32).max, np.float32)
    assert np.isinf(check(largest, bits, "nearest")).all()
    assert np.isfinite(check(largest, bits, "truncate")).all()


def test_shifts_lie_before_the_groups_and_are_padded(isa):
    values = np.ldexp(np.ones(5 * 1024, np.float32), np.repeat(np.arange(5), 1024))
    packed = _core.pack([values], 1, 8, "nearest", "block", out=np.full((1, 2 + 5 * 256), 0xAAAAAAAA, np.uint32))
    np.testing.assert_array_equal(packed[0, :2].view(np.int8), [14, 13, 12, 11, 10, 0, 0, 0])


def test_each_shard_counts_its_own_blocks(isa):
    values = np.concatenate([np.full(1600, 1.0), np.full(1600, 4.0)]).astype(np.float32)
    packed = _core.pack([values], 2, 8, "nearest", "block")
    np.testing.assert_array_equal(packed[:, 0].copy().view(np.int8).reshape(2, 4), [[14, 14, 0, 0], [12, 12, 0, 0]])


@every_scaled_format
def test_invalid_shifts_decode_to_something(isa, bits):
    """Bytes that no encoder writes are cut to the range, on every instruction set alike."""
    packed = _core.pack([cases.gradients(1024)], 1, bits, "nearest", "block")
    for invalid, valid in [(-128, -113), (-114, -113), (127, 126)]:
        decoded = []
        for shift in (invalid, valid):
            packed[0, 0] = np.array([shift, 0, 0, 0], np.int8).view(np.uint32)[0]
            decoded.append(_core.unpack(packed, [(1024,)], ["float32"], bits, "block")[0])
        cases.assert_same_bits(*decoded)
