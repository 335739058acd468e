"""Whole packs: shards, blocks, tensors that share a block, ranges, threads, and indices above 2^31."""

import ml_dtypes
import numpy as np
import pytest

from tests import reference
from tests.ops.core import codec_cases as cases
from tf_epgc import _core

every_format = pytest.mark.parametrize("bits", cases.BITS)
formats_and_scalings = pytest.mark.parametrize(
    "bits, scaling", [(bits, scaling) for bits in cases.BITS for scaling in cases.scalings(bits)]
)

SIZES = (0, 1, 31, 32, 33, 1023, 1024, 1025, 2048, 5000)

#: Lists of (size, dtype) whose tensors share blocks in every way.
MIXTURES = {
    "empty list": [],
    "only empties": [(0, np.float32), (0, np.float16)],
    "scalars": [(1, np.float32)] * 40,
    "small among large": [(1500, np.float32), (3, np.float64), (0, np.float32), (2000, np.float32), (7, np.float16)],
    "every type": [(700, dtype) for dtype in cases.DTYPES] * 2,
    "empties at the ends": [(0, np.float32), (1024, np.float32), (1024, np.float32), (0, np.float64)],
    "a block of many": [(13, np.float32)] * 200,
}


def tensors_of(mixture):
    return [cases.gradients(size, seed, dtype) for seed, (size, dtype) in enumerate(mixture)]


def unpack(packed, tensors, bits, scaling, **options):
    """Unpacks into arrays of the tensors' shapes and types."""
    arrays = _core.unpack(packed, [t.shape for t in tensors], [t.dtype.name for t in tensors], bits, scaling, **options)
    return [array.view(tensor.dtype) for array, tensor in zip(arrays, tensors, strict=True)]


def reference_unpack(packed, tensors, bits, scaling):
    return reference.unpack(packed, [t.shape for t in tensors], [t.dtype for t in tensors], bits, scaling)


def check_round_trip(tensors, shards, bits, scaling, rounding="nearest"):
    packed = _core.pack(tensors, shards, bits, rounding, scaling, seed=1)
    np.testing.assert_array_equal(packed, reference.pack(tensors, shards, bits, rounding, scaling, seed=1))
    expected = reference_unpack(packed, tensors, bits, scaling)
    for actual, wanted in zip(unpack(packed, tensors, bits, scaling), expected, strict=True):
        cases.assert_same_bits(actual, wanted)


@formats_and_scalings
@pytest.mark.parametrize("shards", [1, 2, 3, 4, 5])
def test_sizes(isa, bits, scaling, shards):
    for size in SIZES:
        check_round_trip([cases.gradients(size)], shards, bits, scaling)


@formats_and_scalings
@pytest.mark.parametrize("mixture", MIXTURES)
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_mixtures(isa, bits, scaling, mixture, rounding):
    for shards in (1, 3):
        check_round_trip(tensors_of(MIXTURES[mixture]), shards, bits, scaling, rounding)


@every_format
def test_shapes_do_not_matter(isa, bits):
    flat = cases.gradients(2400)
    shaped = [flat[:1200].reshape(30, 40), flat[1200:1201].reshape(()), flat[1201:].reshape(1, -1, 1)]
    packed = _core.pack(shaped, 2, bits, "nearest", "none")
    np.testing.assert_array_equal(packed, _core.pack([flat], 2, bits, "nearest", "none"))
    for actual, tensor in zip(unpack(packed, shaped, bits, "none"), shaped, strict=True):
        assert actual.shape == tensor.shape


