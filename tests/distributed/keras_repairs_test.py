"""Failures of Keras 3 on several workers that the strategy mends, or refuses with a sentence."""

import numpy as np
import pytest
import tensorflow as tf

from tests.distributed import keras_repairs_workers
from tests.distributed.harness import run_workers


@pytest.mark.slow
class RepairsTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.results = run_workers("tests.distributed.keras_repairs_workers:repairs", workers=2, timeout=200)

    def same_everywhere(self, *names):
        first, second = self.results
        for name in names:
            for a, b in zip(first[name], second[name], strict=True):
                self.assertEqual(a.tobytes(), b.tobytes(), name)

    def test_overflow_on_one_worker(self):
        """R57: Keras's LossScaleOptimizer would leave the other worker waiting for ever."""
        for result in self.results:
            self.assertEqual(result["loss_scale"]["scale"], 512.0)
            self.assertEqual(result["loss_scale"]["iterations"], 3)
        for a, b in zip(*(r["loss_scale"]["weights"] for r in self.results), strict=True):
            self.assertEqual(a.tobytes(), b.tobytes())
            self.assertTrue(np.isfinite(a).all())

    def test_dropout_differs_between_workers(self):
        """R07: masks differ, and are reproducible."""
        first, second = (r["masks"] for r in self.results)
        self.assertNotAllEqual(first[0], second[0])
        self.assertAllEqual(first[0], first[1])  # and is reproducible

    def test_predict_has_every_row_once(self):
        """R32: none lost, none twice, in order."""
        reference = keras_repairs_workers.reference_prediction()
        for result in self.results:
            for prediction in result["predict"]:
                self.assertAllClose(prediction, reference, rtol=1e-5, atol=1e-5)

    def test_gather_of_many_dtypes(self):
        for result in self.results:
            for dtype, value in result["gather"].items():
                self.assertAllEqual(value, np.repeat([0.0, 1.0], [2, 5])[:, None] * np.ones(3), dtype)

    def test_clipping_is_refused(self):
        """R11: Keras 3 would clip before the sum."""
        for result in self.results:
            self.assertRegex(result["clipnorm"], "SGD.clipnorm=0.1. would clip each replica's gradients.*MPUOptimizer")

    def test_xla_is_refused(self):
        """R08: with a sentence."""
        for result in self.results:
            self.assertRegex(result["jit"], "jit_compile=True would have XLA compile an all-reduce between CPUs")

    def test_chief_saves_alone(self):
        self.same_everywhere("saved_by_the_chief")

    def test_steps_per_execution(self):
        self.same_everywhere("steps_per_execution", "plain", "bfloat16")
        for a, b in zip(self.results[0]["steps_per_execution"], self.results[0]["plain"], strict=True):
            self.assertAllClose(a, b, rtol=1e-5, atol=1e-5)


if __name__ == "__main__":
    tf.test.main()
