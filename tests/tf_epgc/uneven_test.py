"""Every row weighs the same, whatever share it falls into, and an empty share does no harm."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tests.distributed.harness import run_single, run_workers

WORKERS = "tests.distributed.uneven_workers:"

#: 61 and 49 rows leave shares of 7 + 6 and 1 + 0 rows to the last batch of 16, 33 a single row.
EQUAL = [
    {"model": "plain", "rows": 61},
    {"model": "plain", "rows": 49},
    {"model": "plain", "rows": 33},
    {"model": "plain", "rows": 61, "steps_per_execution": 3},
    {"model": "plain", "rows": 61, "run_eagerly": True},
    {"model": "embedding", "rows": 33},
]
#: Statistics over a replica's rows differ from those over all by nature.
FINITE = [{"model": "batch_norm", "rows": 33}, {"model": "sync_batch_norm", "rows": 33}]


class FitTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters("keras", "tf_keras")
    def test_equals_one_process(self, library):
        """R26, R30: an empty share and uneven ones, in both libraries."""
        arguments = {"library": library, "cases": EQUAL + FINITE}
        single = run_single(WORKERS + "train", {**arguments, "distributed": False}, timeout=120)
        first, second = run_workers(WORKERS + "train", workers=2, kwargs=arguments, timeout=200)
        for case, wanted, got, other in zip(EQUAL + FINITE, single, first, second, strict=True):
            with self.subTest(**case):
                for a, b in zip(got["weights"], other["weights"], strict=True):
                    if "batch_norm" not in case["model"] or library == "keras":
                        self.assertEqual(a.tobytes(), b.tobytes())
                    self.assertTrue(np.isfinite(a).all())
                if case in EQUAL:
                    self.assertAllClose(got["loss"], wanted["loss"], rtol=1e-5, atol=1e-5)
                    self.assertAllClose(got["evaluate"], wanted["evaluate"], rtol=1e-5, atol=1e-5)
                    for a, b in zip(got["weights"], wanted["weights"], strict=True):
                        self.assertAllClose(a, b, rtol=1e-5, atol=1e-5)


if __name__ == "__main__":
    tf.test.main()
