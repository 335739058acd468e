"""MPUOptimizer around optimizers of tf_keras: what only they have."""

import pytest
import tensorflow as tf

from tests.distributed import mpu_workers
from tf_epgc.keras_integration import MPUOptimizer


def test_legacy_optimizers_are_refused():
    import tf_keras

    with pytest.raises(TypeError, match="optimizers of tf_keras.optimizers.legacy are not supported"):
        MPUOptimizer(tf_keras.optimizers.legacy.SGD(0.1))


def test_tf_keras_names():
    case = mpu_workers.Case("tf_keras")
    optimizer = case.mpu(initial_scale=8.0)
    assert float(optimizer.get_scaled_loss(tf.constant(2.0))) == 16.0
    assert float(optimizer.get_scaled_loss(lambda: tf.constant(2.0))()) == 16.0
    with pytest.raises(
        ValueError, match="get_unscaled_gradients was called, but MPUOptimizer unscales in apply_gradients"
    ):
        optimizer.get_unscaled_gradients([])
    variable = tf.Variable(1.0)
    case.mpu(case.keras.optimizers.SGD(0.25)).minimize(lambda: variable * variable, [variable])
    assert float(variable) == 0.5


def test_weights_of_another_size_are_refused():
    case = mpu_workers.Case("tf_keras")
    optimizer = case.mpu()
    optimizer.build([tf.Variable([1.0])])
    with pytest.raises(ValueError, match="0 weights were given, but the optimizer has"):
        optimizer.set_weights([])
