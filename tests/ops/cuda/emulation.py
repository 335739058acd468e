"""The logic of the CUDA kernels, compiled for this CPU: numpy in and out, as `tf_epgc._core` has it."""

import ctypes
import os
import pathlib
import subprocess

import numpy as np

from tf_epgc import _core

ROOT = pathlib.Path(__file__).resolve().parents[3]
SOURCE = ROOT / "tests/ops/cuda/emulation.cc"

DTYPES = {"float32": 0, "float16": 1, "bfloat16": 2, "float64": 3}
ROUNDINGS = {"truncate": 0, "nearest": 1, "stochastic": 2}
SCALINGS = {"none": 0, "block": 1}


class Options(ctypes.Structure):
    """epgc::CodecOptions."""

    _fields_ = [
        ("bits", ctypes.c_int),
        ("rounding", ctypes.c_int),
        ("scaling", ctypes.c_int),
        ("seed", ctypes.c_uint64),
        ("step", ctypes.c_uint64),
        ("stream", ctypes.c_uint64),
    ]


class Layout(ctypes.Structure):
    """epgc::ShardLayout."""

    _fields_ = [
        (name, ctypes.c_int64) for name in ("shards", "shard_elements", "shard_blocks", "shift_words", "shard_words")
    ]


class Tensor(ctypes.Structure):
    """epgc::ConstTensor and epgc::MutableTensor."""

    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_int64), ("dtype", ctypes.c_int)]


def compile_to(folder):
    """Compiles the library with the flags of all C++ code here and returns its path."""
    library = pathlib.Path(folder) / "emulation.so"
    flags = (ROOT / "tools/compile_flags.txt").read_text().split()
    command = [os.environ.get("CXX", "g++"), "-std=c++17", "-O1", "-shared", "-fPIC", f"-I{ROOT}", *flags]
    subprocess.run([*command, str(SOURCE), "-o", str(library)], check=True)
    return library


def _options(bits, rounding, scaling, seed=0, step=0, stream=0):
    return Options(bits, ROUNDINGS[rounding], SCALINGS[scaling], seed, step, stream)


def _tensors(arrays):
    list_of = [Tensor(array.ctypes.data, array.size, DTYPES[array.dtype.name]) for array in arrays]
    return (Tensor * max(1, len(list_of)))(*list_of)


def _pointer(array):
    return array.ctypes.data_as(ctypes.c_void_p)


class Emulation:
    """The passes. Outputs may be given as arrays of any alignment."""

    def __init__(self, library):
        self._library = ctypes.CDLL(str(library))
        self.launches = 0

    def layout(self, elements, shards, bits, scaling):
        return Layout(**_core.shard_layout(elements, shards, bits, scaling))

    def pack(self, arrays, shards, bits, rounding, scaling, out=None, blocks=None, **random):
        layout = self.layout(sum(array.size for array in arrays), shards, bits, scaling)
        packed = np.empty((shards, layout.shard_words), np.uint32) if out is None else out
        options = _options(bits, rounding, scaling, **random)
        first, last = blocks or (0, shards * layout.shard_blocks)
        self.launches = self._library.EpgcPack(
            ctypes.byref(options),
            ctypes.byref(layout),
            _tensors(arrays),
            *map(ctypes.c_int64, (len(arrays), first, last)),
            _pointer(packed),
        )
        return packed

    def unpack(self, packed, arrays, bits, scaling):
        """Unpacks into `arrays`."""
        layout = self.layout(sum(array.size for array in arrays), packed.shape[0], bits, scaling)
        options = _options(bits, "nearest", scaling)
        self.launches = self._library.EpgcUnpack(
            ctypes.byref(options), ctypes.byref(layout), _tensors(arrays), ctypes.c_int64(len(arrays)), _pointer(packed)
        )
        return arrays

    def reduce(self, rows, shard_elements, bits, rounding, scaling, scale=1.0, **random):
        layout = self.layout(shard_elements, 1, bits, scaling)
        reduced = np.empty(layout.shard_words, np.uint32)
        options = _options(bits, rounding, scaling, **random)
        self._library.EpgcReduce(
            ctypes.byref(options),
            ctypes.byref(layout),
            _pointer(rows),
            ctypes.c_int64(rows.shape[0]),
            ctypes.c_float(scale),
            _pointer(reduced),
        )
        return reduced

    def quantize(self, array, bits, rounding, scaling, out=None, **random):
        layout = self.layout(array.size, 1, bits, scaling)
        result = np.empty_like(array) if out is None else out
        options = _options(bits, rounding, scaling, **random)
        self._library.EpgcQuantize(ctypes.byref(options), ctypes.byref(layout), _tensors([array]), _tensors([result]))
        return result
