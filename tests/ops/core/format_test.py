"""Single values: encoding and decoding of every format against the reference, exhaustively where that is possible."""

import functools

import ml_dtypes
import numpy as np
import pytest

from tests import reference
from tests.ops.core import codec_cases as cases
from tf_epgc import _core

every_format = pytest.mark.parametrize("bits", cases.BITS)
every_coded_format = pytest.mark.parametrize("bits", cases.CODED_BITS)
every_rounding = pytest.mark.parametrize("rounding", cases.ROUNDINGS)


@functools.cache
def expected_pack(kind, bits, rounding):
    return reference.pack([inputs(kind, bits)], 1, bits, rounding, "none", seed=7)


@functools.cache
def inputs(kind, bits):
    every_16_bits = np.arange(1 << 16).astype(np.uint16)
    return {
        "edges": lambda: cases.edge_values(bits),
        "random": lambda: cases.random_patterns(1 << 18),
        "float16": lambda: every_16_bits.view(np.float16),
        "bfloat16": lambda: every_16_bits.view(ml_dtypes.bfloat16),
        "float64": lambda: float64_edges(),
    }[kind]()


def float64_edges():
    """Returns float64 values at, and one float64 step beside, the half-way points between float32 values."""
    low = np.abs(cases.random_patterns(1 << 14, seed=3))
    low = low[np.isfinite(low)].astype(np.float64)
    middle = low + np.spacing(low.astype(np.float32)).astype(np.float64) / 2
    values = np.concatenate([middle, np.nextafter(middle, 0), np.nextafter(middle, np.inf), [1e300, 1e-300, np.inf]])
    return np.concatenate([values, -values, [np.nan]])


def encode(values, bits, rounding):
    """Returns the codes of float32 values, through the packed words."""
    words = _core.pack([values], 1, bits, rounding, "none")[0]
    return reference.unpack_groups(words, bits)[: len(values)]


def decode(codes, bits):
    """Returns the float32 values of codes; their number is a multiple of 32."""
    words = reference.pack_groups(codes.astype(np.uint32), bits)[None]
    return _core.unpack(words, [codes.shape], ["float32"], bits, "none")[0]


@every_rounding
@every_format
@pytest.mark.parametrize("kind", ["edges", "random", "float16", "bfloat16", "float64"])
def test_encode_matches_reference(isa, kind, bits, rounding):
    actual = _core.pack([inputs(kind, bits)], 1, bits, rounding, "none", seed=7)
    expected = expected_pack(kind, bits, rounding)
    if bits == 32:  # The payload of a NaN that comes from another type is nobody's business.
        actual, expected = actual.view(np.float32), expected.view(np.float32)
    cases.assert_same_bits(actual, expected)


@every_coded_format
def test_decode_of_every_code(isa, bits):
    codes = np.arange(1 << bits)
    cases.assert_same_bits(decode(codes, bits), reference.decode(codes, bits))


@every_coded_format
def test_every_isa_decodes_the_same_nans(isa, bits):
    codes = np.arange(1 << bits)
    decoded = cases.patterns(decode(codes, bits))
    _core.set_isa_for_test("scalar")
    np.testing.assert_array_equal(decoded, cases.patterns(decode(codes, bits)))


@every_coded_format
def test_codes_are_unique_and_come_back(isa, bits):
    decoded = decode(np.arange(1 << bits), bits)
    number = ~np.isnan(decoded)
    assert len(np.unique(cases.patterns(decoded[number]))) == number.sum()
    for rounding in ("truncate", "nearest"):
        np.testing.assert_array_equal(encode(decoded, bits, rounding)[number], np.arange(1 << bits)[number])


@every_coded_format
def test_decoded_nans_are_quiet(isa, bits):
    decoded = decode(np.arange(1 << bits), bits)
    nans = cases.patterns(decoded[np.isnan(decoded)])
    assert np.all(nans & 0x400000)
    assert len(nans) == (0 if bits == 9 else 2 * ((1 << (bits - 6)) - 1))


def test_32_bits_keep_every_pattern(isa):
    values = np.concatenate([cases.edge_values(16), cases.random_patterns(1 << 16)])
    packed = _core.pack([values], 1, 32, "nearest", "none")
    np.testing.assert_array_equal(packed[0, : len(values)], cases.patterns(values))
    unpacked = _core.unpack(packed, [values.shape], ["float32"], 32, "none")[0]
    np.testing.assert_array_equal(cases.patterns(unpacked), cases.patterns(values))


