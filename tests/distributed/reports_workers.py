"""Users' reports that are not trainings to compare with one process; what reports_test.py runs."""

import importlib

import numpy as np
import tensorflow as tf

import tf_epgc
from tests.distributed.harness import worker_index


def missing_gradient():
    """R56: worker 1 has no gradient for one of the variables."""
    strategy = tf_epgc.EPGCMirroredStrategy(bits=8, start_timeout=20)
    import keras

    with strategy.scope():
        variables = [tf.Variable(tf.ones([2000])), tf.Variable(tf.ones([3000]))]
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(variables)

    def replica_fn():
        gradients = [tf.ones([2000]), tf.ones([3000])]
        if worker_index() == 1:
            gradients[0] = None
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    strategy.run(tf.function(replica_fn))


def batches_of_different_number():
    """R23: worker 0 has 100 rows, worker 1 has 90, in a loop of the user's own. Steps done, and the sums of rows."""
    strategy = tf_epgc.EPGCMirroredStrategy(bits=8)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    rows = tf.data.Dataset.range(100 - 10 * worker_index()).batch(20).with_options(options)
    step = tf.function(lambda batch: strategy.reduce("SUM", strategy.run(tf.size, args=(batch,)), axis=None))
    return [int(step(batch)) for batch in strategy.experimental_distribute_dataset(rows)]


def trained_through(implementation):
    """R90: weights after three steps with this implementation of the collectives."""
    options = tf.distribute.experimental.CommunicationOptions(implementation=implementation)
    strategy = tf_epgc.EPGCMirroredStrategy(bits=8, communication_options=options)
    with strategy.scope():
        variable = tf.Variable(tf.zeros([70, 50]))

    def replica_fn(step):
        noise = tf.random.stateless_normal([70, 50], [worker_index(), step])
        summed = tf.distribute.get_replica_context().all_reduce("SUM", noise, options=tf_epgc.GradientOptions())
        variable.assign_sub(summed)

    for step in range(3):
        strategy.run(tf.function(replica_fn), args=(step,))
    return variable.numpy()


def normalization_outside_of_replicas():
    """R46: what is said when a batch normalization is trained without strategy.run, eagerly and in a function."""
    import keras

    strategy = tf_epgc.EPGCMirroredStrategy(bits=8)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    rows = tf.ones([8, 4])
    model(rows)  # predicting is fine
    model.set_weights(model.get_weights())
    errors = []
    for call in (lambda: model(rows, training=True), tf.function(lambda: model(rows, training=True))):
        try:
            call()
        except RuntimeError as error:
            errors.append(str(error))
    return errors


def compiled_by_xla(library):
    """R08: what `jit_compile=True` is answered with."""
    keras = importlib.import_module(library)
    strategy = tf_epgc.EPGCMirroredStrategy(bits=8)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=True)
    try:
        model.fit(np.ones([32, 4], np.float32), np.ones([32, 1], np.float32), batch_size=16, verbose=0)
    except ValueError as error:
        return str(error)
    return "trained"


def logged_for_tensorboard(library, folder):
    """Losses by epoch, with TensorBoard's callback and one folder for all workers."""
    keras = importlib.import_module(library)
    strategy = tf_epgc.EPGCMirroredStrategy(bits=8)
    x, y = np.ones([32, 4], np.float32), np.ones([32, 1], np.float32)
    with strategy.scope():
        model = keras.Sequential(
            [keras.layers.Input((4,)), keras.layers.Dense(3), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        )
        model.compile("sgd", "mse")
    callback = tf_epgc.TensorBoard(folder, histogram_freq=1, update_freq="batch")
    arguments = dict(batch_size=16, epochs=2, validation_data=(x, y), verbose=0)
    return model.fit(x, y, callbacks=[callback], **arguments).history["loss"]


def _rate(optimizer):
    return float(np.asarray(tf.convert_to_tensor(optimizer.learning_rate)))


def plateaus(library):
    """R43: rates after two epochs without improvement, by optimizer; and what is said where a schedule has them."""
    keras = importlib.import_module(library)
    strategy = tf_epgc.EPGCMirroredStrategy(bits=8)
    x, y = np.ones([32, 4], np.float32), np.ones([32, 1], np.float32)
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    loss_scaled = keras.mixed_precision.LossScaleOptimizer
    makers = {
        "plain": lambda: keras.optimizers.SGD(0.1),
        "loss_scale": lambda: loss_scaled(keras.optimizers.SGD(0.1)),
        "mpu": lambda: tf_epgc.MPUOptimizer(keras.optimizers.SGD(0.1)),
        "schedule": lambda: tf_epgc.MPUOptimizer(keras.optimizers.SGD(schedule)),
    }
    results = {}
    for name, make in makers.items():
        with strategy.scope():
            model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
            model.compile(make(), "mse")
        reduce_rate = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=0, min_delta=1e9)
        try:
            model.fit(x, y, batch_size=16, epochs=3, verbose=0, callbacks=[reduce_rate])
            results[name] = _rate(model.optimizer)
        except (TypeError, ValueError, AttributeError) as error:
            results[name] = str(error)
    return results
