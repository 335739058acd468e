"""Saving and callbacks with one path for all workers."""

import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests.distributed.harness import Failure, run_workers

MODULE = "tests.distributed.callbacks_workers"
LIBRARIES = ["keras", "tf_keras"]


@pytest.mark.slow
class CallbacksTest(tf.test.TestCase, parameterized.TestCase):
    def run_in(self, function, library, workers=2, folder=None, **options):
        arguments = {"name": library} | ({"folder": folder} if folder else {})
        return run_workers(f"{MODULE}:{function}", workers, arguments, **{"timeout": 100, **options})

    def folder(self):
        return tempfile.mkdtemp(dir=self.get_temp_dir())

    def same(self, first, second, case=None):
        self.assertEqual(len(first), len(second))
        for i, (a, b) in enumerate(zip(first, second, strict=True)):
            self.assertEqual(np.asarray(a).tobytes(), np.asarray(b).tobytes(), f"{case}, variable {i}: {a} {b}")

    @parameterized.product(library=LIBRARIES, workers=[1, 2])
    def test_resumed_run_is_the_uninterrupted_one(self, library, workers):
        """R34, R36: weights, optimizer's state, steps, loss scale and random layers; the backup is removed."""
        folder = self.folder()
        first = self.run_in("resume_first", library, workers, folder)
        second = self.run_in("resume_second", library, workers, folder)
        for before, after in zip(first, second, strict=True):
            for case in before:
                self.assertFalse(after[case]["left"], case)
                self.assertLen(after[case]["losses"], 2)
                # tf_keras keeps its random layers' state nowhere.
                if (library, case) != ("tf_keras", "norm"):
                    self.assertEqual(before[case]["losses"], after[case]["losses"], case)
                    self.same(before[case]["state"], after[case]["state"], case)

    @parameterized.parameters(*LIBRARIES)
    def test_files_on_one_path(self, library):
        """F12, F13, R39: written once, whole, with the weights at that time; the script's list stays as it was."""
        first, second = self.run_in("saving", library, folder=self.folder())
        names = ["best.keras", "function.keras", "ours.keras", "plain.keras"]
        names += ["own0.keras", "own1.keras"] if library == "keras" else []
        self.assertEqual(first["files"], names)
        for worker in (first, second):
            self.assertTrue(worker["given"])
            self.assertEqual(worker["own"], library == "keras")
            for case, weights in worker["loaded"].items():
                self.same(weights, first["loaded"][case], case)
            for case in ("plain", "ours"):  # 6 batches, 3 epochs: the last state
                self.assertAllClose(worker["loaded"][case], worker["weights"], rtol=1e-6, atol=1e-6)
        self.assertEqual(first["best"], second["best"])
        self.assertEqual(first["after"], second["after"])

    @parameterized.parameters(*LIBRARIES)
    def test_decisions_are_shared(self, library):
        """R42, R43: with Keras's callbacks in a plain list, same epoch, rate and weights on all workers."""
        first, second = self.run_in("decisions", library)
        epochs = {"epoch": 2, "batch": 1, "local": 3, "stops_own": 2, "rates": 4, "explicit": 4}
        for key in first:
            case, _ = key
            self.assertEqual([first[key]["epochs"], second[key]["epochs"]], [epochs[case]] * 2, case)
            rate = 0.01 / 8 if case == "rates" else 0.01
            self.assertAllClose([first[key]["rate"], second[key]["rate"]], [rate] * 2)
            self.same(first[key]["weights"], second[key]["weights"], key)
        # Worker 1 stopped, having been best after the first epoch.
        self.same(first["stops_own", "_mpu"]["weights"], first["batch", "_mpu"]["weights"])

    @parameterized.parameters(*LIBRARIES)
    def test_says_what_is_not_shared(self, library):
        for worker in self.run_in("not_shared", library):
            self.assertLen([w for w in worker["warnings"] if "give fit a list of callbacks on every worker" in w], 1)
            self.assertIn(
                "of tf_epgc's callbacks, and another worker others; give every worker the same", worker["error"]
            )


if __name__ == "__main__":
    tf.test.main()
