"""The CUDA kernels on a GPU: numpy in and out, as `tf_epgc._core` has it."""

import ctypes

import numpy as np

from tf_epgc import _core

#: Bytes before and after what a kernel may write to.
GUARD = 256


def device_count():
    """Returns how many GPUs the driver has, 0 without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    return count.value if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0


class DeviceArray:
    """A copy of an array on the device, at an address of the same alignment, among guard bytes."""

    def __init__(self, module, array):
        self._array = array
        self._before = GUARD + array.ctypes.data % 64
        self._buffer = module.Buffer(self._before + array.nbytes + GUARD)
        host = np.full(self._buffer.size, 0xAA, np.uint8)
        host[self._before : self._before + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._buffer.copy_from(host)
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": "<u2" if array.dtype.name == "bfloat16" else array.dtype.str,
            "data": (self._buffer.address + self._before, False),
            "version": 3,
        }

    def fetch(self):
        """Copies the values back to the array, after a look at the guards."""
        host = self._buffer.to_host()
        end = self._before + self._array.nbytes
        assert np.all(host[: self._before] == 0xAA) and np.all(host[end:] == 0xAA), "written beside the array"
        self._array[...] = host[self._before : end].view(self._array.dtype).reshape(self._array.shape)
        return self._array


class Device:
    """The passes, with the interface of emulation.Emulation."""

    launches = None

    def __init__(self, module):
        self._module = module

    def _on_device(self, array):
        return DeviceArray(self._module, array)

    def pack(self, arrays, shards, bits, rounding, scaling, out=None, **random):
        words = _core.shard_layout(sum(a.size for a in arrays), shards, bits, scaling)["shard_words"]
        packed = self._on_device(np.full((shards, words), 0xAAAAAAAA, np.uint32) if out is None else out)
        tensors = [self._on_device(array) for array in arrays]
        self._module.pack(tensors, packed, shards, bits, rounding, scaling, **random)
        return packed.fetch()

    def unpack(self, packed, arrays, bits, scaling):
        tensors = [self._on_device(array) for array in arrays]
        words = self._on_device(packed)
        self._module.unpack(words, tensors, packed.shape[0], bits, scaling)
        return [tensor.fetch() for tensor in tensors]

    def reduce(self, rows, shard_elements, bits, rounding, scaling, scale=1.0, **random):
        reduced = self._on_device(np.full(rows.shape[1], 0xAAAAAAAA, np.uint32))
        words = self._on_device(rows)
        options = (rows.shape[0], shard_elements, bits, rounding, scaling, scale)
        self._module.reduce(words, reduced, *options, **random)
        return reduced.fetch()

    def quantize(self, array, bits, rounding, scaling, out=None, **random):
        x = self._on_device(array)
        result = x if out is array else self._on_device(np.zeros_like(array) if out is None else out)
        self._module.quantize(x, result, bits, rounding, scaling, **random)
        return result.fetch()
