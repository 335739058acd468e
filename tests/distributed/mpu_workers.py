"""What the workers of the MPUOptimizer's tests do; each function runs in every worker and returns what came of it."""

import contextlib
import importlib
import os
import traceback

import numpy as np

from tests.distributed.harness import worker_index

FEATURES = 8
CLASSES = 4
BATCH = 16
STEPS = 6


class Case:
    """A library, a strategy, and small models and data that are the same in every process.

    Args:
      library: "keras" or "tf_keras".
      strategy: Or None.
    """

    def __init__(self, library, strategy=None):
        self.keras = importlib.import_module(library)
        self.is_keras3 = library == "keras"
        self.strategy = strategy
        self.set_policy("float32")

    def set_policy(self, policy):
        if self.is_keras3:
            self.keras.config.set_dtype_policy(policy)
        else:
            self.keras.mixed_precision.set_global_policy(policy)

    def scope(self):
        return self.strategy.scope() if self.strategy else contextlib.nullcontext()

    def model(self, optimizer=None, policy="float32", layers=None, loss="mse", seed=1):
        """A compiled model; `optimizer` and `layers` are functions, called in the scope."""
        self.keras.utils.set_random_seed(seed)
        self.set_policy(policy)
        with self.scope():
            layers = layers or (
                lambda: [self.keras.layers.Dense(16, activation="relu"), self.keras.layers.Dense(CLASSES)]
            )
            model = self.keras.Sequential([self.keras.layers.Input((FEATURES,)), *layers()])
            if optimizer:
                model.compile(optimizer(), loss=loss)
        return model

    def sgd(self, **arguments):
        return self.keras.optimizers.SGD(0.05, momentum=0.9, **arguments)

    def mpu(self, inner=None, **arguments):
        import tf_epgc.keras_integration

        return tf_epgc.keras_integration.MPUOptimizer(inner or self.sgd(), **arguments)


def make_strategy(kind, bits=11, scaling=None):
    """ "epgc", "stock", "mirrored" or "none"."""
    import tensorflow as tf

    if kind == "none":
        return None
    if kind == "stock":
        return tf.distribute.MultiWorkerMirroredStrategy()
    if kind == "mirrored":
        return tf.distribute.MirroredStrategy([device.name for device in tf.config.list_logical_devices("CPU")])
    import tf_epgc

    return tf_epgc.EPGCMirroredStrategy(bits=bits, scaling=scaling, min_elements=1)


def samples(count=BATCH * STEPS, seed=2):
    """Inputs and targets of a linear task."""
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((count, FEATURES)).astype("float32")
    return x, (x @ generator.standard_normal((FEATURES, CLASSES))).astype("float32")


def poisoned(x, value, steps):
    """`x` in which worker 1's half of the given steps' batches holds a bad value.

    Of a batch of 16, TensorFlow hands the last 8 rows to worker 1.
    """
    x = x.copy()
    for step in steps:
        x[step * BATCH + BATCH // 2] = value
    return x


def dataset(x, y):
    import tensorflow as tf

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH, drop_remainder=True).with_options(options)


def weights_of(model):
    return [np.array(w) for w in model.get_weights()]


def state_of(optimizer):
    """Every variable of the optimizer, and what tests look at."""
    import tensorflow as tf

    variables = optimizer.variables
    variables = variables() if callable(variables) else variables
    return {
        "variables": [np.array(v.numpy()) for v in variables],
        "scale": float(optimizer.loss_scale),
        "skipped": int(optimizer.skipped_steps),
        "good": int(optimizer.good_steps),
        "iterations": int(tf.convert_to_tensor(optimizer.iterations)),
    }


def result_of(model, **more):
    return {"weights": weights_of(model), **state_of(model.optimizer), **more}


