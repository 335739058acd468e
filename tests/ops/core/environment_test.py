"""The float environment: a thread may flush subnormals or round differently, and the codec's bits stay the same."""

import contextlib
import ctypes
import ctypes.util
import platform

import numpy as np
import pytest

from tests import reference
from tests.ops.core import codec_cases as cases
from tf_epgc import _core

#: Where glibc's fenv_t keeps the control register of vector floats, and its bits that flush subnormals.
CONTROL = {"x86_64": (28, 0x8040), "aarch64": (0, 1 << 24)}.get(platform.machine())
#: fesetround()'s arguments on x86.
ROUNDING_MODES = {"up": 0x800, "down": 0x400, "to zero": 0xC00}

libm = ctypes.CDLL(ctypes.util.find_library("m") or "libm.so.6")

needs_control = pytest.mark.skipif(CONTROL is None, reason="does not know this CPU's float control register")


def current_environment():
    environment = ctypes.create_string_buffer(64)
    assert libm.fegetenv(environment) == 0
    return environment


def control_register():
    return int.from_bytes(current_environment().raw[CONTROL[0] : CONTROL[0] + 4], "little")


@contextlib.contextmanager
def flushing_subnormals():
    """This thread flushes subnormals to zero, as TensorFlow's threads do."""
    offset, flush = CONTROL
    before = current_environment()
    changed = ctypes.create_string_buffer(before.raw, 64)
    register = int.from_bytes(before.raw[offset : offset + 4], "little") | flush
    changed[offset : offset + 4] = register.to_bytes(4, "little")
    try:
        assert libm.fesetenv(changed) == 0
        yield register
    finally:
        assert libm.fesetenv(before) == 0


@contextlib.contextmanager
def rounding_mode(mode):
    before = libm.fegetround()
    try:
        assert libm.fesetround(ROUNDING_MODES[mode]) == 0
        yield
    finally:
        libm.fesetround(before)


def subnormal_values():
    """Returns values that are subnormal in float32, or become so by scaling."""
    rng = np.random.default_rng(0)
    tiny = cases.floats(rng.integers(0, 1 << 23, 2048).astype(np.uint32))
    wide = cases.floats((rng.integers(0, 255, 2048) << 23 | rng.integers(0, 1 << 23, 2048)).astype(np.uint32))
    return np.concatenate([tiny, wide, -tiny])


#: Exact in float32, so that handing it over does not round.
SCALE = float(np.float32(1 / 3))


def everything(bits, rounding, scaling, values, doubles, rows):
    """Returns what all four passes make of the values."""
    packed = _core.pack([values], 2, bits, rounding, scaling)
    reduced = _core.reduce(rows, 1024, bits, rounding, scaling, scale=SCALE)
    unpacked = _core.unpack(packed, [values.shape], ["float32"], bits, scaling)[0].view(np.uint32)
    as_double = _core.unpack(packed, [values.shape], ["float64"], bits, scaling)[0].view(np.uint64)
    from_double = _core.pack([doubles], 1, bits, rounding, scaling)
    quantized = _core.quantize(values, bits, rounding, scaling).view(np.uint32)
    return packed, reduced, unpacked, as_double, from_double, quantized


def cases_of(bits):
    for scaling in cases.scalings(bits):
        for rounding in ("truncate", "nearest", "stochastic"):
            values = subnormal_values()
            rows = np.stack([reference.pack([values[i::3][:1024]], 1, bits, "nearest", scaling)[0] for i in range(3)])
            yield bits, rounding, scaling, values, values.astype(np.float64) * (1 + 2.0**-30), rows


@needs_control
@pytest.mark.parametrize("bits", cases.BITS)
def test_flushing_subnormals_changes_nothing(isa, bits):
    for case in cases_of(bits):
        expected = everything(*case)
        with flushing_subnormals() as register:
            assert np.float32(1e-40) * np.float32(1) == 0, "the test would not notice"
            actual = everything(*case)
            assert control_register() & 0xFFC0 == register & 0xFFC0, "the codec did not put it back"
        for one, other in zip(actual, expected, strict=True):
            np.testing.assert_array_equal(one, other)


@needs_control
def test_flushing_subnormals_changes_nothing_in_other_threads(isa):
    values = subnormal_values()
    expected = _core.pack([values], 1, 9, "nearest", "none")
    with flushing_subnormals():  # new threads inherit this
        actual = _core.pack([values], 1, 9, "nearest", "none", threads=3)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="knows x86's rounding modes only")
@pytest.mark.parametrize("mode", ROUNDING_MODES)
@pytest.mark.parametrize("bits", cases.BITS)
def test_the_rounding_mode_changes_nothing(isa, bits, mode):
    for case in cases_of(bits):
        expected = everything(*case)
        with rounding_mode(mode):
            assert np.float32(1) + np.float32(2**-30) != 1 or mode != "up", "the test would not notice"
            actual = everything(*case)
        for one, other in zip(actual, expected, strict=True):
            np.testing.assert_array_equal(one, other)
