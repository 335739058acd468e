"""Users' reports (each test names its own): what should happen, on two workers, within a minute each."""

import os

import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests.distributed.harness import run_workers

WORKERS = "tests.distributed.reports_workers:"


@pytest.mark.slow
class ReportsTest(parameterized.TestCase, tf.test.TestCase):
    def test_missing_gradient(self):
        """R56: a gradient that one worker lacks is an error everywhere, not a hang."""
        for failure in run_workers(WORKERS + "missing_gradient", expect_failure=True, timeout=60):
            self.assertIn("The workers built different models", failure.message)
            self.assertIn("float32(3000,)", failure.message)

    def test_batches_of_different_number(self):
        """R23: both do as many steps, and every row is counted."""
        for rows in run_workers(WORKERS + "batches_of_different_number", timeout=60):
            self.assertEqual(sum(rows), 190)

    def test_implementations(self):
        """R90: RING and AUTO give the same bits."""
        ring, auto = (
            run_workers(WORKERS + "trained_through", kwargs={"implementation": name}, timeout=60)
            for name in ("RING", "AUTO")
        )
        for weights in (*ring, *auto):
            self.assertEqual(weights.tobytes(), ring[0].tobytes())

    def test_normalization_outside_of_replicas(self):
        """R46: an error that says where the step belongs, instead of statistics that drift apart."""
        for errors in run_workers(WORKERS + "normalization_outside_of_replicas", timeout=60):
            self.assertLen(errors, 2)
            for error in errors:
                self.assertIn("was called with training=True outside of strategy.run", error)

    @parameterized.parameters("keras", "tf_keras")
    def test_compiled_by_xla(self, library):
        """R08: refused with a sentence on every worker."""
        for said in run_workers(WORKERS + "compiled_by_xla", kwargs={"library": library}, timeout=60):
            self.assertIn("jit_compile=True would have XLA compile an all-reduce between CPUs", said)

    @parameterized.parameters("keras", "tf_keras")
    def test_tensorboard(self, library):
        """One folder for all: the chief alone writes, and nobody waits for the other."""
        pytest.importorskip("tensorboard")
        folder = os.path.join(self.get_temp_dir(), library)
        arguments = {"library": library, "folder": folder}
        first, second = run_workers(WORKERS + "logged_for_tensorboard", kwargs=arguments, timeout=60)
        self.assertEqual(first, second)
        for part in ("train", "validation"):
            self.assertLen(os.listdir(os.path.join(folder, part)), 1)

    @parameterized.parameters("keras", "tf_keras")
    def test_reduce_rate_on_plateau(self, library):
        """R43: the rate is reached through wrappers and is the same on all workers; a schedule is a readable error."""
        for rates in run_workers(WORKERS + "plateaus", kwargs={"library": library}, timeout=60):
            for name in ("plain", "loss_scale", "mpu"):
                self.assertAllClose(rates[name], 0.025, msg=name)
            if library == "keras":
                self.assertIn("created with a `LearningRateSchedule`", rates["schedule"])
            else:  # tf_keras says nothing, and the schedule goes on
                self.assertAllClose(rates["schedule"], 0.1 * 0.5**3.5)


if __name__ == "__main__":
    tf.test.main()
