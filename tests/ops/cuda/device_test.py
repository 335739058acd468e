"""The CUDA kernels on a GPU."""

import numpy as np
import pytest

from tests.ops.core import codec_cases as cases
from tests.ops.cuda import device
from tests.ops.cuda.passes_cases import *  # noqa: F403
from tf_epgc import _core

if device.device_count() == 0:
    pytest.skip("no NVIDIA GPU on this machine", allow_module_level=True)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def passes(cuda_build):
    return device.Device(cuda_build.module())


@pytest.mark.parametrize("rounding", cases.ROUNDINGS)
@pytest.mark.parametrize("bits", cases.CODED_BITS)
def test_every_float32(passes, bits, rounding):
    size = 1 << 24
    for first in range(0, 1 << 32, size):
        values = cases.floats(np.arange(first, first + size, dtype=np.uint32))
        options = (1, bits, rounding, "none")
        np.testing.assert_array_equal(passes.pack([values], *options), _core.pack([values], *options, threads=8))


@pytest.mark.parametrize("bits", cases.BITS)
def test_large_and_twice(passes, bits):
    """A hundred megabytes; the same bits again."""
    arrays = [cases.gradients(size, size) for size in (20_000_000, 4099, 1, 5_000_003)]
    for scaling in cases.scalings(bits):
        packed = passes.pack(arrays, 3, bits, "stochastic", scaling, seed=1)
        np.testing.assert_array_equal(packed, _core.pack(arrays, 3, bits, "stochastic", scaling, seed=1, threads=8))
        np.testing.assert_array_equal(packed, passes.pack(arrays, 3, bits, "stochastic", scaling, seed=1))
        elements = _core.shard_layout(sum(a.size for a in arrays), 3, bits, scaling)["shard_elements"]
        options = (elements, bits, "nearest", scaling, 1 / 3)
        np.testing.assert_array_equal(passes.reduce(packed, *options), _core.reduce(packed, *options, threads=8))


def arrays_of(library, values, words):
    """Returns the values, room for so many words and room for the values as arrays of a library, and a way back."""
    if library == "cupy":
        cupy = pytest.importorskip("cupy")
        return cupy.asarray(values), cupy.empty(words, np.uint32), cupy.zeros(values.shape, np.float32), cupy.asnumpy
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch is for CPUs only")
    on_device = torch.from_numpy(values).cuda()
    out = torch.empty(words, dtype=torch.int32, device="cuda")
    return on_device, out, torch.zeros_like(on_device), lambda array: array.cpu().numpy()


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_arrays_of_other_libraries(cuda_build, library):
    """CuPy's and PyTorch's arrays, by __cuda_array_interface__."""
    module = cuda_build.module()
    values = cases.gradients(5000)
    expected = _core.pack([values], 2, 11, "nearest", "block")
    x, out, y, as_numpy = arrays_of(library, values, expected.shape)
    module.synchronize()
    module.pack([x], out, 2, 11, "nearest", "block")
    module.unpack(out, [y], 2, 11, "block")
    module.synchronize()
    np.testing.assert_array_equal(as_numpy(out).view(np.uint32), expected)
    np.testing.assert_array_equal(as_numpy(y), _core.unpack(expected, [(5000,)], ["float32"], 11, "block")[0])
