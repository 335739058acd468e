"""Saving and callbacks with one path for all workers."""

import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests.distributed.harness import run_workers

MODULE = "tests.distributed.callbacks_workers"


@pytest.mark.slow
class CallbacksTest(tf.test.TestCase, parameterized.TestCase):
    def same(self, first, second):
        self.assertEqual(len(first), len(second))
        for i, (a, b) in enumerate(zip(first, second, strict=True)):
            self.assertEqual(np.asarray(a).tobytes(), np.asarray(b).tobytes(), f"variable {i}: {a} {b}")

    @parameterized.product(name=["keras", "tf_keras"], workers=[1, 2])
    def test_save_resume_and_stop(self, name, workers):
        arguments = {"name": name, "folder": tempfile.mkdtemp(dir=self.get_temp_dir())}
        first = run_workers(f"{MODULE}:first_run", workers, arguments, timeout=60)
        second = run_workers(f"{MODULE}:second_run", workers, arguments, timeout=60)
        for before, after in zip(first, second, strict=True):
            # tf_keras averages BatchNormalization's statistics anew whenever they are read.
            self.assertAllClose(before["saved"], before["weights"], rtol=1e-5, atol=1e-6)
            self.assertEqual(after["epochs"], 2)
            if name == "keras":
                self.same(after["state"], before["whole"])
                self.assertFalse(after["backup"])
        if workers == 2:
            self.assertEqual([r["epochs"] for r in first], [2, 2])
            self.assertAllClose([r["rate"] for r in first], [0.01, 0.01])
        self.assertFalse([f for f in first[0]["files"] if f.startswith("part")])


if __name__ == "__main__":
    tf.test.main()
