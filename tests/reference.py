"""The codec in plain numpy, written from docs/wire_format.md alone. Tests compare the real ones with it, bit for bit.

It is slow and obvious on purpose, and shares nothing with ops/ or tf_epgc. Only stochastic rounding follows the
page's integer formula; the other two modes look a value's neighbours up in a table of all codes.
"""

import functools

import numpy as np

GROUP = 32
BLOCK = 1024
_HALF_NAN = 0x7E00


# --- Section 1: codes ---


@functools.cache
def magnitudes(bits):
    """Returns the values of the codes 0, 1, ... without sign, the last one standing for infinity (float64).

    Infinity is entered as the value at which it begins: 2^16, or 2^128 for 9 bits.
    """
    if bits == 9:
        return np.concatenate([[0.0], np.ldexp(1.0, np.arange(1, 256) - 127)])
    codes = np.arange((0x7C00 >> (16 - bits)) + 1, dtype=np.uint16)
    values = (codes[:-1] << (16 - bits)).astype(np.uint16).view(np.float16).astype(np.float64)
    return np.append(values, 65536.0)


def _neighbour_code(a, bits, nearest):
    """Returns the magnitude's code for finite float64 `a` >= 0."""
    table = magnitudes(bits)
    lower = np.searchsorted(table, a, side="right") - 1
    upper = np.minimum(lower + 1, len(table) - 1)
    if not nearest:
        return lower
    below, above = a - table[lower], table[upper] - a
    up = (above < below) | ((above == below) & (lower % 2 == 1))
    return np.where(up, upper, lower)


def _stochastic_code(pattern, bits, random):
    """Returns the magnitude's code for float32 patterns without sign, by the formula of section 4."""
    a, random = pattern.astype(np.uint64), random.astype(np.uint64)
    if bits == 9:
        return (a + (random >> np.uint64(9))) >> np.uint64(23)
    dropped = {8: 21, 11: 18, 16: 13}[bits]
    field = (a >> np.uint64(23)).astype(np.int64)
    normal = field >= 113
    mantissa = (a & np.uint64(0x7FFFFF)) | np.where(field > 0, 0x800000, 0).astype(np.uint64)
    v = np.where(normal, a - np.uint64(112 << 23), mantissa)
    drop = np.where(normal, dropped, dropped + 113 - np.maximum(field, 1))
    too_far = np.minimum(np.maximum(drop - 31, 0), 63).astype(np.uint64)
    drop = np.minimum(drop, 31).astype(np.uint64)
    code = ((v >> too_far) + (random >> (np.uint64(32) - drop))) >> drop
    return np.minimum(code, np.uint64(0x7C00 >> (16 - bits)))


def encode(values, bits, rounding, random=None):
    """Returns the codes (uint32) of a float32 array; `random` holds one word a value for "stochastic"."""
    pattern = np.ascontiguousarray(values, np.float32).view(np.uint32)
    if bits == 32:
        return pattern.copy()
    a = pattern & np.uint32(0x7FFFFFFF)
    finite = a < 0x7F800000
    safe = np.where(finite, a, 0).astype(np.uint32)
    if rounding == "stochastic":
        code = _stochastic_code(safe, bits, random).astype(np.uint32)
    else:
        code = _neighbour_code(safe.view(np.float32).astype(np.float64), bits, rounding == "nearest")
    infinity = 0xFF if bits == 9 else 0x7C00 >> (16 - bits)
    nan = 0xFF if bits == 9 else _HALF_NAN >> (16 - bits)
    code = np.where(finite, code, infinity).astype(np.uint32) | (pattern >> np.uint32(31)) << np.uint32(bits - 1)
    return np.where(a > 0x7F800000, nan, code).astype(np.uint32)


def decode(codes, bits):
    """Returns the float32 values of codes."""
    codes = codes.astype(np.uint32)
    if bits == 32:
        return codes.view(np.float32)
    if bits == 9:
        return (codes << np.uint32(23)).view(np.float32)
    half = (codes << np.uint32(16 - bits)).astype(np.uint16).view(np.float16)
    return half.astype(np.float32)


