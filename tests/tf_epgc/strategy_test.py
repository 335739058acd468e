"""The strategy in one process: its arguments, its local mode and what it adds to `Strategy`."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_epgc
from tests.distributed.harness import run_workers
from tf_epgc import _tf_compat

STOCK = tf.distribute.experimental.CommunicationOptions


class ArgumentsTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters(
        ({"bits": 12}, "bits=12 is not supported; use one of 8, 9, 11, 16, 32"),
        ({"rounding": "floor"}, "rounding='floor' is not supported; use one of truncate, nearest, stochastic"),
        ({"scaling": "tensor"}, "scaling='tensor' is not supported; use one of block, none"),
        ({"min_elements": -1}, "min_elements=-1 is not supported; use an integer of at least 0"),
        ({"min_elements": 2.5}, "min_elements=2.5 is not supported"),
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


class ReduceTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.strategy = tf_epgc.EPGCMirroredStrategy(bits=8)

    def test_one_replica_is_exact(self):
        value = tf.random.normal([50, 50])

        def replica_fn():
            return tf.distribute.get_replica_context().all_reduce("SUM", [value], options=tf_epgc.GradientOptions())

        self.assertAllEqual(self.strategy.run(replica_fn)[0], value)

    def test_nests(self):
        value = self.strategy.run(lambda: {"a": tf.constant(1.0), "b": (tf.constant([2.0]),)})
        self.assertEqual(self.strategy.reduce("SUM", value)["a"], 1.0)
        self.assertAllEqual(self.strategy.reduce("MEAN", value, axis=None)["b"][0], [2.0])

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
            "_initialize_strategy",
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
