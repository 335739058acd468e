"""Saving and callbacks with one path for all workers, and workers that are killed."""

import re
import tempfile
import time

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests.distributed.harness import Failure, run_workers

MODULE = "tests.distributed.callbacks_workers"
LIBRARIES = ["keras", "tf_keras"]


class CallbacksCase(parameterized.TestCase, tf.test.TestCase):
    def run_in(self, function, workers=2, options=None, **arguments):
        return run_workers(f"{MODULE}:{function}", workers, arguments, **{"timeout": 200, **(options or {})})

    def fail_in(self, function, grace, **arguments):
        return self.run_in(function, options={"expect_failure": True, "grace": grace}, **arguments)

    def folder(self):
        return tempfile.mkdtemp(dir=self.get_temp_dir())

    def same(self, first, second, case=None):
        self.assertEqual(len(first), len(second))
        for i, (a, b) in enumerate(zip(first, second, strict=True)):
            self.assertEqual(np.asarray(a).tobytes(), np.asarray(b).tobytes(), f"{case}, variable {i}: {a} {b}")


@pytest.mark.slow
class SavingTest(CallbacksCase):
    @parameterized.parameters(*LIBRARIES)
    def test_files_on_one_path(self, library):
        """F12, F13."""
        for worker in self.run_in("saving", name=library, folder=self.folder()):
            # tf_keras averages BatchNormalization's statistics anew whenever they are read.
            self.assertAllClose(worker["saved"], worker["weights"], rtol=1e-5, atol=1e-6)
            self.assertEqual(worker["files"], ["model.keras"])

    @parameterized.product(library=LIBRARIES, workers=[1, 2])
    def test_resumed_run_is_the_uninterrupted_one(self, library, workers):
        """R34, R36: weights, optimizer's state, steps, loss scale and random layers; the backup is removed."""
        arguments = {"name": library, "folder": self.folder()}
        first = self.run_in("resume_first", workers, **arguments)
        second = self.run_in("resume_second", workers, **arguments)
        for before, after in zip(first, second, strict=True):
            for case in before:
                self.assertTrue(before[case]["left"], case)
                self.assertFalse(after[case]["left"], case)
                self.assertLen(after[case]["losses"], 2)
                if library == "tf_keras" and case == "dropout":
                    continue  # tf_keras keeps its random layers' state nowhere
                if library == "tf_keras" and case == "norm":
                    self.assertAllClose(before[case]["state"], after[case]["state"], rtol=1e-5, atol=1e-6)
                    continue
                self.assertEqual(before[case]["losses"], after[case]["losses"], case)
                self.same(before[case]["state"], after[case]["state"], case)

    def test_each_replica_keeps_its_own_random_layers(self):
        arguments = {"name": "keras", "folder": self.folder(), "cases": ["dropout"], "options": {"logical_cpus": 2}}
        first, second = self.run_in("resume_first", **arguments), self.run_in("resume_second", **arguments)
        for before, after in zip(first, second, strict=True):
            self.assertEqual(before["dropout"]["losses"], after["dropout"]["losses"])
            self.same(before["dropout"]["state"], after["dropout"]["state"])

    @parameterized.parameters(*LIBRARIES)
    def test_workers_that_find_different_backups(self, library):
        first, second = self.run_in("different_backups", name=library, folder=self.folder())
        for different, damaged in (first, second):
            self.assertRegex(
                different, r"find different backups .*Worker 0 finds number 1, Worker 1 finds none\); give"
            )
            self.assertRegex(damaged, r"Worker 0 cannot restore the backup in .*; remove the folder")
        self.assertIn("is damaged, or", first[1])
        self.assertIn("(see its own message)", second[1])


@pytest.mark.slow
class DecisionsTest(CallbacksCase):
    @parameterized.parameters(*LIBRARIES)
    def test_decisions_are_shared(self, library):
        """R42, R43: same epoch, rate and weights on all workers, whoever decides, and when."""
        (first, batches), (second, same_batches) = self.run_in("decisions", name=library)
        epochs = {"epoch": 2, "batch": 1, "all": 4, "own": 2, "nobody": 4, "nan": 2}
        for case in epochs:
            self.assertEqual([first[case]["epochs"], second[case]["epochs"]], [epochs[case]] * 2, case)
            self.assertAllClose([first[case]["rate"], second[case]["rate"]], [0.01, 0.01])
            self.same(first[case]["weights"], second[case]["weights"], case)
        self.assertEqual([batches, same_batches], [3, 3])  # a loss that is no number stops at once
        self.same(first["own"]["weights"], first["batch"]["weights"], "worker 0 was best after the first epoch")
        self.same(first["nobody"]["weights"], first["all"]["weights"], "worker 0 was best after the last epoch")

    @parameterized.parameters(
        (True, "TimeoutError", "Worker 0 waited 3 s in a callback of tf_epgc for Worker 1; give every worker the same"),
        (False, "RuntimeError", "Worker 0 is in a callback of tf_epgc, and Worker 1 in a step or another callback"),
    )
    def test_one_worker_has_no_shared_decisions(self, stuck, kind, message):
        start = time.monotonic()
        first, second = self.fail_in("one_has_none", 30.0, stuck=stuck)
        self.assertLess(time.monotonic() - start, 60)
        self.assertEqual(first.kind, kind)
        self.assertIn(message, first.message)
        self.assertIsInstance(second, Failure)


@pytest.mark.slow
class KilledTest(CallbacksCase):
    @parameterized.parameters(*LIBRARIES)
    def test_both_are_started_again(self, library):
        """R75: the survivor ends by itself, with an error; the same command goes on from the last backup."""
        arguments = {"name": library, "folder": self.folder()}
        start = time.monotonic()
        first, second = self.fail_in("killed", 60.0, **arguments)
        self.assertLess(time.monotonic() - start, 60)
        self.assertIn("exit code -9", second.message)
        self.assertNotIn("was ended after another had failed", first.message)
        self.assertIn("start all of them again", first.output)
        for worker in self.run_in("killed", **arguments):
            self.assertEqual(worker["epochs"], 2)
            self.same(worker["whole"], worker["state"])

    def test_one_is_started_again(self):
        """R76: both say at once that all workers must be started again."""
        first, second = self.fail_in("one_restarts", 60.0, folder=self.folder())
        self.assertIn("end all workers and start all of them again", first.output)
        self.assertNotIn("was ended after another had failed", first.message)
        self.assertLess(second["seconds"], 60)
        self.assertEqual(second["code"], 1)
        self.assertRegex(
            second["error"],
            f"WorkersMissingError: Worker 0 at {re.escape(second['cluster'][0])} .* end all workers and start all of ",
        )


if __name__ == "__main__":
    tf.test.main()
