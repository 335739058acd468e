"""Every dtype that can be sent arrives as it was; what cannot be sent is refused."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tests.distributed import carriers_workers
from tests.distributed.harness import run_workers
from tf_epgc import carriers


class CarrierTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters(*[name for name in carriers_workers.VALUES if name != "string"])
    def test_there_and_back(self, name):
        value = tf.constant(carriers_workers.VALUES[name])
        self.assertAllEqual(carriers.from_carrier(carriers.to_carrier(value), value.dtype), value)

    def test_strings_are_refused(self):
        with self.assertRaisesRegex(
            TypeError, "Values of dtype string cannot be sent to other workers; use a floating"
        ):
            carriers.to_carrier(tf.constant("a"))


class BetweenWorkersTest(tf.test.TestCase):
    def test_gather_and_variables(self):
        """Also strings, and workers with different numbers of rows (R117)."""
        for gathered, made in run_workers("tests.distributed.carriers_workers:gathered_and_made", timeout=100):
            for name, values in carriers_workers.VALUES.items():
                first, second = (carriers_workers.rows(name, worker) for worker in range(2))
                self.assertAllEqual(gathered[name], np.concatenate([first, second]))
                self.assertAllEqual(gathered[name + "_columns"], np.concatenate([first, first], 1))
                if name in made:
                    self.assertAllEqual(made[name], values)
            self.assertEmpty(gathered["empty"])

    def test_string_variables_are_refused(self):
        for failure in run_workers(
            "tests.distributed.carriers_workers:string_variable", expect_failure=True, timeout=60
        ):
            self.assertEqual(failure.kind, "TypeError")
            self.assertIn("Values of dtype string cannot be sent", failure.message)


if __name__ == "__main__":
    tf.test.main()
