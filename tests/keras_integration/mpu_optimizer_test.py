"""MPUOptimizer in one process, for both libraries: arguments, steps, masters, and what the inner optimizer does."""

import contextlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests.distributed import mpu_workers
from tests.distributed.mpu_workers import BATCH, CLASSES, FEATURES, samples, weights_of
from tests.keras_integration.steps import FIXED_ONE, apply, check_equal, run_steps, train, value_of, variable_of
from tf_epgc.keras_integration import MPUOptimizer

# Arguments.


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(initial_scale=0.0), r"initial_scale=0.0 is not supported; use a number"),
        (dict(initial_scale=-2.0), r"initial_scale=-2.0 is not supported"),
        (dict(initial_scale=float("nan")), r"initial_scale=nan is not supported"),
        (dict(initial_scale=float("inf")), r"initial_scale=inf is not supported"),
        (dict(initial_scale="big"), r"initial_scale='big' is not supported"),
        (dict(min_scale=0.0), r"min_scale=0.0 is not supported"),
        (dict(max_scale=float("inf")), r"max_scale=inf is not supported"),
        (dict(min_scale=8.0, max_scale=4.0), r"min_scale=8.0 is above max_scale=4.0; use one"),
        (dict(initial_scale=2.0, min_scale=4.0), r"initial_scale=2.0 is not between min_scale=4.0 and max_scale"),
        (dict(growth_steps=0), r"growth_steps=0 is not supported; use an integer of at least 1"),
        (dict(growth_steps=1.5), r"growth_steps=1.5 is not supported"),
        (dict(growth_steps=True), r"growth_steps=True is not supported"),
        (dict(dynamic="yes"), r"dynamic='yes' is not supported; use True, or False"),
    ],
)
def test_wrong_settings_are_refused(case, arguments, message):
    with pytest.raises(ValueError, match=message):
        case.mpu(**arguments)


def test_only_an_optimizer_can_be_wrapped(case):
    for wrong in ("sgd", None, object(), case.keras.optimizers.SGD):
        with pytest.raises(TypeError, match="wraps an optimizer of keras.optimizers or tf_keras.optimizers, not"):
            MPUOptimizer(wrong)


def test_an_optimizer_that_scales_already_cannot_be_wrapped(case):
    scaling = case.keras.mixed_precision.LossScaleOptimizer(case.sgd())
    with pytest.raises(TypeError, match="cannot wrap a LossScaleOptimizer"):
        MPUOptimizer(scaling)
    with pytest.raises(TypeError, match="cannot wrap a .*MPUOptimizer"):
        MPUOptimizer(case.mpu())


# Names and imports.


def test_it_is_what_its_library_expects(case):
    optimizer = case.mpu()
    assert isinstance(optimizer, MPUOptimizer)
    assert isinstance(optimizer, case.keras.optimizers.Optimizer)
    model = case.model(lambda: case.mpu(), "mixed_float16")
    assert isinstance(model.optimizer, MPUOptimizer), "compile wrapped it again"


def test_imports_are_lazy():
    code = (
        "import sys, tensorflow\n"
        "libraries = {'keras', 'tf_keras'} & set(sys.modules)  # TensorFlow may have imported its own\n"
        "import tf_epgc.keras_integration as k; k.MPUOptimizer; k.MPUMonitor\n"
        "assert {'keras', 'tf_keras'} & set(sys.modules) == libraries\n"
        "import keras\n"
        "k.MPUOptimizer(keras.optimizers.SGD(0.1))\n"
        "assert 'tf_keras' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)


# What the inner optimizer does, it does.


def test_one_process_is_what_the_inner_optimizer_would_do(case):
    optimizers = case.keras.optimizers
    makers = [
        case.sgd,
        lambda: optimizers.Adam(0.01),
        lambda: optimizers.SGD(optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)),
        lambda: case.sgd(clipnorm=0.05),
        lambda: case.sgd(use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3),
        lambda: optimizers.AdamW(0.01, weight_decay=0.1),
    ]
    for make in makers:
        check_equal(train(case, make), train(case, lambda make=make: case.mpu(make())))


def test_sparse_gradients(case):
    def layers():
        return [case.keras.layers.Embedding(10, 4), case.keras.layers.Flatten(), case.keras.layers.Dense(CLASSES)]

    x = np.random.default_rng(0).integers(0, 10, (BATCH * 4, FEATURES))
    y = samples(BATCH * 4)[1]
    results = []
    for wrap in (lambda o: o, case.mpu):
        model = case.model(lambda wrap=wrap: wrap(case.sgd()), layers=layers)
        model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
        results.append(model)
    check_equal(*results)