@every_format
@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("offset", [1, 2, 3, 4, 12])
def test_unaligned_buffers(isa, bits, dtype, offset):
    """Buffers at odd addresses, read and written."""
    values = cases.gradients(3000, dtype=dtype)
    shifted = np.zeros(values.nbytes + 16, np.uint8)[offset : offset + values.nbytes].view(dtype)
    shifted[:] = values
    packed = _core.pack([shifted], 2, bits, "nearest", "none")
    np.testing.assert_array_equal(packed, _core.pack([values], 2, bits, "nearest", "none"))
    target = np.zeros(values.nbytes + 16, np.uint8)[offset : offset + values.nbytes].view(dtype)
    unpack(packed, [values], bits, "none", out=[target])
    cases.assert_same_bits(target.copy(), reference_unpack(packed, [values], bits, "none")[0])
    np.testing.assert_array_equal(
        _core.quantize(shifted, bits, "nearest", "none"), _core.quantize(values, bits, "nearest", "none")
    )


@formats_and_scalings
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_threads_and_ranges_do_not_matter(isa, bits, scaling, rounding):
    tensors = tensors_of([(5000, np.float32), (10, np.float16), (7777, np.float32), (4000, np.float64)])
    options = (3, bits, rounding, scaling)
    whole = _core.pack(tensors, *options, seed=9)
    for threads in (2, 3, 7, 64):
        np.testing.assert_array_equal(_core.pack(tensors, *options, seed=9, threads=threads), whole)
    pieces = np.full_like(whole, 0xAAAAAAAA)
    blocks = 3 * _core.shard_layout(sum(t.size for t in tensors), 3, bits, scaling)["shard_blocks"]
    for block in np.random.default_rng(0).permutation(blocks).tolist():
        _core.pack(tensors, *options, seed=9, out=pieces, blocks=(block, block + 1))
    np.testing.assert_array_equal(pieces, whole)

    expected = unpack(whole, tensors, bits, scaling)
    targets = [np.zeros_like(t) for t in tensors]
    for block in np.random.default_rng(1).permutation(blocks).tolist():
        unpack(whole, tensors, bits, scaling, out=targets, blocks=(block, block + 1))
    for threaded, by_block, wanted in zip(
        unpack(whole, tensors, bits, scaling, threads=5), targets, expected, strict=True
    ):
        cases.assert_same_bits(threaded, wanted)
        cases.assert_same_bits(by_block, wanted)


@every_format
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_quantize_is_a_pack_of_one_shard(isa, bits, dtype):
    for size in SIZES:
        for scaling in cases.scalings(bits):
            values = cases.gradients(size, dtype=dtype)
            actual = _core.quantize(values, bits, "nearest", scaling, threads=2)
            cases.assert_same_bits(actual, reference.quantize(values, bits, "nearest", scaling))


def test_writes_nothing_but_its_own(isa):
    """Neither words nor values next to those asked for are touched."""
    values = cases.gradients(1100)
    for bits in cases.BITS:
        words = _core.shard_layout(1100, 1, bits, "none")["shard_words"]
        guarded = np.full((1, words + 64), 0xAAAAAAAA, np.uint32)
        packed = guarded[:, 32 : 32 + words]
        _core.pack([values], 1, bits, "nearest", "none", out=packed)
        assert np.all(guarded[:, :32] == 0xAAAAAAAA) and np.all(guarded[:, 32 + words :] == 0xAAAAAAAA)
        target = np.full(1100 + 64, 7.0, np.float32)
        _core.unpack(packed, [(1100,)], ["float32"], bits, "none", out=[target[32:-32]])
        assert np.all(target[:32] == 7) and np.all(target[-32:] == 7) and np.all(target[32:-32] != 7)


# --- Large indices ---


