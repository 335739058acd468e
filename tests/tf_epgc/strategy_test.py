"""The strategy in one process: its arguments, its local mode and what it adds to `Strategy`."""

import copy

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_epgc
from tests.distributed.harness import run_workers
from tf_epgc import _tf_compat
from tf_epgc.cross_device_ops import EPGCAllReduce

STOCK = tf.distribute.experimental.CommunicationOptions


class ArgumentsTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters(
        ({"bits": 12}, "bits=12 is not supported; use one of 8, 9, 11, 16, 32"),
        ({"rounding": "floor"}, "rounding='floor' is not supported; use one of truncate, nearest, stochastic"),
        ({"scaling": "tensor"}, "scaling='tensor' is not supported; use one of block, none"),
        ({"min_elements": -1}, "min_elements=-1 is not supported; use an integer of at least 0"),
        ({"min_elements": 2.5}, "min_elements=2.5 is not supported"),
        ({"min_elements": True}, "min_elements=True is not supported"),
        ({"bits": [8]}, r"bits=\[8\] is not supported; use one of 8, 9, 11, 16, 32"),
        ({"bits": None}, "bits=None is not supported; use one of 8, 9, 11, 16, 32"),
        ({"seed": 1.5}, "seed=1.5 is not supported; use an integer"),
        ({"start_timeout": 0}, "start_timeout=0 is not supported; use a number of seconds above 0"),
        ({"communication_options": tf_epgc.GradientOptions(bits=8)}, "give bits, rounding and scaling to EPGC"),
        ({"communication_options": "RING"}, "communication_options='RING' is not supported; use tf.distribute"),
        ({"communication_options": STOCK(implementation="NCCL")}, "NCCL, which needs GPUs, and there are none"),
    )
    def test_refused(self, arguments, text):
        with self.assertRaisesRegex(ValueError, text):
            tf_epgc.EPGCMirroredStrategy(**arguments)

    def test_defaults(self):
        strategy = tf_epgc.EPGCMirroredStrategy()
        self.assertIsInstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        self.assertEqual((strategy.bits, strategy.rounding, strategy.scaling), (11, "nearest", "block"))
        self.assertEqual((strategy.min_elements, strategy.simulate), (1024, False))
        self.assertEqual(strategy.num_replicas_in_sync, 1)

    def test_nine_bits_are_not_scaled(self):
        self.assertEqual(tf_epgc.EPGCMirroredStrategy(bits=9).scaling, "none")

    def test_numpy_integers(self):
        strategy = tf_epgc.EPGCMirroredStrategy(bits=np.int64(8), min_elements=np.int32(5), seed=np.uint8(3))
        self.assertEqual((strategy.bits, strategy.min_elements), (8, 5))

    def test_graph_mode(self):
        result = run_workers("tests.distributed.local_workers:graph_mode", workers=1, tf_config=False)[0]
        self.assertIn("needs eager execution, which is disabled; remove tf.compat.v1.disable_eager_execution()", result)


class CopyTest(tf.test.TestCase):
    """However a strategy is made, its gradients go through the exchange."""

    def check(self, strategy):
        self.assertIsInstance(strategy.extended._cross_device_ops, EPGCAllReduce)
        value = tf.random.normal([50, 50])
        fn = tf.function(
            lambda: tf.distribute.get_replica_context().all_reduce("SUM", [value], options=tf_epgc.GradientOptions())
        )
        self.assertAllEqual(strategy.run(fn)[0], value)

    def test_deep_copy(self):
        copied = copy.deepcopy(tf_epgc.EPGCMirroredStrategy(bits=8))
        self.assertEqual(copied.bits, 8)
        self.check(copied)

    def test_from_local_devices(self):
        self.check(tf_epgc.EPGCMirroredStrategy._from_local_devices(["/device:CPU:0"]))


class ReduceTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.strategy = tf_epgc.EPGCMirroredStrategy(bits=8)

    def test_one_replica_is_exact(self):
        """R107: one replica codes nothing."""
        value = tf.random.normal([50, 50])

        def replica_fn():
            return tf.distribute.get_replica_context().all_reduce("SUM", [value], options=tf_epgc.GradientOptions())

        self.assertAllEqual(self.strategy.run(replica_fn)[0], value)

    def test_nests(self):
        value = self.strategy.run(lambda: {"a": tf.constant(1.0), "b": (tf.constant([2.0]),)})
        self.assertEqual(self.strategy.reduce("SUM", value)["a"], 1.0)
        self.assertAllEqual(self.strategy.reduce("MEAN", value, axis=None)["b"][0], [2.0])

    def test_lists_of_plain_values_are_one_value(self):
        stock = tf.distribute.get_strategy()
        for value in ([tf.constant(1.0), tf.constant(2.0)], (1.0, 2.0)):
            self.assertAllEqual(self.strategy.reduce("SUM", value, axis=None), stock.reduce("SUM", value, axis=None))

    def test_nothing_to_reduce(self):
        self.assertEqual(self.strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", [])), [])

    def test_none_among_gradients(self):
        def replica_fn():
            values = [tf.ones([3]), None]
            return tf.distribute.get_replica_context().all_reduce("SUM", values, options=tf_epgc.GradientOptions())

        with self.assertRaisesRegex(TypeError, "Gradient 1 is None; leave out gradients that do not exist"):
            self.strategy.run(replica_fn)

    def test_scalars_over_an_axis(self):
        self.assertEqual(self.strategy.reduce("MEAN", tf.constant(3.0), axis=0), 3.0)
        self.assertEqual(self.strategy.reduce("SUM", tf.constant([3.0, 4.0]), axis=0), 7.0)


class TwoReplicasTest(tf.test.TestCase):
    """Two local devices, no TF_CONFIG."""

    def test_reduce_and_gather(self):
        result = run_workers(
            "tests.distributed.local_workers:reduce_and_gather", workers=1, tf_config=False, logical_cpus=2
        )[0]
        self.assertEqual(result["replicas"], 2)
        self.assertEqual(result["sum"], {"a": 3.0, "b": 30.0})
        self.assertEqual(result["mean"], 1.5)
        self.assertAllEqual(result["gathered"], [1.0, 2.0, 2.0])

    def test_all_reduce_in_a_nested_function(self):
        """Traced it works; run eagerly the second replica could only start once the first has ended: refused."""
        result = run_workers("tests.distributed.local_workers:nested", workers=1, tf_config=False, logical_cpus=2)[0]
        self.assertAllEqual(result["traced"], [3.0, 3.0])
        self.assertIn("merge_call` called while defining a new graph", result["eager"])

    def test_simulation_rounds_once(self):
        result = run_workers("tests.distributed.local_workers:simulated", workers=1, tf_config=False, logical_cpus=2)[0]
        for bits, (values, simulated) in result.items():
            rounded = [tf_epgc.quantize(v, bits).numpy() for v in values]
            self.assertAllEqual(simulated[0], np.add(*rounded))
            self.assertAllEqual(simulated[1], simulated[0])


class CompatTest(tf.test.TestCase):
    """What is taken from TensorFlow's private modules is still as it was."""

    def test_methods_that_are_overridden_exist(self):
        extended = _tf_compat.CollectiveAllReduceExtended
        for name in (
            "_initialize_local",
            "_initialize_multi_worker",
            "_initialize_local_devices",
            "_get_variable_creator_initial_value",
            "_create_variable",
            "_experimental_distribute_dataset",
            "_distribute_datasets_from_function",
            "_use_merge_call",
            "_batch_reduce_to",
            "_replica_ctx_all_reduce",
        ):
            self.assertTrue(callable(getattr(extended, name)), name)
        self.assertTrue(callable(_tf_compat.CollectiveAllReduce._all_reduce))

    def test_called_from(self):
        def inner():
            return _tf_compat.called_from("outer")

        def outer():
            return inner()

        self.assertTrue(outer())
        self.assertFalse(inner())


if __name__ == "__main__":
    tf.test.main()
