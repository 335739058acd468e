"""The golden vectors of tests/golden and the worked example of docs/wire_format.md, on every codec."""

import json
import pathlib
import re

import numpy as np
import pytest

from tests import reference
from tests.ops.core import codec_cases as cases
from tf_epgc import _core

ROOT = pathlib.Path(__file__).parents[3]
DTYPES = {np.dtype(dtype).name: dtype for dtype in cases.DTYPES}


def vectors(name):
    return json.loads((ROOT / "tests" / "golden" / f"{name}.json").read_text())["vectors"]


def number(text):
    """Returns a float32 from decimal or hexadecimal text; "-nan" has its sign."""
    value = np.float32(float.fromhex(text) if "0x" in text else float(text))
    return np.copysign(value, np.float32(-1 if text.startswith("-") else 1))


def tensor(dtype, values):
    return np.array([number(text) for text in values], np.float32).astype(DTYPES[dtype])


def words(texts, size):
    """Returns the words that hexadecimal texts hold, and zeros behind them."""
    given = [int(text, 16) for text in texts]
    return np.array(given + [0] * (size - len(given)), np.uint32)


@pytest.fixture(params=["reference", *_core.runnable_isas()])
def codec(request):
    """The reference, or the codec with one of its instruction sets: both have the same functions."""
    if request.param == "reference":
        yield reference
        return
    before = _core.active_isa()
    _core.set_isa_for_test(request.param)
    yield _core
    _core.set_isa_for_test(before)


@pytest.mark.parametrize("vector", vectors("codes"), ids=lambda v: f"{v['value']}-{v['bits']}-{v['rounding']}")
def test_codes(codec, vector):
    bits = vector["bits"]
    packed = codec.pack([np.array([number(vector["value"])])], 1, bits, vector["rounding"], "none")
    code = reference.unpack_groups(packed[0], bits)[0]
    assert code == int(vector["code"], 16), vector["reason"]


@pytest.mark.parametrize("vector", vectors("random_words"), ids=lambda v: v["reason"])
def test_random_words(vector):
    """The reference's; what the codec makes of them is in the packs, and compared with the reference everywhere."""
    word = reference.random_words(vector["index"], 1, vector["seed"], vector["step"], vector["stream"])[0]
    assert word == int(vector["word"], 16)


def test_mixing_function_is_splitmix64():
    """Known outputs of its authors' generator, whose state grows by the constant that mix64 adds."""
    assert reference._mix64(0) == 0xE220A8397B1DCDAF
    assert reference._mix64(0x9E3779B97F4A7C15) == 0x6E789E6AA1B965F4


@pytest.mark.parametrize("vector", vectors("packs"), ids=lambda v: v["name"])
def test_packs(codec, vector):
    tensors = [tensor(**one) for one in vector["tensors"]]
    options = (vector["shards"], vector["bits"], vector["rounding"], vector["scaling"])
    packed = codec.pack(tensors, *options, seed=1, step=2, stream=3)
    expected = np.stack([words(shard, packed.shape[1]) for shard in vector["words"]])
    np.testing.assert_array_equal(packed, expected, vector["reason"])


@pytest.mark.parametrize("vector", vectors("reductions"), ids=lambda v: v["name"])
def test_reductions(codec, vector):
    options = (vector["bits"], vector["rounding"], vector["scaling"])
    rows = np.concatenate([codec.pack([tensor("float32", row)], 1, *options) for row in vector["rows"]])
    reduced = codec.reduce(rows, 32, *options, scale=vector["scale"])
    np.testing.assert_array_equal(reduced, words(vector["words"], rows.shape[1]), vector["reason"])


# --- The worked example ---


def worked_example():
    """Returns the cells of the example's table and its words."""
    section = (ROOT / "docs" / "wire_format.md").read_text().split("## 6. Golden vectors")[1]
    table = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in re.findall(r"^\|.*$", section, re.M)]
    block = section.split("```")[1]
    return table[2:], [int(word, 16) for word in re.findall(r"\b[0-9A-F]{8}\b", block)]


def test_worked_example(codec):
    table, expected = worked_example()
    values = np.array([number(row[0]) for row in table], np.float32)
    packed = codec.pack([values], 1, 11, "nearest", "block")
    np.testing.assert_array_equal(packed[0], np.array(expected, np.uint32))
    dtypes = ["float32"] if codec is _core else [np.float32]
    decoded = codec.unpack(packed, [values.shape], dtypes, 11, "block")[0]
    cases.assert_same_bits(decoded, np.array([number(row[5]) for row in table], np.float32))


def test_cells_of_the_worked_example():
    table, _ = worked_example()
    assert len(table) == 5
    for value, scaled, fields, high, low, _ in table:
        times = number(value) * np.float32(2**15)
        assert np.isclose(times, number(scaled), rtol=1e-6)
        code = reference.encode(np.array([times]), 11, "nearest")[0]
        assert format(code, "011b") == fields.replace(" ", "")
        assert (format(code >> 3, "02X"), format(code & 7, "03b")) == (high, low)
