"""`SharedDecisions` in one process, and the learning rate inside of wrappers."""

import keras
import tensorflow as tf
import tf_keras
from absl.testing import parameterized

import tf_epgc
from tf_epgc.keras_integration.shared_decisions import _rate_variable


class SharedDecisionsTest(tf.test.TestCase, parameterized.TestCase):
    def test_refuses_other_rules(self):
        with self.assertRaisesRegex(ValueError, "rule='most'.*use 'any' or 'all'"):
            tf_epgc.SharedDecisions("most")

    @parameterized.parameters(keras, tf_keras)
    def test_finds_the_rate_inside_of_wrappers(self, library):
        for wrap in (lambda o: o, tf_epgc.MPUOptimizer, library.mixed_precision.LossScaleOptimizer):
            self.assertNear(float(_rate_variable(wrap(library.optimizers.SGD(0.25))).numpy()), 0.25, 1e-7)

    @parameterized.parameters(keras, tf_keras)
    def test_leaves_a_schedule_alone(self, library):
        schedule = library.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
        self.assertIsNone(_rate_variable(tf_epgc.MPUOptimizer(library.optimizers.SGD(schedule))))


if __name__ == "__main__":
    tf.test.main()
