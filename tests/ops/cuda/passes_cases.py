"""Tests of the passes in CUDA against the codec, bit for bit, wherever the fixture `passes` runs them.

emulation_test.py runs them on the CPU, device_test.py on a GPU.
"""

import ml_dtypes
import numpy as np
import pytest

from tests.ops.core import codec_cases as cases
from tf_epgc import _core

formats = pytest.mark.parametrize(
    "bits, rounding, scaling",
    [
        (bits, rounding, scaling)
        for bits in cases.BITS
        for rounding in (cases.ROUNDINGS if bits != 32 else ["nearest"])
        for scaling in cases.scalings(bits)
    ],
)
RANDOM = {"seed": 3, "step": 4, "stream": 5}
SIZES = (0, 1, 31, 32, 33, 127, 128, 1023, 1024, 1025, 2048, 5000)


def unpack_with_codec(packed, arrays, bits, scaling):
    return [
        array.view(like.dtype)
        for array, like in zip(
            _core.unpack(packed, [a.shape for a in arrays], [a.dtype.name for a in arrays], bits, scaling), arrays
        )
    ]


def check_round_trip(passes, arrays, shards, bits, rounding, scaling):
    packed = passes.pack(arrays, shards, bits, rounding, scaling, **RANDOM)
    expected = _core.pack(arrays, shards, bits, rounding, scaling, **RANDOM)
    np.testing.assert_array_equal(packed, expected)
    targets = [np.full_like(array, 7) for array in arrays]
    passes.unpack(packed, targets, bits, scaling)
    for actual, wanted in zip(targets, unpack_with_codec(packed, arrays, bits, scaling)):
        cases.assert_same_bits(actual, wanted)


@formats
def test_edges(passes, bits, rounding, scaling):
    """All exponents and everything beside half-way points: each kind of value alone, and together."""
    everything = cases.edge_values(bits)
    finite = everything[np.isfinite(everything)]
    for values in (everything, finite, finite[np.abs(finite) < 2**15], cases.random_patterns(20_000)):
        check_round_trip(passes, [values], 1, bits, rounding, scaling)
        quantized = passes.quantize(values, bits, rounding, scaling, **RANDOM)
        cases.assert_same_bits(quantized, _core.quantize(values, bits, rounding, scaling, **RANDOM))


@formats
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_sizes(passes, bits, rounding, scaling, dtype):
    for shards in (1, 3):
        for size in SIZES:
            check_round_trip(passes, [cases.gradients(size, dtype=dtype)], shards, bits, rounding, scaling)


@pytest.mark.parametrize("bits", cases.CODED_BITS)
@pytest.mark.parametrize("scaling", cases.SCALINGS)
def test_every_code_is_decoded(passes, bits, scaling):
    """Every code beside every other kind of group, and shifts that no encoder writes."""
    elements = 1 << 16
    layout = _core.shard_layout(elements, 1, bits, scaling)
    packed = np.random.default_rng(bits).integers(0, 2**32, (1, layout["shard_words"]), np.uint64).astype(np.uint32)
    codes = np.arange(elements, dtype=np.uint32) % (1 << bits)
    packed[:, layout["shift_words"] :] = _core_groups(codes, bits)
    for dtype in cases.DTYPES:
        target = np.empty(elements, dtype)
        passes.unpack(packed, [target], bits, scaling)
        cases.assert_same_bits(target, unpack_with_codec(packed, [target], bits, scaling)[0])


def _core_groups(codes, bits):
    """Returns the words of the groups that hold `codes`: section 2 of the wire format."""
    groups = codes.reshape(-1, 32)
    if bits == 16:
        return groups.astype(np.uint16).view(np.uint32).reshape(-1)
    words = [(groups >> (bits - 8)).astype(np.uint8).view(np.uint32)]
    for plane in range(bits - 9, -1, -1):
        words.append((((groups >> plane) & 1) << np.arange(32, dtype=np.uint32)).sum(1, dtype=np.uint32)[:, None])
    return np.concatenate(words, 1).reshape(-1)


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("bits", cases.BITS)
def test_every_16_bit_input(passes, bits, dtype):
    """All values of the 16-bit types, and as many of the others."""
    patterns = np.arange(1 << 16, dtype=np.uint16)
    if np.dtype(dtype).itemsize == 2:
        values = patterns.view(dtype)
    else:
        with np.errstate(invalid="ignore"):
            values = patterns.view(ml_dtypes.bfloat16).astype(np.float32).astype(dtype) * dtype(1.0000001)
    for scaling in cases.scalings(bits):
        check_round_trip(passes, [values], 1, bits, "nearest", scaling)