@every_rounding
@pytest.mark.parametrize(
    "bits, infinity, nan", [(8, 0x7C, 0x7E), (9, 0xFF, 0xFF), (11, 0x3E0, 0x3F0), (16, 0x7C00, 0x7E00)]
)
def test_special_values(isa, bits, infinity, nan, rounding):
    zeros_and_infinities = [0x00000000, 0x80000000, 0x7F800000, 0xFF800000]
    values = [*zeros_and_infinities, 0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001, 0x7FFFFFFF]
    sign = 1 << (bits - 1)
    expected = [0, sign, infinity, sign | infinity, nan, nan, nan, nan, nan]
    np.testing.assert_array_equal(encode(cases.floats(values), bits, rounding), expected)


@pytest.mark.parametrize("bits, largest", [(8, 57344.0), (11, 64512.0), (16, 65504.0)])
def test_overflow(isa, bits, largest):
    infinity = 0x7C00 >> (16 - bits)
    half_way = (largest + 65536.0) / 2
    below = np.nextafter(np.float32(half_way), np.float32(0))
    values = np.array([largest, below, half_way, 65535.996, 65536.0, 3e38, -half_way], np.float32)
    sign = 1 << (bits - 1)
    nearest = [infinity - 1, infinity - 1, infinity, infinity, infinity, infinity, sign | infinity]
    np.testing.assert_array_equal(encode(values, bits, "nearest"), nearest)
    truncated = [infinity - 1] * 4 + [infinity] * 2 + [sign | (infinity - 1)]
    np.testing.assert_array_equal(encode(values, bits, "truncate"), truncated)


def test_overflow_of_9_bits(isa):
    values = cases.floats([0x7F000000, 0x7F3FFFFF, 0x7F400000, 0x7F400001, 0x7F7FFFFF])  # around 1.5 * 2^127
    np.testing.assert_array_equal(encode(values, 9, "nearest"), [254, 254, 254, 255, 255])
    np.testing.assert_array_equal(encode(values, 9, "truncate"), [254] * 5)


@pytest.mark.parametrize("bits", [8, 11])
def test_rounds_once(isa, bits):
    """Just above a half-way point, but on it after rounding to binary16: rounding twice would go down."""
    mantissa = bits - 6
    above_tie = np.float32(1 + 2.0 ** -(mantissa + 1) + 2.0**-20)
    just_tie = np.float32(1 + 2.0 ** -(mantissa + 1))
    one = 15 << mantissa
    np.testing.assert_array_equal(encode(np.array([above_tie, just_tie]), bits, "nearest"), [one + 1, one])


def test_float64_is_rounded_to_float32_first(isa):
    """A float64 just above a half-way point of 8 bits is on it as a float32, and ties to even."""
    value = np.array([1 + 2.0**-3 + 2.0**-40])
    np.testing.assert_array_equal(encode(value, 8, "nearest"), [15 << 2])


@every_rounding
@every_coded_format
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_quantize_matches_reference(isa, bits, rounding, dtype):
    with np.errstate(all="ignore"):
        values = np.concatenate([cases.random_patterns(3000), cases.gradients(3000)]).astype(dtype)
    actual = _core.quantize(values, bits, rounding, "none", seed=11, step=5, stream=3)
    with np.errstate(all="ignore"):
        expected = reference.quantize(values, bits, rounding, "none", seed=11, step=5, stream=3)
    cases.assert_same_bits(actual, expected)


@pytest.mark.parametrize("dtype, nan", [("float16", 0x7E00), ("bfloat16", 0x7FC0)])
def test_narrow_outputs_round_once_and_overflow_to_infinity(isa, dtype, nan):
    values = np.concatenate([cases.edge_values(16), [np.float32(3.4e38)]])
    packed = _core.pack([values], 1, 32, "nearest", "none")
    actual = _core.unpack(packed, [values.shape], [dtype], 32, "none")[0].view(np.uint16)
    with np.errstate(all="ignore"):
        expected = values.astype(np.float16 if dtype == "float16" else ml_dtypes.bfloat16).view(np.uint16)
    np.testing.assert_array_equal(actual, np.where(np.isnan(values), nan, expected))