@formats_and_scalings
def test_large_packs(isa, bits, scaling):
    """Which are written around the caches, whatever the addresses: from 4 Mi values on."""
    size = (4 << 20) + 1000
    whole = cases.gradients(size + 1)[1:]
    tensors = [whole[:1500], whole[1500:1501], whole[1501 : size // 2], whole[size // 2 :]]
    packed = _core.pack(tensors, 1, bits, "nearest", scaling)
    # Small packs of the same values are not.
    unpacked = np.concatenate(unpack(packed, tensors, bits, scaling))
    for block in (0, 1, 2000, size // 1024):
        quantized = _core.quantize(whole[block * 1024 : (block + 1) * 1024], bits, "nearest", scaling)
        cases.assert_same_bits(unpacked[block * 1024 : (block + 1) * 1024], quantized)
    before = np.zeros(size + 2, np.float32)
    _core.unpack(packed, [(size,)], ["float32"], bits, scaling, out=[before[1:-1]], threads=2)
    cases.assert_same_bits(before[1:-1], unpacked)
    assert before[0] == before[-1] == 0


def test_layout_of_huge_packs():
    for bits, scaling in [(8, "none"), (9, "none"), (11, "block"), (16, "block"), (32, "none")]:
        for elements in (2**31 - 1, 2**31, 2**33 + 5, 2**45 + 1):
            for shards in (1, 3, 8):
                layout = _core.shard_layout(elements, shards, bits, scaling)
                size, shift_words, words = reference.shard_layout(elements, shards, bits, scaling)
                assert (layout["shard_elements"], layout["shift_words"], layout["shard_words"]) == (
                    size,
                    shift_words,
                    words,
                )


#: One small tensor, many times: a pack of more than 2^32 values that takes no memory.
TILE = cases.gradients(1 << 22, dtype=np.float16)
TILES = 1030


def blocks_around(values, shard_elements, shard_blocks):
    """Returns ranges of blocks around certain values of the pack."""
    for value in values:
        block = value // shard_elements * shard_blocks + value % shard_elements // 1024
        yield max(0, block - 1), block + 1


def values_at(first, count):
    return np.take(TILE, np.arange(first, first + count), mode="wrap").astype(np.float32)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("bits, scaling", [(8, "none"), (11, "block")])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_indices_above_2_to_the_31(isa, shards, bits, scaling, rounding):
    """Packs and unpacks single blocks around 2^31 and 2^32 of a pack whose packed words are mostly never touched."""
    elements = TILES * TILE.size
    layout = _core.shard_layout(elements, shards, bits, scaling)
    size, shard_blocks, shift_words = layout["shard_elements"], layout["shard_blocks"], layout["shift_words"]
    try:
        packed = np.empty((shards, layout["shard_words"]), np.uint32)
    except MemoryError:
        pytest.skip("no room for 6 GB of virtual memory")
    target = np.zeros_like(TILE)
    for first, last in blocks_around([2**31, 2**32, 2**32 + 5000, elements - 1500], size, shard_blocks):
        _core.pack([TILE] * TILES, shards, bits, rounding, scaling, seed=5, out=packed, blocks=(first, last))
        shapes, dtypes = [TILE.shape] * TILES, ["float16"] * TILES
        _core.unpack(packed, shapes, dtypes, bits, scaling, out=[target] * TILES, blocks=(first, last))
        for block in range(first, last):
            shard, number = divmod(block, shard_blocks)
            start, count = shard * size + number * 1024, min(1024, size - number * 1024)
            if start + count > elements:
                continue  # padding; the small packs test it
            random = reference.random_words(start, count, seed=5)
            expected = reference.encode_shard(values_at(start, count), bits, rounding, scaling, random)
            word = shift_words + number * 32 * bits
            groups = packed[shard, word : word + count // 32 * bits]
            np.testing.assert_array_equal(groups, expected[-len(groups) :])
            if scaling == "block":
                shift = packed[shard].view(np.int8)[number]
                assert shift == expected[:1].view(np.int8)[0]
            decoded = reference.decode_shard(expected, count, bits, scaling).astype(np.float16)
            np.testing.assert_array_equal(np.take(target, np.arange(start, start + count), mode="wrap"), decoded)


def test_bfloat16_is_known_by_its_name():
    values = cases.gradients(64, dtype=ml_dtypes.bfloat16)
    np.testing.assert_array_equal(
        _core.pack([values], 1, 16, "nearest", "none"),
        _core.pack([values.astype(np.float32)], 1, 16, "nearest", "none"),
    )
