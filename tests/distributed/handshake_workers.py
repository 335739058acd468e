"""Workers that disagree; what handshake_test.py runs."""

import tensorflow as tf

import tf_epgc
from tests.distributed.harness import worker_index


def settings(arguments):
    """A strategy of each worker's own arguments."""
    tf_epgc.EPGCMirroredStrategy(**arguments[worker_index()])


def devices():
    """Worker 1 has two CPU devices, the other one."""
    if worker_index() == 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    tf_epgc.EPGCMirroredStrategy(bits=8)


def _variables(kind):
    first, second = ("a", [4, 3]), ("b", [4, 3])
    if kind == "order" and worker_index() == 1:
        return [second, first]
    if kind == "shape" and worker_index() == 1:
        return [first, ("b", [4, 5])]
    if kind == "count" and worker_index() == 1:
        return [first]
    return [first, second]


def variables(kind, through):
    """Variables that differ in order, shape or number, compared when a dataset is distributed or a step is run."""
    strategy = tf_epgc.EPGCMirroredStrategy(bits=8, start_timeout=10)
    with strategy.scope():
        made = [tf.Variable(tf.zeros(shape), name=name) for name, shape in _variables(kind)]
    if through == "dataset":
        strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(2))
    elif through == "function":
        tf.function(lambda: strategy.run(lambda: made[0] + 1.0))()
    else:
        strategy.run(lambda: made[0] + 1.0)


def same_models_one_after_another():
    """Two models of different sizes in one process: the right case."""
    strategy = tf_epgc.EPGCMirroredStrategy(bits=8, min_elements=1)
    results = []
    for width in (3, 5):
        with strategy.scope():
            variable = tf.Variable(tf.ones([4, width]))

        @tf.function
        def step(v=variable):
            return strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", [v * 2.0]))[0]

        results.append(step().numpy())
    return results


def gradient_shapes(in_branch):
    """Gradients whose shape depends on the worker, in a loop of the user's own, or in one of its branches."""
    strategy = tf_epgc.EPGCMirroredStrategy(bits=8)

    def all_reduce():
        gradient = tf.ones([2000 + 40 * worker_index()])
        return tf.distribute.get_replica_context().all_reduce("SUM", [gradient], options=tf_epgc.GradientOptions())

    def replica_fn():
        if not in_branch:
            return all_reduce()
        return tf.cond(tf.random.uniform([]) < 2.0, all_reduce, lambda: [tf.zeros([2000 + 40 * worker_index()])])

    strategy.run(tf.function(replica_fn))