@formats
def test_reduce(passes, bits, rounding, scaling):
    for kind in (cases.gradients, cases.random_patterns):
        for count, size, scale in [(1, 32, 1.0), (2, 1024, 0.5), (3, 3200, 1 / 3), (8, 1056, 0.125), (5, 0, 1.0)]:
            rows = np.concatenate(
                [_core.pack([kind(size, seed)], 1, bits, "nearest", scaling) for seed in range(count)]
            )
            options = (size, bits, rounding, scaling, scale)
            actual, expected = passes.reduce(rows, *options, **RANDOM), _core.reduce(rows, *options, **RANDOM)
            if bits == 32:
                actual, expected = actual.view(np.float32), expected.view(np.float32)
            cases.assert_same_bits(actual, expected)


@pytest.mark.parametrize("bits", cases.BITS)
def test_reduce_keeps_the_sign_of_zero(passes, bits):
    rows = _core.pack([np.full(64, -0.0, np.float32)], 1, bits, "nearest", "none")
    for count in (1, 3):
        reduced = passes.reduce(np.repeat(rows, count, 0), 64, bits, "nearest", "none")
        np.testing.assert_array_equal(reduced, rows[0])


@pytest.mark.parametrize("bits", cases.BITS)
@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("offset", [0, 1, 2, 4, 8, 12, 16])
def test_alignments(passes, bits, dtype, offset):
    """Tensors at any byte, words at any word; nothing beside them is touched."""
    values = cases.gradients(3000, dtype=dtype)
    buffer = np.zeros(values.nbytes + 64, np.uint8)
    shifted = buffer[offset : offset + values.nbytes].view(dtype)
    shifted[:] = values
    for scaling in cases.scalings(bits):
        expected = _core.pack([values], 2, bits, "nearest", scaling)
        for word in range(4):
            guarded = np.full(expected.size + 16, 0xAAAAAAAA, np.uint32)
            packed = guarded[4 + word : 4 + word + expected.size].reshape(expected.shape)
            passes.pack([shifted], 2, bits, "nearest", scaling, out=packed)
            np.testing.assert_array_equal(packed, expected)
            assert np.all(guarded[: 4 + word] == 0xAAAAAAAA) and np.all(
                guarded[4 + word + expected.size :] == 0xAAAAAAAA
            )
            target = np.full(values.nbytes + 64, 0x55, np.uint8)
            inside = slice(offset + 16, offset + 16 + values.nbytes)
            passes.unpack(packed, [target[inside].view(dtype)], bits, scaling)
            cases.assert_same_bits(
                target[inside].copy().view(dtype), unpack_with_codec(expected, [values], bits, scaling)[0]
            )
            assert np.all(target[: offset + 16] == 0x55) and np.all(target[offset + 16 + values.nbytes :] == 0x55)
        result = passes.quantize(shifted, bits, "nearest", scaling, out=shifted)
        cases.assert_same_bits(result.copy(), _core.quantize(values, bits, "nearest", scaling))
        shifted[:] = values


#: Lists of (size, dtype), and how many launches they take: None for several.
MIXTURES = {
    "empty list": ([], 0),
    "only empties": ([(0, np.float32), (0, np.float16)], 0),
    "small among large": (
        [(1500, np.float32), (3, np.float64), (0, np.float32), (2000, np.float32), (7, np.float16)],
        1,
    ),
    "every type": ([(700, dtype) for dtype in cases.DTYPES] * 2, 1),
    "a full small table": ([(13, np.float32)] * 220, 1),
    "an empty one after a full small table": ([(1, np.float32)] * 220 + [(0, np.float32)], 1),
    "a large table": ([(13, np.float32), (0, np.float16)] * 221, 1),
    "several large tables": ([(5, np.float16), (2, np.float32)] * 1000, None),
    "blocks of scalars": ([(1, np.float32)] * 7000, None),
    "a large one after": ([(1, np.float32)] * 1900 + [(9000, np.float32)], None),
    "a large one before": ([(9000, np.float32)] + [(1, np.float32)] * 1900, None),
}


@pytest.mark.parametrize("mixture", MIXTURES)
@pytest.mark.parametrize("bits, scaling", [(8, "none"), (11, "block"), (16, "none")])
def test_many_tensors(passes, mixture, bits, scaling):
    """Tables of tensors, and how many launches they take."""
    sizes, launches = MIXTURES[mixture]
    arrays = [cases.gradients(size, seed, dtype) for seed, (size, dtype) in enumerate(sizes)]
    for shards in (1, 3):
        check_round_trip(passes, arrays, shards, bits, "stochastic", scaling)
        if passes.launches is not None:
            assert passes.launches == launches or (launches is None and passes.launches > 1)
