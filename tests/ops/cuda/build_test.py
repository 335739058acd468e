"""The CUDA kernels as nvcc compiles them, and the library on a machine that may have no GPU."""

import collections
import os
import re
import subprocess

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

#: pack in two sizes of its table, reduce and quantize for 4 formats in 3 roundings and for 32 bits; unpack.
KERNELS = 2 * 13 + 13 + 13 + 2 * 5


def known_architectures():
    if chosen := os.environ.get("CUDAARCHS"):
        if not re.fullmatch(r"\d+(-real)?(;\d+(-real)?)*", chosen):
            pytest.skip(f"CUDAARCHS={chosen} is not a list of numbers")
        return {f"sm_{arch}" for arch in re.findall(r"\d+", chosen)}
    listed = subprocess.run(["nvcc", "--list-gpu-arch"], capture_output=True, text=True, check=True).stdout.split()
    return {f"sm_{arch}" for arch in (70, 75, 80, 86, 89, 90) if f"compute_{arch}" in listed}


def test_no_kernel_spills(cuda_build):
    """Neither spills nor a stack, for all architectures."""
    compiling = r"Compiling entry function '(\w+)' for '(sm_\d+)'.*?"
    memory = r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
    kernels = re.findall(compiling + memory, cuda_build.log, re.DOTALL)
    assert collections.Counter(kernel[1] for kernel in kernels) == dict.fromkeys(known_architectures(), KERNELS)
    assert [kernel for kernel in kernels if kernel[2:] != ("0", "0", "0")] == []


def test_needs_no_cuda_to_load(cuda_build):
    """The runtime is linked statically, so that the library loads on machines without CUDA."""
    needed = subprocess.run(["ldd", str(cuda_build.module_path)], capture_output=True, text=True, check=True).stdout
    assert "cuda" not in needed.replace(str(cuda_build.module_path), "").lower()


class Fake:
    """An array that is nowhere."""

    def __init__(self, typestr, size):
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": typestr, "data": (1 << 20, False), "version": 3}


def test_errors(cuda_build):
    """Errors come as exceptions, that of a launch without a GPU included."""
    module = cuda_build.module()
    options = {"shards": 1, "bits": 8, "rounding": "nearest", "scaling": "none"}
    with pytest.raises(TypeError, match="<i8"):
        module.pack([Fake("<i8", 32)], Fake("<u4", 8), **options)
    with pytest.raises(ValueError, match="rounding is 'up'; choose 'truncate', 'nearest' or 'stochastic'"):
        module.pack([Fake("<f4", 32)], Fake("<u4", 8), **{**options, "rounding": "up"})
    with pytest.raises(ValueError, match="There are 9 words, but these arguments make 8"):
        module.pack([Fake("<f4", 32)], Fake("<u4", 9), **options)
    module.pack([], Fake("<u4", 0), **options)
    if module.device_count() == 0:
        with pytest.raises(RuntimeError, match="CUDA: "):
            module.pack([Fake("<f4", 32)], Fake("<u4", 8), **options)
