"""All 2^32 float32 patterns: the vector kernels against the scalar ones, which the other tests tie to the reference."""

import numpy as np
import pytest

from tests.ops.core import codec_cases as cases
from tf_epgc import _core

CHUNK = 1 << 26


@pytest.mark.slow
@pytest.mark.parametrize("rounding", cases.ROUNDINGS)
@pytest.mark.parametrize("bits", cases.CODED_BITS)
def test_every_pattern(bits, rounding):
    before = _core.active_isa()
    try:
        for first in range(0, 1 << 32, CHUNK):
            values = cases.floats(np.arange(first, first + CHUNK, dtype=np.uint32))
            expected = None
            for isa in reversed(_core.runnable_isas()):
                _core.set_isa_for_test(isa)
                packed = _core.pack([values], 1, bits, rounding, "none", seed=first, threads=2)
                expected = packed if expected is None else expected
                assert np.array_equal(packed, expected), f"{isa} differs within the patterns from {first:#010x} on"
    finally:
        _core.set_isa_for_test(before)
