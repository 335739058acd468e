"""Tests of examples/embedding.py."""

import embedding
import numpy as np
import pytest
import running


def test_equal_characters_have_equal_rows():
    text = np.frombuffer(b"abcdefg-abcdefh-xxcdefi", np.uint8).astype(np.int64)
    rows, following = embedding.grams(text, 1000)
    assert rows.shape == (18, embedding.LONGEST_GRAM) and rows.dtype == np.int32
    assert following[:2].tobytes() == text[5:7].tobytes()
    at = {chr(c): i for i, c in enumerate(following)}
    g, h, i = (rows[at[c]] for c in "ghi")
    assert np.array_equal(g, h)  # "bcdef" before both
    assert np.array_equal(g[:4], i[:4]) and g[4] != i[4]  # "cdef" before all, "x" before that only once
    assert len(set(g)) == embedding.LONGEST_GRAM


def test_source_code_is_ascii():
    text = embedding.source_of(embedding.TEST_MODULES)
    assert text.max() < embedding.CHARACTERS and len(text) > 10000


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_only_used_rows_travel():
    arguments = ["--bits", "8", "--epochs", "2", "--train", "20000"]
    result, progress = running.result_of(running.run("embedding.py", *arguments))
    assert result["identical"] and result["workers"] == 2
    assert 0 < result["bytes_a_step"] < result["bytes_of_table"] / 20
    assert result["accuracy"] > 0.2
    assert len(progress) == 2
