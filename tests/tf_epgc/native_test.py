"""Tests of tf_epgc.native: types, shapes and errors. The bits themselves are tested in tests/ops/core."""

import doctest
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from tests import reference
from tf_epgc import _core, native

VALUES = np.linspace(-3, 3, 3000, dtype=np.float32)


def test_docstring_examples():
    result = doctest.testmod(native)
    assert result.attempted >= 3 and result.failed == 0


def test_does_not_import_tensorflow():
    program = "import sys; import tf_epgc.native; sys.exit('tensorflow' in sys.modules)"
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0


def test_constants():
    assert (_core.PROTOCOL_VERSION, native.BLOCK_SIZE, native.GROUP_SIZE) == (1, 1024, 32)


def test_active_isa_is_runnable():
    assert native.active_isa() in native.runnable_isas()


@pytest.mark.parametrize("bits, scaling", [(8, "block"), (9, "none"), (11, "block"), (16, "none"), (32, "none")])
def test_exchange_of_two_replicas(bits, scaling):
    replicas = [[VALUES, VALUES[:5].reshape(5, 1)], [VALUES[::-1], VALUES[-5:].reshape(5, 1)]]
    options = (bits, "stochastic", scaling)
    sent = [native.pack(tensors, 2, *options, seed=-1, stream=r) for r, tensors in enumerate(replicas)]
    layout = native.shard_layout(3005, 2, bits, scaling)
    assert sent[0].shape == (2, layout["shard_words"])
    reduced = [
        native.reduce(np.stack(sent)[:, r], layout["shard_elements"], *options, 0.5, seed=-1, stream=2 + r)
        for r in range(2)
    ]
    actual = native.unpack(np.stack(reduced), [(3000,), (5, 1)], [np.float32, "float32"], bits, scaling, threads=2)
    expected = reference.exchange(replicas, *options, scale=0.5, seed=2**64 - 1)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, ml_dtypes.bfloat16, "float64", "bfloat16"])
def test_types(dtype):
    packed = native.pack([VALUES], 1, 16, "nearest", "none")
    (array,) = native.unpack(packed, [VALUES.shape], [dtype], 16, "none")
    wanted = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    assert array.dtype == wanted
    np.testing.assert_array_equal(array, VALUES.astype(np.float16).astype(np.float32).astype(wanted))
    quantized = native.quantize(array, 16, "nearest", "none")
    assert quantized.dtype == wanted and quantized.shape == array.shape


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 0, 3), (2, 3, 4)])
def test_shapes(shape):
    array = np.ones(shape, np.float32)
    assert native.quantize(array, 8, "nearest", "block").shape == shape
    (unpacked,) = native.unpack(native.pack([array], 1, 8, "nearest", "block"), [shape], ["float32"], 8, "block")
    np.testing.assert_array_equal(unpacked, array)


def test_no_tensors():
    packed = native.pack([], 3, 11, "nearest", "block")
    assert packed.shape == (3, 0)
    assert native.unpack(packed, [], [], 11, "block") == []
    assert native.reduce(packed, 0, 11, "nearest", "block").shape == (0,)


def test_arrays_in_any_order_are_copied():
    square = VALUES[:2500].reshape(50, 50)
    for view in (square.T, square[::2, ::3], np.asfortranarray(square), square[:, ::-1]):
        copied = np.ascontiguousarray(view)
        np.testing.assert_array_equal(
            native.pack([view], 2, 11, "nearest", "none"), native.pack([copied], 2, 11, "nearest", "none")
        )
        np.testing.assert_array_equal(
            native.quantize(view, 11, "nearest", "none"), native.quantize(copied, 11, "nearest", "none")
        )


def test_inputs_stay_as_they_are():
    values = VALUES.copy()
    values.flags.writeable = False
    native.pack([values], 2, 8, "nearest", "block")
    native.quantize(values, 8, "nearest", "block")
    np.testing.assert_array_equal(values, VALUES)


def test_numpy_integers_and_scalars_are_accepted():
    packed = native.pack([np.float32(1), 2.0], np.int64(1), np.int32(8), "nearest", "none", seed=np.uint64(2**64 - 1))
    np.testing.assert_array_equal(packed[0, :2], [0x403C, 0])


# --- Errors ---

PACKED = native.pack([VALUES], 2, 8, "nearest", "none")
ELEMENTS = native.shard_layout(3000, 2, 8, "none")["shard_elements"]


def pack(tensors=(VALUES,), shards=1, bits=8, rounding="nearest", scaling="none", **options):
    return native.pack(tensors, shards, bits, rounding, scaling, **options)


def unpack(packed=PACKED, shapes=((3000,),), dtypes=("float32",), bits=8, scaling="none", **options):
    return native.unpack(packed, shapes, dtypes, bits, scaling, **options)


