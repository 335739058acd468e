"""All 2^32 float32 patterns: the vector kernels against the scalar ones, which the other tests tie to the reference."""

import numpy as np
import pytest

from tests.ops.core import codec_cases as cases
from tf_epgc import _core

CHUNK = 1 << 24


@pytest.mark.slow
@pytest.mark.parametrize("rounding", cases.ROUNDINGS)
@pytest.mark.parametrize("bits", cases.CODED_BITS)
def test_every_pattern(bits, rounding):
    words = _core.shard_layout(CHUNK, 1, bits, "none")["shard_words"]
    expected, actual = np.empty((2, 1, words), np.uint32)
    patterns = np.arange(CHUNK, dtype=np.uint32)
    vector_isas = [isa for isa in _core.runnable_isas() if isa != "scalar"]
    before = _core.active_isa()
    try:
        for first in range(0, 1 << 32, CHUNK):
            values = [cases.floats(patterns + np.uint32(first))]
            options = {"seed": first, "threads": 2}
            _core.set_isa_for_test("scalar")
            _core.pack(values, 1, bits, rounding, "none", out=expected, **options)
            for isa in vector_isas:
                _core.set_isa_for_test(isa)
                _core.pack(values, 1, bits, rounding, "none", out=actual, **options)
                assert np.array_equal(actual, expected), f"{isa} differs within the patterns from {first:#010x} on"
    finally:
        _core.set_isa_for_test(before)