def to_float32(array):
    """Returns a gradient of any supported type as a flat float32 array; float64 is rounded to nearest."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(array).reshape(-1).astype(np.float32)


# --- Section 2: groups ---


def pack_groups(codes, bits):
    """Returns the words of a whole number of groups."""
    groups = codes.reshape(-1, GROUP)
    if bits == 32:
        return codes.astype("<u4")
    if bits == 16:
        return codes.astype("<u2").view("<u4")
    high = (groups >> np.uint32(bits - 8)).astype(np.uint8).view("<u4")
    place = np.uint32(1) << np.arange(GROUP, dtype=np.uint32)
    planes = [
        ((groups >> np.uint32(bit) & np.uint32(1)) * place).sum(axis=1, dtype=np.uint32)
        for bit in range(bits - 9, -1, -1)
    ]
    return np.concatenate([high] + [plane[:, None] for plane in planes], axis=1).reshape(-1)


def unpack_groups(words, bits):
    """Returns the codes of a whole number of groups."""
    if bits == 32:
        return words.copy()
    if bits == 16:
        return words.view("<u2").astype(np.uint32)
    groups = words.reshape(-1, bits)
    codes = np.ascontiguousarray(groups[:, :8]).view(np.uint8).astype(np.uint32)
    for plane in range(8, bits):
        bit = groups[:, plane, None] >> np.arange(GROUP, dtype=np.uint32) & np.uint32(1)
        codes = codes << np.uint32(1) | bit
    return codes.reshape(-1)


# --- Section 3: shards, blocks and shifts ---


def shard_layout(elements, shards, bits, scaling):
    """Returns (E, shift_words, shard_words)."""
    size = -(-elements // shards)
    size = -(-size // GROUP) * GROUP
    blocks = -(-size // BLOCK)
    shift_words = -(-blocks // 4) if scaling == "block" else 0
    return size, shift_words, shift_words + size // GROUP * bits


def block_shifts(values):
    """Returns the shift of each block of a float32 shard."""
    shifts = []
    for start in range(0, len(values), BLOCK):
        block = values[start : start + BLOCK]
        largest = np.max(np.abs(block), where=np.isfinite(block), initial=0.0)
        exponent = int(np.frexp(np.float64(largest))[1]) - 1
        shifts.append(max(-113, min(126, 14 - exponent)) if largest > 0 else 0)
    return np.array(shifts, np.int8)


def _factors(shifts, size):
    return np.repeat(np.ldexp(np.float32(1), shifts.astype(np.int32)), BLOCK)[:size]


def encode_shard(values, bits, rounding, scaling, random):
    """Returns the words of one shard: float32 `values`, a whole number of groups, and their random words."""
    head = np.zeros(0, "<u4")
    if scaling == "block":
        shifts = block_shifts(values)
        head = np.concatenate([shifts, np.zeros(-len(shifts) % 4, np.int8)]).view("<u4")
        with np.errstate(all="ignore"):
            values = values * _factors(shifts, len(values))
    return np.concatenate([head, pack_groups(encode(values, bits, rounding, random), bits)]).astype(np.uint32)


def decode_shard(words, size, bits, scaling):
    """Returns the `size` float32 values of one shard."""
    if scaling == "none":
        return decode(unpack_groups(words, bits), bits)
    blocks = -(-size // BLOCK)
    shift_words = -(-blocks // 4)
    shifts = words[:shift_words].view(np.int8)[:blocks]
    with np.errstate(all="ignore"):
        return decode(unpack_groups(words[shift_words:], bits), bits) * _factors(-shifts.astype(np.int32), size)


# --- Section 4: random words ---


def _mix64(z):
    mask = (1 << 64) - 1
    z = (z + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
    return z ^ z >> 31


def random_words(first, count, seed=0, step=0, stream=0):
    """Returns random(i) for i = first .. first + count - 1."""
    key = _mix64(_mix64(_mix64(seed) ^ step) ^ stream)
    k0, k1 = np.uint32(key & 0xFFFFFFFF), np.uint32(key >> 32)
    index = np.arange(first, first + count, dtype=np.uint64)
    low, high = index.astype(np.uint32), (index >> np.uint64(32)).astype(np.uint32)
    x = low ^ k0
    x = (x ^ x >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    x = x ^ x >> np.uint32(13) ^ k1 ^ high * np.uint32(0x9E3779B9)
    x = x * np.uint32(0xC2B2AE35)
    return x ^ x >> np.uint32(16)


# --- Whole passes ---


def pack(tensors, shards, bits, rounding, scaling, seed=0, step=0, stream=0):
    """Returns the packed shards, uint32 [shards, shard_words]."""
    values = np.concatenate([np.zeros(0, np.float32)] + [to_float32(tensor) for tensor in tensors])
    size, _, words = shard_layout(len(values), shards, bits, scaling)
    padded = np.zeros(size * shards, np.float32)
    padded[: len(values)] = values
    random = random_words(0, len(padded), seed, step, stream)
    rows = [
        encode_shard(padded[r * size : (r + 1) * size], bits, rounding, scaling, random[r * size : (r + 1) * size])
        for r in range(shards)
    ]
    return np.stack(rows).reshape(shards, words)


def reduce(rows, shard_elements, bits, rounding, scaling, scale=1.0, seed=0, step=0, stream=0):
    """Returns the encoded sum of encoded shards, uint32 [shard_words]."""
    total = decode_shard(rows[0], shard_elements, bits, scaling)
    with np.errstate(all="ignore"):
        for row in rows[1:]:
            total = total + decode_shard(row, shard_elements, bits, scaling)
        total = total * np.float32(scale)
    random = random_words(0, shard_elements, seed, step, stream)
    return encode_shard(total, bits, rounding, scaling, random)


def unpack(packed, shapes, dtypes, bits, scaling):
    """Returns the tensors of packed shards; `dtypes` are numpy dtypes."""
    sizes = [int(np.prod(shape)) for shape in shapes]
    size = shard_layout(sum(sizes), len(packed), bits, scaling)[0]
    values = np.concatenate([decode_shard(row, size, bits, scaling) for row in packed])
    tensors, start = [], 0
    with np.errstate(over="ignore", invalid="ignore"):
        for shape, dtype, count in zip(shapes, dtypes, sizes, strict=True):
            tensors.append(values[start : start + count].astype(dtype).reshape(shape))
            start += count
    return tensors


def quantize(array, bits, rounding, scaling, seed=0, step=0, stream=0):
    """Returns what a pack of one shard would carry of an array, in the array's own type."""
    packed = pack([array], 1, bits, rounding, scaling, seed, step, stream)
    return unpack(packed, [np.shape(array)], [array.dtype], bits, scaling)[0]


def exchange(replicas, bits, rounding, scaling, scale=1.0, seed=0, step=0, pack_number=0):
    """Returns the tensors that every replica has after the exchange of section 5, in the first replica's types.

    Args:
        replicas: for each replica, its list of tensors.
    """
    n = len(replicas)
    options = (bits, rounding, scaling)
    sent = [pack(t, n, *options, seed, step, pack_number * 2 * n + r) for r, t in enumerate(replicas)]
    size = shard_layout(sum(np.size(t) for t in replicas[0]), n, bits, scaling)[0]
    reduced = [
        reduce([row[r] for row in sent], size, *options, scale, seed, step, pack_number * 2 * n + n + r)
        for r in range(n)
    ]
    shapes, dtypes = [np.shape(t) for t in replicas[0]], [t.dtype for t in replicas[0]]
    return unpack(np.stack(reduced), shapes, dtypes, bits, scaling)
