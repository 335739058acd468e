"""The logic of the CUDA kernels, run on this CPU.

Its sources are the kernels' own but for a few instructions (ops/cuda/device.h) and the warp (ops/cuda/warp.h).
"""

import os
import shutil

import numpy as np
import pytest

from tests.ops.core import codec_cases as cases
from tests.ops.cuda import emulation
from tests.ops.cuda.passes_cases import *  # noqa: F403
from tf_epgc import _core


@pytest.fixture(scope="module")
def passes(tmp_path_factory):
    if not (emulation.ROOT / "ops/cuda").exists():
        pytest.skip("the sources are not here")
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        pytest.skip("no g++ to compile the kernels' logic with")
    return emulation.Emulation(emulation.compile_to(tmp_path_factory.mktemp("emulation")))


#: One tensor, many times: a pack of more than 2^32 values that takes no memory.
TILE = cases.gradients(1 << 22, dtype=np.float16)
TILES = 1030


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_indices_above_2_to_the_32(passes, shards, rounding):
    """Single blocks around 2^31 and 2^32, with three shards one that 2^32 lies within."""
    layout = _core.shard_layout(TILES * TILE.size, shards, 11, "block")
    try:
        actual, expected = (np.empty((shards, layout["shard_words"]), np.uint32) for _ in range(2))
    except MemoryError:
        pytest.skip("no room for 12 GB of virtual memory")
    for value in (2**31, 2**32 - 1, TILES * TILE.size - 1500):
        shard, position = divmod(value, layout["shard_elements"])
        block = position // 1024
        number = shard * layout["shard_blocks"] + block
        options = {"seed": 5, "blocks": (number, number + 1)}
        passes.pack([TILE] * TILES, shards, 11, rounding, "block", out=actual, **options)
        _core.pack([TILE] * TILES, shards, 11, rounding, "block", out=expected, **options)
        first = layout["shift_words"] + block * 32 * 11
        size = min(1024, layout["shard_elements"] - block * 1024) // 32 * 11
        np.testing.assert_array_equal(actual[shard, first : first + size], expected[shard, first : first + size])
        assert actual[shard].view(np.int8)[block] == expected[shard].view(np.int8)[block]