def reduce(rows=PACKED, elements=ELEMENTS, bits=8, scaling="none", **options):
    return native.reduce(rows, elements, bits, "nearest", scaling, **options)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: pack(bits=10), ValueError, "bits is 10; choose 8, 9, 11, 16 or 32"),
        (lambda: pack(bits=2**40), ValueError, "choose 8, 9, 11, 16 or 32"),
        (lambda: pack(bits="8"), TypeError, "bits='8' is not an integer"),
        (lambda: pack(bits=8.0), TypeError, "bits=8.0 is not an integer"),
        (lambda: pack(rounding="up"), ValueError, "rounding is 'up'; choose 'truncate', 'nearest' or 'stochastic'"),
        (lambda: pack(rounding=None), TypeError, "rounding=None is not a string"),
        (lambda: pack(scaling="tensor"), ValueError, "scaling is 'tensor'; choose 'none' or 'block'"),
        (lambda: pack(scaling=0), TypeError, "scaling=0 is not a string"),
        (lambda: pack(bits=32, scaling="block"), ValueError, "exact and cannot be scaled; choose 'none'"),
        (lambda: pack(shards=0), ValueError, "shards is 0, but must be at least 1"),
        (lambda: pack(shards=-3), ValueError, "shards is -3, but must be at least 1"),
        (lambda: pack(threads=0), ValueError, "threads is 0, but must be at least 1"),
        (lambda: pack(seed=2**64), ValueError, "does not fit into 64 bits"),
        (lambda: pack(step=-(2**63) - 1), ValueError, "does not fit into 64 bits"),
        (lambda: pack(stream=1.5), TypeError, "stream=1.5 is not an integer"),
        (lambda: pack([np.arange(3)]), TypeError, "dtype is 'int64', but only float32.*convert the array"),
        (lambda: pack([np.zeros(3, bool)]), TypeError, "dtype is 'bool'"),
        (lambda: pack([np.zeros(3, np.complex64)]), TypeError, "dtype is 'complex64'"),
        (lambda: pack([np.zeros(3, np.uint16)]), TypeError, "dtype is 'uint16'"),
        (lambda: pack([np.zeros(3, ml_dtypes.float8_e5m2)]), TypeError, "dtype is 'float8_e5m2'"),
        (lambda: pack([np.zeros(3, ">f4")]), ValueError, "byte order of another machine"),
        (lambda: native.quantize(np.arange(3), 8, "nearest", "none"), TypeError, "dtype is 'int64'"),
        (lambda: unpack(PACKED.astype(np.int32)), TypeError, "packed has the dtype int32, but packed words are uint32"),
        (lambda: unpack(PACKED[0]), ValueError, r"packed has the shape \[376\]; pass a matrix"),
        (lambda: unpack(PACKED[:0]), ValueError, r"packed has the shape \[0, 376\]; pass a matrix"),
        (lambda: unpack(bits=11), ValueError, r"packed has the shape \[2, 376\].*need \[2, 517\]"),
        (lambda: unpack(scaling="block"), ValueError, r"need \[2, 377\]; pass the same bits"),
        (lambda: unpack(shapes=[(4000,)]), ValueError, "packed has the shape"),
        (lambda: unpack(shapes=[(-3,)]), ValueError, "size in shapes is -3, but must be at least 0"),
        (lambda: unpack(shapes=[(3.0,)]), TypeError, "a size in shapes=3.0 is not an integer"),
        (lambda: unpack(dtypes=[]), ValueError, "1 shapes and 0 dtypes"),
        (lambda: unpack(dtypes=["int32"]), TypeError, "dtype is 'int32'"),
        (lambda: reduce(PACKED.astype(np.float32)), TypeError, "rows has the dtype float32"),
        (lambda: reduce(PACKED[0]), ValueError, "pass a matrix"),
        (lambda: reduce(elements=33), ValueError, r"shard_elements is 33, but must be a multiple of 32"),
        (lambda: reduce(elements=-32), ValueError, "shard_elements is -32, but must be at least 0"),
        (lambda: reduce(elements=32), ValueError, r"rows has the shape \[2, 376\].*need \[2, 8\]"),
        (lambda: reduce(bits=9), ValueError, "rows has the shape"),
        (lambda: native.shard_layout(-1, 1, 8, "none"), ValueError, "elements is -1, but must be at least 0"),
        (lambda: native.shard_layout(1, 0, 8, "none"), ValueError, "shards is 0"),
        (lambda: _core.pack([VALUES[::2]], 1, 8, "nearest", "none"), ValueError, "not C-contiguous"),
        (lambda: _core.unpack(PACKED[:, ::2], [(3,)], ["float32"], 8, "none"), ValueError, "not C-contiguous"),
        (lambda: _core.pack([VALUES], 1, 8, "nearest", "none", blocks=(0, 4)), ValueError, r"range within 0\.\.3"),
        (lambda: _core.pack([VALUES], 1, 8, "nearest", "none", blocks=(2, 1)), ValueError, r"range within 0\.\.3"),
        (lambda: _core.pack([VALUES], 1, 8, "nearest", "none", out=PACKED), ValueError, "out has the shape"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_read_only_outputs_are_refused():
    out = np.zeros_like(PACKED)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="not writeable"):
        _core.pack([VALUES], 2, 8, "nearest", "none", out=out)