def test_learning_rate_goes_through(case):
    callbacks = case.keras.callbacks
    model = case.model(lambda: case.mpu(case.keras.optimizers.SGD(0.5)))
    x, y = samples()
    plateau = callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=0, min_delta=1e9)
    model.fit(x, y, epochs=3, verbose=0, callbacks=[plateau])
    rate = np.array(tf.convert_to_tensor(model.optimizer.inner_optimizer.learning_rate))
    assert rate == np.array(tf.convert_to_tensor(model.optimizer.learning_rate)) == 0.125
    model.optimizer.learning_rate = 0.25
    assert np.array(tf.convert_to_tensor(model.optimizer.inner_optimizer.learning_rate)) == 0.25


def test_learning_rate_of_a_schedule_cannot_be_set(case):
    schedule = case.keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    optimizer = case.mpu(case.keras.optimizers.SGD(schedule))
    with pytest.raises(TypeError, match="learning rate is not settable"):
        optimizer.learning_rate = 0.5


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_exclude_from_weight_decay(case, dtype):
    def after_step(**excluded):
        variables = [variable_of(case, [1.0], dtype), variable_of(case, [1.0], dtype)]
        optimizer = case.mpu(case.keras.optimizers.SGD(0.5, weight_decay=0.5))
        optimizer.exclude_from_weight_decay(**{name: pick(variables) for name, pick in excluded.items()})
        apply(optimizer, [[0.0], [0.0]], variables)
        return [float(value_of(v)[0]) for v in variables]

    assert after_step() == [0.75, 0.75]
    assert after_step(var_list=lambda variables: variables[:1]) == [1.0, 0.75]
    assert after_step(var_names=lambda variables: [variables[1].name.removesuffix(":0") + "(:0)?$"])[1] == 1.0


# Float32 masters.


def test_tiny_updates_survive_only_with_masters(case):
    """A float16 weight of 1 does not see updates of 2^-13; their sum, in a master, it does."""
    bare, wrapped = variable_of(case, [1.0], "float16"), variable_of(case, [1.0], "float16")
    inner, optimizer = case.keras.optimizers.SGD(2.0**-13), case.mpu(case.keras.optimizers.SGD(2.0**-13))
    for _ in range(64):
        inner.apply_gradients([(tf.constant([1.0], tf.float16), bare)])
        apply(optimizer, [[1.0]], [wrapped])
    assert value_of(bare) == 1.0
    assert value_of(wrapped) == 1.0 - 64 * 2.0**-13


def test_only_narrow_variables_get_masters(case):
    optimizer = case.mpu(case.keras.optimizers.SGD(0.1))
    variables = [variable_of(case, np.zeros(1000), dtype) for dtype in ("float32", "float16", "bfloat16")]
    optimizer.build(variables)
    own = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
    inner = optimizer.inner_optimizer.variables
    inner = {id(v) for v in (inner() if callable(inner) else inner)}
    masters = [v for v in own if int(np.prod(v.shape)) == 1000 and id(v) not in inner]
    assert [tf.as_dtype(v.dtype) for v in masters] == [tf.float32, tf.float32]


def test_masters_follow_weights_that_are_set(case):
    variable = variable_of(case, [1.0, 2.0], "float16")
    optimizer = case.mpu(case.keras.optimizers.SGD(0.25))
    apply(optimizer, [[1.0, 1.0]], [variable])
    variable.assign([8.0, 1.75])
    apply(optimizer, [[1.0, 1.0]], [variable])
    np.testing.assert_array_equal(value_of(variable), [7.75, 1.5])


# The scale.


def test_scale_grows_halves_and_skips(case):
    bad = float("nan")
    optimizer, weight = run_steps(case, [1, 1, 1, bad, 1, 1], initial_scale=16.0, growth_steps=3)
    assert weight == -5.0
    state = mpu_workers.state_of(optimizer)
    assert (state["scale"], state["good"], state["skipped"], state["iterations"]) == (16.0, 2, 1, 5)


def test_fixed_scale_stays_and_still_skips(case):
    optimizer, weight = run_steps(case, [1, float("inf"), 1], initial_scale=16.0, dynamic=False)
    assert (weight, float(optimizer.loss_scale), int(optimizer.skipped_steps)) == (-2.0, 16.0, 1)


def test_scale_never_reaches_zero(case, capfd):
    """R61 b: one good step after many bad ones."""
    optimizer, weight = run_steps(case, [float("inf")] * 200 + [1.0])
    assert float(optimizer.loss_scale) == optimizer.min_scale == 2.0**-32
    assert weight == -1.0
    assert capfd.readouterr().err.count("gradients are not finite although the loss scale is at min_scale") == 1


def test_scale_never_reaches_infinity(case):
    """R61 c: gradients that are all zero."""
    optimizer, weight = run_steps(case, [0.0] * 130, growth_steps=1)
    assert float(optimizer.loss_scale) == optimizer.max_scale
    _, weight = run_steps(case, [0.0] * 130 + [0.5], growth_steps=1)
    assert weight == -0.5


