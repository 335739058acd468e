"""Branches and updates under strategies that merge replicas, and the recognition of variables and of XLA."""

import pytest
import tensorflow as tf

from tf_epgc.keras_integration import replicas


@pytest.fixture(params=["default", "one_device", "mirrored"])
def strategy(request):
    if request.param == "default":
        return tf.distribute.get_strategy()
    if request.param == "one_device":
        return tf.distribute.OneDeviceStrategy("/cpu:0")
    return tf.distribute.MirroredStrategy(["/cpu:0"])


@pytest.mark.parametrize("compiled", [False, True])
def test_cond_takes_one_branch_with_its_arguments(strategy, compiled):
    with strategy.scope():
        total = tf.Variable(0.0)

    def one(take, value):
        def add(all_replicas, value):
            all_replicas.run(lambda v: all_replicas and None, [value])
            all_replicas.assign_add(total, value)

        def assign(all_replicas, value):
            all_replicas.assign(total, -value)

        replicas.cond(take, add, assign, [value])

    def run(take, value):
        strategy.run(one, args=(take, value))

    run = tf.function(run) if compiled else run
    run(tf.constant(True), tf.constant(2.0))
    run(tf.constant(True), tf.constant(3.0))
    assert float(tf.convert_to_tensor(total)) == 5.0
    run(tf.constant(False), tf.constant(4.0))
    assert float(tf.convert_to_tensor(total)) == -4.0


def test_raw_variable():
    import keras

    variable = keras.Variable(1.0)
    assert replicas.raw_variable(variable) is variable.value
    plain = tf.Variable(1.0)
    for value in (plain, tf.constant(1.0), 1.0, None):
        assert replicas.raw_variable(value) is value


def test_in_xla():
    seen = []

    def look(x):
        seen.append(replicas.in_xla())
        return tf.cond(x > 0, lambda: (seen.append(replicas.in_xla()), x)[1], lambda: x)

    look(tf.constant(1.0))
    tf.function(look)(tf.constant(1.0))
    assert not any(seen)
    seen.clear()
    tf.function(look, jit_compile=True)(tf.constant(1.0))
    assert seen and all(seen)
