"""All 2^32 float32 patterns: the vector kernels against the scalar ones, which the other tests tie to the reference."""

import numpy as np
import pytest

from tests.ops.core import codec_cases as cases
from tf_epgc import _core

BLOCKS = 1 << 14
#: Patterns in a block, whose first value is 2^14: scaled, the block stays as it is, if all are below 2^15.
IN_BLOCK = _core.BLOCK_SIZE - 1
CHUNK = BLOCKS * IN_BLOCK
FIRST, LIMIT = cases.patterns([2.0**14, 2.0**15])


def chunks():
    """Yields (patterns, scalings): all unscaled, and those below 2^15, whose blocks go a shorter way, also scaled."""
    ascending = np.arange(CHUNK, dtype=np.uint32).reshape(BLOCKS, IN_BLOCK)
    patterns = np.full((BLOCKS, _core.BLOCK_SIZE), FIRST)
    for first in range(0, 1 << 32, CHUNK):
        np.add(ascending, np.uint32(first), out=patterns[:, 1:])
        start, end = first % (1 << 31), first % (1 << 31) + CHUNK
        yield patterns, cases.SCALINGS if end <= LIMIT else ("none",)
        if start < LIMIT < end or end > 1 << 31:
            yield np.where(patterns & 0x7FFFFFFF < LIMIT, patterns, FIRST), cases.SCALINGS


@pytest.mark.slow
@pytest.mark.parametrize("rounding", cases.ROUNDINGS)
@pytest.mark.parametrize("bits", cases.CODED_BITS)
def test_every_pattern(bits, rounding):
    layouts = {scaling: _core.shard_layout(BLOCKS * _core.BLOCK_SIZE, 1, bits, scaling) for scaling in cases.SCALINGS}
    shapes = {scaling: (1, layout["shard_words"]) for scaling, layout in layouts.items()}
    expected, actual = ({scaling: np.empty(shape, np.uint32) for scaling, shape in shapes.items()} for _ in range(2))
    codes = {scaling: slice(layout["shift_words"], None) for scaling, layout in layouts.items()}
    vector_isas = [isa for isa in _core.runnable_isas() if isa != "scalar"]
    before = _core.active_isa()

    def pack(isa, patterns, scaling, out):
        _core.set_isa_for_test(isa)
        options = {"seed": 1, "threads": 2, "out": out[scaling]}
        return _core.pack([cases.floats(patterns)], 1, bits, rounding, scaling, **options)[:, codes[scaling]]

    try:
        for patterns, scalings in chunks():
            wanted = pack("scalar", patterns, scalings[-1], expected)
            for isa in vector_isas:
                for scaling in scalings:
                    assert np.array_equal(pack(isa, patterns, scaling, actual), wanted), (
                        f"{isa}, scaling {scaling}, differs within the patterns from {patterns[0, 1]:#010x} on"
                    )
    finally:
        _core.set_isa_for_test(before)
