"""Every row is trained on once an epoch, on one worker, without a seed in the script; or a warning says why not."""

import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests.distributed.data_workers import ROWS
from tests.distributed.harness import run_workers

WORKERS = "tests.distributed.data_workers:"


@pytest.mark.slow
class DataTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters("keras", "tf_keras")
    def test_rows_are_seen_once(self, library):
        """R16: shuffled without a seed, the workers' rows are disjoint and together all there are."""
        first, second = run_workers(WORKERS + "rows_seen", kwargs={"library": library}, timeout=100)
        for kind in ("numpy", "tf.data"):
            for mine, theirs in zip(first[kind], second[kind], strict=True):
                self.assertLen(mine, ROWS // 2)
                self.assertEqual(sorted(mine + theirs), list(range(ROWS)), kind)
        # Keras 3 shuffles arrays in the same order in every epoch once there is a seed, in one process as well.
        self.assertNotEqual(first["tf.data"][0], first["tf.data"][1])
        for mine, theirs in zip(first["noise"], second["noise"], strict=True):
            self.assertNotEqual(mine, theirs, "random numbers inside of replicas are the same on both workers")

    def test_warnings(self):
        for written in run_workers(WORKERS + "warnings", kwargs={"library": "keras"}, timeout=100):
            text = "the workers have different random seeds (worker 0 has 5, worker 1 has 6)"
            self.assertEqual(written["seeds"].count(text), 1)
            self.assertEqual(written["generator"].count("Keras 3 takes the first batches of a generator"), 1)


if __name__ == "__main__":
    tf.test.main()
