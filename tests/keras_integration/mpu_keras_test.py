"""MPUOptimizer around optimizers of Keras 3: what only they have."""

import numpy as np
import pytest

from tests.distributed import mpu_workers
from tests.distributed.mpu_workers import BATCH, CLASSES, FEATURES, samples, weights_of
from tests.keras_integration.steps import apply, run_steps, train, value_of, variable_of


def test_loss_scale_factor_is_refused(keras3):
    with pytest.raises(ValueError, match="loss_scale_factor=8.0, and the loss would be scaled twice"):
        keras3.mpu(keras3.sgd(loss_scale_factor=8.0))


def test_multi_optimizer_parts_must_not_accumulate(keras3):
    parts = keras3.keras.optimizers
    inner = parts.MultiOptimizer(lambda variable: part)
    part = parts.SGD(0.1, gradient_accumulation_steps=2)
    optimizer = keras3.mpu(inner)
    with pytest.raises(ValueError, match="which MPUOptimizer does not support"):
        for _ in range(2):  # its parts are known only after it was built
            optimizer.build([variable_of(keras3, [1.0])])
            keras3.mpu(inner).build([variable_of(keras3, [1.0])])


@pytest.mark.parametrize("compiled", [dict(run_eagerly=True), dict(steps_per_execution=4), dict(jit_compile=True)])
def test_ways_of_execution(keras3, compiled):
    usual, other = train(keras3, lambda: keras3.mpu()), train(keras3, lambda: keras3.mpu(), **compiled)
    for mine, theirs in zip(weights_of(usual), weights_of(other), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)  # XLA and eager mode fuse differently


def test_accumulation_is_what_keras_does(keras3):
    optimizers = keras3.keras.optimizers
    decay = optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    for make in (
        lambda: optimizers.SGD(decay, momentum=0.9, gradient_accumulation_steps=3, clipnorm=0.1),
        lambda: optimizers.Adam(0.01, gradient_accumulation_steps=2),
    ):
        bare, wrapped = train(keras3, make), train(keras3, lambda make=make: keras3.mpu(make()))
        for mine, theirs in zip(weights_of(bare), weights_of(wrapped), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-7)
        assert int(bare.optimizer.iterations) == int(wrapped.optimizer.iterations)


def test_sparse_gradients_of_float16_weights_accumulate(keras3):
    layers = keras3.keras.layers
    x = np.random.default_rng(0).integers(0, 10, (BATCH * 4, FEATURES))
    model = keras3.model(
        lambda: keras3.mpu(keras3.sgd(gradient_accumulation_steps=2)),
        "float16",
        lambda: [layers.Embedding(10, 4), layers.Flatten(), layers.Dense(CLASSES)],
    )
    losses = model.fit(x, samples(BATCH * 4)[1], batch_size=BATCH, epochs=4, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert int(model.optimizer.skipped_steps) == 0


def test_constraints_hold_with_masters(keras3):
    constraint = keras3.keras.constraints.MaxNorm(0.5, axis=0)
    model = train(
        keras3,
        lambda: keras3.mpu(),
        "float16",
        lambda: [keras3.keras.layers.Dense(CLASSES, kernel_constraint=constraint)],
    )
    norms = np.linalg.norm(np.float32(weights_of(model)[0]), axis=0)
    assert np.all(norms <= 0.501)


def test_moving_averages_are_of_the_masters(keras3):
    variable = variable_of(keras3, [1.0], "float16")
    sgd = keras3.keras.optimizers.SGD(2.0**-13, use_ema=True, ema_momentum=0.0)
    optimizer = keras3.mpu(sgd)
    for _ in range(3):
        apply(optimizer, [[1.0]], [variable])
    assert value_of(sgd._model_variables_moving_average[0])[0] == 1.0 - 3 * 2.0**-13
    optimizer.finalize_variable_values([variable])
    assert value_of(variable) == np.float16(1.0 - 3 * 2.0**-13)


def test_scale_goes_below_one_where_the_loss_is_large(keras3):
    """R61 a: a loss so large that even unscaled gradients overflow float16."""
    model = keras3.model(lambda: keras3.mpu(keras3.keras.optimizers.SGD(1e-8), initial_scale=1.0), "float16")
    model.compile(model.optimizer, loss=lambda y, p: 1e6 * keras3.keras.ops.mean(keras3.keras.ops.square(y - p)))
    x, y = samples()
    model.fit(mpu_workers.dataset(x, 100 * y), epochs=6, verbose=0)
    optimizer = model.optimizer
    assert float(optimizer.loss_scale) < 1.0
    assert 0 < int(optimizer.skipped_steps) < 20
    assert int(optimizer.iterations) > 10


def test_window_with_an_overflow_is_skipped_and_cleared(keras3):
    """R58: the scale starts so high that the first windows overflow; each halves it once, and nothing of them stays."""
    sgd = keras3.keras.optimizers.SGD(1.0, gradient_accumulation_steps=4)
    optimizer = keras3.mpu(sgd, initial_scale=16.0)
    window = [1.0, float("inf"), 1.0, 1.0]
    optimizer, weight = run_steps(keras3, window * 3 + [2.0, 4.0, 2.0, 0.0], optimizer)
    state = mpu_workers.state_of(optimizer)
    assert (state["scale"], state["skipped"], state["iterations"]) == (2.0, 3, 1)
    assert weight == -2.0


def test_state_of_another_size_is_refused(keras3):
    optimizer = keras3.mpu()
    optimizer.build([variable_of(keras3, [1.0])])
    with pytest.raises(ValueError, match="The saved MPUOptimizer has 0 variables of its own"):
        optimizer.load_own_variables({})
