"""`simulate_all_reduce` against the numpy reference, and what it refuses."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_epgc
from tests import reference
from tf_epgc import exchange

SETTINGS = [(8, "block"), (8, "none"), (9, "none"), (11, "block"), (16, "block")]


def replicas(count, shape=(60, 50), scale=1e-3):
    return [np.random.default_rng(r).normal(size=shape).astype(np.float32) * scale for r in range(count)]


class SimulateTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.product(setting=SETTINGS, rounding=("truncate", "nearest", "stochastic"), count=(2, 3))
    def test_equals_reference(self, setting, rounding, count):
        bits, scaling = setting
        values = replicas(count)
        result = tf_epgc.simulate_all_reduce(values, bits, rounding, scaling, seed=3, step=4)
        wanted = reference.exchange([[v] for v in values], bits, rounding, scaling, seed=3, step=4)
        np.testing.assert_array_equal(result.numpy().view(np.uint32), wanted[0].view(np.uint32))

    @parameterized.parameters(8, 9, 11, 16, 32)
    def test_mean(self, bits):
        values = replicas(4)
        error = {8: 0.15, 9: 0.5, 11: 0.02, 16: 1e-3, 32: 1e-6}[bits]
        mean = tf_epgc.simulate_all_reduce(values, bits, reduce_op="MEAN").numpy()
        self.assertLess(np.abs(mean - np.mean(values, 0)).mean(), error * np.abs(np.mean(values, 0)).mean())

    def test_means_of_large_and_small_values(self):
        """A mean that float32 holds neither overflows nor vanishes, however many replicas (R59)."""
        for count in (2, 4, 8):
            for size in (3e4, 1e-7, 3e38 / 8):
                values = [np.full([2000], size, np.float32)] * count
                for bits in (8, 11, 16):
                    mean = tf_epgc.simulate_all_reduce(values, bits, reduce_op="MEAN").numpy()
                    self.assertAllClose(mean / size, np.ones(2000), rtol=0.13)

    def test_long_half_vector(self):
        """Sums of float16 gradients are float32 sums (R69)."""
        values = [np.ones([65536], np.float16)] * 4
        self.assertAllEqual(tf_epgc.simulate_all_reduce(values, 16, reduce_op="MEAN"), values[0])

    def test_one_replica_stays_as_it_is(self):
        (value,) = replicas(1)
        self.assertAllEqual(tf_epgc.simulate_all_reduce([value], 8), value)

    def test_small_tensors_are_exact(self):
        values = replicas(2, shape=(1023,))
        self.assertAllEqual(tf_epgc.simulate_all_reduce(values, 8), values[0] + values[1])
        self.assertNotAllClose(
            tf_epgc.simulate_all_reduce(replicas(2, shape=(1024,)), 8, scaling="none"),
            np.add(*replicas(2, shape=(1024,))),
            rtol=1e-4,
        )

    def test_rows_of_equal_index_are_added_before_they_are_rounded(self):
        """90 % of the ids are one (R52): its row is sent once, and the result is the dense sum's."""
        ids = np.where(np.arange(256) % 10 == 0, np.arange(256) % 50, 7)
        rows = np.random.default_rng(0).normal(size=(256, 32)).astype(np.float32)
        slices = tf.IndexedSlices(rows, ids, [50, 32])
        self.assertLen(exchange.sum_duplicate_rows(slices).indices, len(set(ids)))
        result = tf.convert_to_tensor(tf_epgc.simulate_all_reduce([slices, slices], bits=16))
        self.assertAllClose(result, 2 * tf.convert_to_tensor(slices), rtol=2e-3, atol=1e-3)

    def test_rows_of_half_precision_are_added_in_float32(self):
        slices = tf.IndexedSlices(tf.ones([4096, 1], tf.float16), tf.zeros([4096], tf.int64), tf.constant([2, 1]))
        self.assertAllEqual(exchange.sum_duplicate_rows(slices).values, [[4096.0]])

    def test_nothing_is_lost_in_mixed_lists(self):
        one = [tf.constant(v) for v in (np.float32(2), np.ones([0]), np.ones([5], np.float64) / 3)]
        for result, value in zip(tf_epgc.simulate_all_reduce([one, one], 8), one, strict=True):
            self.assertAllEqual(result, 2 * value)
            self.assertEqual(result.dtype, value.dtype)


class RefusedTest(parameterized.TestCase, tf.test.TestCase):
    def test_no_replicas(self):
        with self.assertRaisesRegex(ValueError, "gradients is empty; give one entry for each replica"):
            tf_epgc.simulate_all_reduce([])

    def test_different_shapes(self):
        with self.assertRaisesRegex(ValueError, r"Gradient 0 is float32 of shape \(2,\) on replica 0 but .*\(3,\)"):
            tf_epgc.simulate_all_reduce([[tf.zeros([2])], [tf.zeros([3])]])

    def test_different_numbers(self):
        with self.assertRaisesRegex(ValueError, "Replica 1 has 2 gradients, replica 0 has 1"):
            tf_epgc.simulate_all_reduce([[tf.zeros([2])], [tf.zeros([2])] * 2])

    def test_integers(self):
        with self.assertRaisesRegex(TypeError, "A gradient has dtype int32; gradients must be float32"):
            tf_epgc.simulate_all_reduce([[tf.constant([1])]] * 2)

    def test_other_operations(self):
        with self.assertRaisesRegex(ValueError, "reduce_op='MAX' is not supported; use 'SUM' or 'MEAN'"):
            tf_epgc.simulate_all_reduce([[tf.zeros([2])]] * 2, reduce_op="MAX")


if __name__ == "__main__":
    tf.test.main()
