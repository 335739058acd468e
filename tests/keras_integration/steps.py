"""What the tests of the optimizer do with one: single steps and short trainings."""

import numpy as np
import tensorflow as tf

from tests.distributed import mpu_workers
from tests.distributed.mpu_workers import samples, weights_of

FIXED_ONE = dict(initial_scale=1.0, dynamic=False)


def variable_of(case, value, dtype="float32"):
    if case.is_keras3:
        return case.keras.Variable(np.asarray(value, dtype), dtype=dtype)
    return tf.Variable(tf.cast(value, dtype))


def value_of(variable):
    return np.array(tf.cast(tf.convert_to_tensor(variable), tf.float32))


def apply(optimizer, gradients, variables):
    """One step with gradients of the unscaled loss."""
    scale = optimizer.scale_loss(1.0)
    optimizer.apply_gradients(
        [(tf.cast(tf.cast(g, tf.float32) * scale, v.dtype), v) for g, v in zip(gradients, variables, strict=True)]
    )


def train(case, optimizer, policy="float32", layers=None, epochs=2, **compiled):
    x, y = samples()
    model = case.model(optimizer, policy, layers)
    for name, value in compiled.items():
        setattr(model, name, value)
    model.fit(mpu_workers.dataset(x, y), epochs=epochs, verbose=0)
    return model


def check_equal(one, other):
    for mine, theirs in zip(weights_of(one), weights_of(other), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def run_steps(case, gradients, optimizer=None, **arguments):
    """Applies gradients, one a step, to a weight of 0 with rate 1; returns the optimizer and the weight."""
    variable = variable_of(case, [0.0])
    optimizer = optimizer or case.mpu(case.keras.optimizers.SGD(1.0), **arguments)
    optimizer.build([variable])

    @tf.function
    def one(gradient):
        optimizer.apply_gradients([(gradient * optimizer.scale_loss(1.0), variable)])

    for gradient in gradients:
        one(tf.constant([gradient], tf.float32))
    return optimizer, float(value_of(variable)[0])
