"""What happens to gradients on their way, apart from any optimizer."""

import numpy as np
import pytest
import tensorflow as tf

from tf_epgc.keras_integration import gradients


def slices(values, indices, rows=4, dtype=tf.float32):
    return tf.IndexedSlices(tf.constant(values, dtype), tf.constant(indices), tf.constant([rows, 2]))


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_narrow_gradients_are_widened(dtype):
    assert gradients.widen(tf.constant([1.0], dtype)).dtype == tf.float32
    assert gradients.widen(slices([[1.0, 2.0]], [3], dtype=dtype)).values.dtype == tf.float32


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_wide_gradients_stay(dtype):
    assert gradients.widen(tf.constant([1.0], dtype)).dtype == dtype


def test_multiply_keeps_sparsity():
    product = gradients.multiply(slices([[1.0, 2.0]], [3]), tf.constant(0.5))
    np.testing.assert_array_equal(product.values, [[0.5, 1.0]])
    np.testing.assert_array_equal(product.indices, [3])


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_all_finite_sees_every_value(bad):
    good = [tf.ones([3]), slices([[1.0, 2.0]], [0])]
    assert gradients.all_finite(good)
    assert not gradients.all_finite([*good, tf.constant([1.0, bad])])
    assert not gradients.all_finite([*good, slices([[1.0, bad]], [0])])


def test_shares_count_exactly_where_float32_could_not():
    """2^24 + 2 values: counted in float32, the last ones would be lost."""
    values = np.ones(2**24 + 2, np.float32)
    values[:2] = 0
    zeros, non_finite, steps = gradients.shares([tf.constant(values), slices([[np.nan, 0.0]], [0])]).numpy()
    assert zeros == np.float32(3 / (2**24 + 4))
    assert non_finite == np.float32(1 / (2**24 + 4))
    assert steps == 1


def test_exchange_of_one_replica_is_nothing():
    one = [tf.constant([1.0])]
    assert gradients.exchange(one)[0] is one[0]