# Custom loops.


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_recipe_gives_the_float32_update(case, policy):
    """R65: the loop of docs/mpu.md against a float32 step without any scale."""
    x, y = samples(BATCH)
    model = case.model(None, policy)
    start = weights_of(model)
    model.optimizer = case.mpu(case.keras.optimizers.SGD(0.1))
    mpu_workers.train_step(case, model)((tf.constant(x), tf.constant(y)))
    reference = case.model(None)
    reference.set_weights(start)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(reference(x) - y))
    for g, v in zip(tape.gradient(loss, reference.trainable_variables), reference.trainable_variables, strict=True):
        v.assign(v - 0.1 * g)
    tolerance = 1e-6 if policy == "float32" else 2e-3
    for mine, theirs in zip(weights_of(model), weights_of(reference), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance)


def test_loss_that_was_never_scaled_is_refused(case):
    """R65: a scale that was forgotten shows."""
    variable = variable_of(case, [1.0])
    with pytest.raises(ValueError, match="scale_loss was never called: they would be divided by a scale"):
        case.mpu().apply_gradients([(tf.constant([1.0]), variable)])
    case.mpu(**FIXED_ONE).apply_gradients([(tf.constant([1.0]), variable)])


def test_scale_loss_widens_and_follows_the_scale(case):
    optimizer = case.mpu(initial_scale=2.0**20)
    scaled = tf.convert_to_tensor(optimizer.scale_loss(tf.constant(2.0, tf.float16)))
    assert scaled.dtype == tf.float32 and float(scaled) == 2.0**21
    assert tf.convert_to_tensor(optimizer.scale_loss(tf.constant(2.0, tf.float64))).dtype == tf.float64


def test_variables_without_gradients(case):
    with_gradient, without = variable_of(case, [1.0]), variable_of(case, [1.0])
    optimizer = case.mpu(case.keras.optimizers.SGD(0.5))
    scale = optimizer.scale_loss(1.0)
    optimizer.build([with_gradient, without])
    with pytest.warns(UserWarning, match="Gradients do not exist") if case.is_keras3 else _nothing():
        optimizer.apply_gradients([(tf.constant([1.0]) * scale, with_gradient), (None, without)])
    assert (value_of(with_gradient)[0], value_of(without)[0]) == (0.5, 1.0)
    with pytest.raises(ValueError, match="gradient"):
        optimizer.apply_gradients([(None, with_gradient), (None, without)])


def _nothing():
    return contextlib.nullcontext()


def test_unknown_variables_are_refused(case):
    optimizer = case.mpu(case.keras.optimizers.SGD(0.5))
    apply(optimizer, [[1.0]], [variable_of(case, [1.0])])
    with pytest.raises(ValueError, match="does not know the variable"):
        apply(optimizer, [[1.0]], [variable_of(case, [1.0])])


def test_made_outside_of_the_scope(case):
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    optimizer = case.mpu()
    with strategy.scope(), pytest.raises(ValueError, match="outside the scope of the OneDeviceStrategy"):
        optimizer.build([variable_of(case, [1.0])])


def test_outside_of_replicas(case):
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    with strategy.scope():
        variable, optimizer = variable_of(case, [1.0]), case.mpu()
        optimizer.build([variable])
        with pytest.raises(ValueError, match="call it inside `strategy.run`"):
            apply(optimizer, [[1.0]], [variable])


# Configuration.


def test_config_round_trip(case):
    settings = dict(initial_scale=8.0, dynamic=True, growth_steps=7, min_scale=0.5, max_scale=16.0)
    optimizer = case.mpu(case.keras.optimizers.Adam(0.125, clipnorm=2.0), name="mine", **settings)
    for copy in (
        type(optimizer).from_config(optimizer.get_config()),
        case.keras.optimizers.deserialize(case.keras.optimizers.serialize(optimizer)),
    ):
        assert isinstance(copy, MPUOptimizer)
        assert {name: getattr(copy, name) for name in settings} == settings
        assert copy.name == "mine"
        assert copy.inner_optimizer.get_config() == optimizer.inner_optimizer.get_config()


@pytest.mark.slow
@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_model_file_opens_in_a_new_process(library, tmp_path):
    case = mpu_workers.Case(library)
    model = train(case, lambda: case.mpu(growth_steps=5))
    path = str(tmp_path / "model.keras")
    model.save(path)
    code = (
        f"import {library} as keras\n"
        "from tf_epgc.keras_integration import MPUOptimizer\n"
        f"optimizer = keras.models.load_model({path!r}).optimizer\n"
        "assert isinstance(optimizer, MPUOptimizer), optimizer\n"
        "print(float(optimizer.loss_scale), int(optimizer.good_steps))"
    )
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert printed == [str(float(model.optimizer.loss_scale)), str(int(model.optimizer.good_steps))]
