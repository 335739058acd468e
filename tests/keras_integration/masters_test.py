"""Masters and their variables, apart from any optimizer."""

import numpy as np
import pytest
import tensorflow as tf

from tf_epgc.keras_integration.masters import Masters, is_narrow
from tf_epgc.keras_integration.replicas import Replicas

EVERYWHERE = Replicas(tf.distribute.get_strategy(), merged=True)


def pair(values, dtype=tf.float16):
    return tf.Variable(tf.cast(values, dtype)), tf.Variable(tf.cast(values, tf.float32))


@pytest.mark.parametrize(
    "dtype, narrow", [("float16", True), ("bfloat16", True), ("float32", False), ("float64", False)]
)
def test_which_variables_need_one(dtype, narrow):
    import keras

    assert is_narrow(tf.Variable(tf.zeros([], dtype))) == narrow
    assert is_narrow(keras.Variable(0.0, dtype=dtype)) == narrow


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_rounds_to_nearest(dtype):
    variable, master = pair([0.0, 0.0], dtype)
    values = np.float32([1 / 3, -2 / 3])
    master.assign(values)
    Masters([(variable, master)]).round_into_variables(EVERYWHERE)
    np.testing.assert_array_equal(tf.cast(variable, tf.float32), tf.cast(tf.cast(values, dtype), tf.float32))


def test_only_changed_values_are_taken_over():
    variable, master = pair([1.0, 1.0, 1.0])
    fine = np.float32(1 + 2**-14)  # which float16 rounds to 1
    master.assign([fine, fine, fine])
    masters = Masters([(variable, master)])
    masters.take_over_changes(EVERYWHERE)
    np.testing.assert_array_equal(master, [fine, fine, fine])
    variable.assign([1.0, 2.0, np.nan])
    masters.take_over_changes(EVERYWHERE)
    np.testing.assert_array_equal(master, [fine, 2.0, np.nan])


def test_wide_variables_are_left_alone():
    wide = tf.Variable([1.0])
    masters = Masters([(wide, wide)])
    masters.take_over_changes(EVERYWHERE)
    masters.round_into_variables(EVERYWHERE)
    assert masters.of(wide) is wide


def test_unknown_variable():
    with pytest.raises(ValueError, match="does not know the variable .* of shape .*: it was built with 0 others. Make"):
        Masters([]).of(tf.Variable([1.0]))
