"""Tests of examples/digits.py."""

import digits
import numpy as np


def test_the_seed_decides_what_is_tested_on():
    first, same, other = (digits.load(seed) for seed in (1, 1, 2))
    assert np.array_equal(first[1][1], same[1][1])
    assert not np.array_equal(first[1][1], other[1][1])
    (x_train, y_train), (x_test, y_test) = first
    assert (len(x_train), len(x_test)) == (1437, 360) == (len(y_train), len(y_test))
    assert (x_train.shape[1:], x_train.dtype, y_test.dtype) == ((8, 8, 1), np.float32, np.int64)
    assert (x_train.min(), x_train.max()) == (0, 1)


def test_whole_batches():
    (images, labels), _ = digits.load(1)
    sizes = [len(x) for x, _ in digits.batches(images, labels, 400, 1)]
    assert sizes == [400, 400, 400]