def recorder(case):
    """A callback that notes scale, skipped steps and a weight after each batch."""

    class Recorder(case.keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.scales, self.skipped, self.weights = [], [], []

        def on_train_batch_end(self, batch, logs=None):
            self.scales.append(float(self.model.optimizer.loss_scale))
            self.skipped.append(int(self.model.optimizer.skipped_steps))
            self.weights.append(weights_of(self.model)[0])

    return Recorder()


def fit_with_bad_step(case, policy="float32", value=np.inf, bad=(2,), accumulate=None, eager=False):
    """Trains by `fit` on data with bad values for one worker."""
    from tf_epgc.keras_integration import MPUMonitor

    extra = {"gradient_accumulation_steps": accumulate} if accumulate else {}
    model = case.model(lambda: case.mpu(case.sgd(**extra), initial_scale=2.0**10, growth_steps=3), policy)
    model.run_eagerly = eager
    x, y = samples()
    record, monitor = recorder(case), MPUMonitor()
    history = model.fit(dataset(poisoned(x, value, bad), y), verbose=0, callbacks=[record, monitor]).history
    return result_of(
        model, scales=record.scales, skipped_by_step=record.skipped, by_step=record.weights, history=history
    )


def loop_with_bad_step(case, policy="float32", value=np.nan, bad=(2,), accumulate=None, compiled=True):
    """The same in a loop of the user's own."""
    import tensorflow as tf

    extra = {"gradient_accumulation_steps": accumulate} if accumulate else {}
    model = case.model(None, policy)
    with case.scope():
        model.optimizer = case.mpu(case.sgd(**extra), initial_scale=2.0**10, growth_steps=3)
    step = train_step(case, model)
    step = tf.function(step) if compiled else step
    x, y = samples()
    scales, skipped, by_step = [], [], []
    for batch in distributed(case, dataset(poisoned(x, value, bad), y)):
        step(batch)
        scales.append(float(model.optimizer.loss_scale))
        skipped.append(int(model.optimizer.skipped_steps))
        by_step.append(weights_of(model)[0])
    return result_of(model, scales=scales, skipped_by_step=skipped, by_step=by_step)


def distributed(case, data):
    return case.strategy.experimental_distribute_dataset(data) if case.strategy else data


def train_step(case, model, optimizer=None, apply=None):
    """A step of a user's own loop, as docs/mpu.md has it."""
    import tensorflow as tf

    optimizer = optimizer or model.optimizer
    strategy = case.strategy or tf.distribute.get_strategy()

    def one_replica(x, y):
        with tf.GradientTape() as tape:
            error = tf.reduce_mean(tf.square(tf.cast(model(x, training=True), tf.float32) - y))
            loss = optimizer.scale_loss(error / strategy.num_replicas_in_sync)
        gradients = tape.gradient(loss, model.trainable_variables)
        if apply:
            apply(gradients)
        else:
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    return lambda batch: strategy.run(one_replica, args=batch)


def bad_steps(library, kind="epgc", only=None):
    """Overflow on one replica, in every way it can come, or in those named by `only`."""
    case = Case(library, make_strategy(kind))
    runs = {
        "fit_inf": lambda: fit_with_bad_step(case),
        "fit_nan": lambda: fit_with_bad_step(case, value=np.nan, bad=(1, 4)),
        "fit_mixed_float16": lambda: fit_with_bad_step(case, "mixed_float16"),
        "fit_eager": lambda: fit_with_bad_step(case, eager=True),
        "loop_nan": lambda: loop_with_bad_step(case),
        "loop_mixed_float16": lambda: loop_with_bad_step(case, "mixed_float16", -np.inf),
        "loop_eager": lambda: loop_with_bad_step(case, compiled=False),
    }
    if case.is_keras3:
        runs["fit_float16"] = lambda: fit_with_bad_step(case, "float16")
        runs["fit_bfloat16"] = lambda: fit_with_bad_step(case, "bfloat16")
        runs["fit_accumulated"] = lambda: fit_with_bad_step(case, accumulate=2)
        runs["loop_accumulated"] = lambda: loop_with_bad_step(case, "float16", accumulate=2)
    return each({name: run for name, run in runs.items() if only is None or name in only})


def each(runs):
    """Calls every function; an exception becomes that run's result, so that it hides no other."""
    results = {}
    for name, run in runs.items():
        try:
            results[name] = run()
        except Exception:
            results[name] = {"error": traceback.format_exc()}
    return results


# Every optimizer.


def shipped_optimizers(library):
    """Functions that make each optimizer the library ships, by name."""
    optimizers = importlib.import_module(library).optimizers
    wrappers = ("Optimizer", "LossScaleOptimizer")
    names = [
        name
        for name in dir(optimizers)
        if isinstance(getattr(optimizers, name), type)
        and issubclass(getattr(optimizers, name), optimizers.Optimizer)
        and name not in wrappers
    ]
    return {name: lambda name=name: make_optimizer(optimizers, name) for name in names}


def make_optimizer(optimizers, name):
    if name == "MultiOptimizer":
        one, two = optimizers.Adam(0.01), optimizers.SGD(0.05)
        return optimizers.MultiOptimizer(lambda variable: one if "kernel" in variable.path else two)
    return getattr(optimizers, name)(learning_rate=0.01)


def every_optimizer(library, bits=11, kind="epgc"):
    """Trains an epoch with each shipped optimizer, wrapped, in one process group."""
    case = Case(library, make_strategy(kind, bits))
    x, y = samples(256)

    def train(make, policy):
        model = case.model(lambda: case.mpu(make()), policy)
        before = weights_of(model)
        history = model.fit(dataset(x, y), epochs=1, verbose=0).history["loss"]
        return result_of(model, before=before, history=history)

    runs = {}
    for name, make in shipped_optimizers(library).items():
        runs[name] = lambda make=make: train(make, "float32")
        # Optimizers that read weights when they are built, or that do not treat all alike, with masters too.
        if case.is_keras3 and name in ("Adam", "MultiOptimizer", "Muon", "ScheduleFreeAdamW"):
            runs[f"{name}/float16"] = lambda make=make: train(make, "float16")
    return each(runs)


# Comparisons with one process.


def comparisons(library, kind, bits=32):
    """Runs whose weights must not depend on the number of workers."""
    case = Case(library, make_strategy(kind, bits))
    x, y = samples()

    def train(inner, layers=None):
        model = case.model(lambda: case.mpu(inner()), layers=layers)
        model.fit(dataset(x, y), epochs=1, verbose=0)
        return result_of(model)

    optimizers = case.keras.optimizers
    schedules = optimizers.schedules
    runs = {
        "plain": lambda: train(case.sgd),
        "clipnorm": lambda: train(lambda: case.sgd(clipnorm=0.05)),
        "global_clipnorm": lambda: train(lambda: case.sgd(global_clipnorm=0.05)),
        "clipvalue": lambda: train(lambda: case.sgd(clipvalue=0.01)),
        "schedule": lambda: train(lambda: optimizers.SGD(schedules.ExponentialDecay(0.1, 2, 0.5))),
        "ema": lambda: train(lambda: case.sgd(use_ema=True, ema_momentum=0.5)),
        "ema_overwrite": lambda: train(lambda: case.sgd(use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3)),
        "weight_decay": lambda: train(lambda: optimizers.AdamW(0.01, weight_decay=0.1)),
        "constraint": lambda: train(case.sgd, lambda: constrained_layers(case)),
    }
    if case.is_keras3:
        runs["accumulate"] = lambda: train(lambda: case.sgd(gradient_accumulation_steps=3))
        runs["accumulate_adam"] = lambda: train(lambda: optimizers.Adam(0.01, gradient_accumulation_steps=2))
        runs["accumulate_clip"] = lambda: train(lambda: case.sgd(gradient_accumulation_steps=2, clipnorm=0.05))
    runs["loop_in_cond"] = lambda: loop_in_cond(case)
    return each(runs)


def constrained_layers(case):
    layers = case.keras.layers
    limit = case.keras.constraints.MaxNorm(0.5)
    return [layers.Dense(16, activation="relu", kernel_constraint=limit), layers.Dense(CLASSES)]


def loop_in_cond(case):
    """A user's own loop that applies gradients only where a `tf.cond` says so."""
    import tensorflow as tf

    model = case.model(None)
    with case.scope():
        optimizer = model.optimizer = case.mpu(case.sgd())
        optimizer.build(model.trainable_variables)
        step = tf.Variable(0, trainable=False, dtype=tf.int64)

    def apply(gradients):
        def run():
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return tf.constant(0)

        tf.cond(tf.equal(step % 2, 0), run, lambda: tf.constant(0))

    one = tf.function(train_step(case, model, optimizer, apply))
    x, y = samples()
    for batch in distributed(case, dataset(x, y)):
        one(batch)
        step.assign_add(1)
    return result_of(model)


# Saving.


def resumes(library, kind, folder, bits=11):
    """Training in one go, and stopped, saved, loaded and gone on with, by each way of saving."""
    case = Case(library, make_strategy(kind, bits))
    folder = os.path.join(folder, str(worker_index()))
    os.makedirs(folder, exist_ok=True)
    narrow = "float16" if case.is_keras3 else "mixed_float16"
    runs = {
        "model_file": lambda: resume_from_model_file(case, folder, narrow),
        "checkpoint": lambda: resume_from_checkpoint(case, folder, narrow),
        "backup": lambda: resume_from_backup(case, folder, "float32"),
    }
    if case.is_keras3:
        runs["in_window"] = lambda: resume_from_model_file(case, folder, "float16", accumulate=3, first=4)
    return each(runs)


def _growing(case, policy, accumulate=None):
    """A model in the middle of a growth interval: after 5 of 4 + 4 good steps."""
    extra = {"gradient_accumulation_steps": accumulate} if accumulate else {}

    def inner():
        return case.keras.optimizers.Adam(0.01, **extra)

    return case.model(lambda: case.mpu(inner(), initial_scale=2.0**8, growth_steps=4), policy)


def _whole_run(case, policy, accumulate, data):
    model = _growing(case, policy, accumulate)
    model.fit(data, epochs=1, verbose=0)
    return result_of(model)


def resume_from_model_file(case, folder, policy, accumulate=None, first=5):
    x, y = samples(BATCH * 10)
    whole = _whole_run(case, policy, accumulate, dataset(x, y))
    model = _growing(case, policy, accumulate)
    model.fit(dataset(x[: first * BATCH], y[: first * BATCH]), verbose=0)
    path = os.path.join(folder, f"{policy}_{accumulate}.keras")
    model.save(path)
    with case.scope():
        loaded = case.keras.models.load_model(path)
    stopped = result_of(model)
    after_load = result_of(loaded)
    loaded.fit(dataset(x[first * BATCH :], y[first * BATCH :]), verbose=0)
    return {"whole": whole, "stopped": stopped, "loaded": after_load, "resumed": result_of(loaded)}


def resume_from_checkpoint(case, folder, policy):
    import tensorflow as tf

    x, y = samples(BATCH * 10)
    whole = _whole_run(case, policy, None, dataset(x, y))
    model = _growing(case, policy)
    model.fit(dataset(x[: 5 * BATCH], y[: 5 * BATCH]), verbose=0)
    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(
        os.path.join(folder, f"{policy}_checkpoint")
    )
    other = _growing(case, policy)
    with case.scope():
        other.optimizer.build(other.trainable_variables)
    tf.train.Checkpoint(model=other, optimizer=other.optimizer).restore(path).assert_existing_objects_matched()
    after_load = result_of(other)
    stopped = result_of(model)
    other.fit(dataset(x[5 * BATCH :], y[5 * BATCH :]), verbose=0)
    return {"whole": whole, "stopped": stopped, "loaded": after_load, "resumed": result_of(other)}


class Stop(Exception):
    pass


def resume_from_backup(case, folder, policy):
    """Two epochs, the second of which fails; then a new model trains on from the backup."""
    x, y = samples(BATCH * 5)
    model = _growing(case, policy)
    model.fit(dataset(x, y), epochs=2, verbose=0)
    whole = result_of(model)

    class Fail(case.keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                raise Stop

    # In tf_keras only the chief writes, and all read what it wrote; in Keras 3 every worker has its own.
    folder = folder if case.is_keras3 else os.path.dirname(folder)

    def backup():
        return case.keras.callbacks.BackupAndRestore(os.path.join(folder, f"{policy}_backup"))

    model = _growing(case, policy)
    with contextlib.suppress(Stop):
        model.fit(dataset(x, y), epochs=2, verbose=0, callbacks=[backup(), Fail()])
    stopped = result_of(model)
    other = _growing(case, policy)
    other.fit(dataset(x, y), epochs=2, verbose=0, callbacks=[backup()])
    return {"whole": whole, "stopped": stopped, "loaded": stopped, "resumed": result_of(other)}


# Keras's own loss scaling, other strategies, odd gradients.


def keras_loss_scale_optimizer(library):
    """fit with the library's LossScaleOptimizer while one worker overflows."""
    import tensorflow as tf

    case = Case(library, make_strategy("epgc"))
    x, y = samples()

    def make():
        return case.keras.mixed_precision.LossScaleOptimizer(case.sgd(), initial_scale=2.0**10)

    model = case.model(make, "mixed_float16")
    model.fit(dataset(poisoned(x, np.inf, (2,)), y), verbose=0)
    optimizer = model.optimizer
    scale = optimizer.dynamic_scale if case.is_keras3 else optimizer.loss_scale
    return {"weights": weights_of(model), "scale": float(tf.convert_to_tensor(scale))}
