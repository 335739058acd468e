"""Workers that do not match get one clear error each, and nobody waits."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tests.distributed.harness import run_workers
from tf_epgc import handshake

WORKERS = "tests.distributed.handshake_workers:"


class Workers:
    """All-gathers for `count` pretended workers in one process: the first pass records what each would send."""

    def __init__(self, calls):
        self._calls = calls
        self._index = 0

    def __call__(self, words):
        rows = self._calls[self._index]
        self._index += 1
        return tf.constant(np.stack([np.pad(np.asarray(r), (0, words.shape[0] - len(r))) for r in rows]))


class CompareTest(tf.test.TestCase):
    def test_same_settings(self):
        handshake.compare_settings(lambda words: tf.stack([words, words]), {"bits": 8})

    def test_names_what_differs(self):
        other = handshake._to_words('{"bits": 9, "rounding": "nearest"}')
        with self.assertRaisesRegex(handshake.WorkerMismatchError, r"bits \(worker 0 has 8, worker 1 has 9\)"):
            handshake.compare_settings(lambda words: tf.stack([words, other]), {"bits": 8, "rounding": "nearest"})

    def test_same_variables(self):
        handshake.compare_variables(lambda words: tf.stack([words, words]), ["a float32[3]"])


class BetweenWorkersTest(parameterized.TestCase, tf.test.TestCase):
    def check(self, failures, *texts):
        for failure in failures:
            self.assertEqual(failure.kind, "WorkerMismatchError", repr(failure))
            for text in texts:
                self.assertIn(text, failure.message)

    @parameterized.parameters(
        ({"bits": 32}, {"bits": 8}, "bits (worker 0 has 32, worker 1 has 8)"),
        ({"min_elements": 1}, {"scaling": "none"}, "scaling (worker 0 has 'block', worker 1 has 'none')"),
    )
    def test_settings(self, first, second, text):
        arguments = [first, second]
        self.check(
            run_workers(WORKERS + "settings", kwargs={"arguments": arguments}, expect_failure=True, timeout=60), text
        )

    def test_devices(self):
        """R89: workers of one and of two devices."""
        failures = run_workers(WORKERS + "devices", expect_failure=True, timeout=60)
        self.check(failures, "devices (worker 0 has 1, worker 1 has 2)")

    @parameterized.parameters("dataset", "function")
    def test_order_of_variables(self, through):
        """R28 c: equal shapes in another order."""
        failures = run_workers(
            WORKERS + "variables", kwargs={"kind": "order", "through": through}, expect_failure=True, timeout=60
        )
        self.check(failures, "variable 0 differs (worker 0 has a:0 float32[4, 3], worker 1 has b:0 float32[4, 3])")

    def test_other_shape(self):
        """R28 a: another width."""
        failures = run_workers(
            WORKERS + "variables", kwargs={"kind": "shape", "through": "run"}, expect_failure=True, timeout=60
        )
        self.check(failures[:1], "Worker 0 could not share variable 1, b of shape (4, 3)")
        self.check(failures[1:], "Worker 1 could not share variable 1, b of shape (4, 5)")

    def test_missing_variable(self):
        failures = run_workers(
            WORKERS + "variables", kwargs={"kind": "count", "through": "run"}, expect_failure=True, timeout=60
        )
        self.check(failures[1:], "Worker 1 waited 10 s")

    @parameterized.parameters(False, True)
    def test_gradients_of_other_shapes(self, in_branch):
        """Also such as fill packs of the same size, and where gradient accumulation all-reduces."""
        failures = run_workers(
            WORKERS + "gradient_shapes", kwargs={"in_branch": in_branch}, expect_failure=True, timeout=60
        )
        for failure in failures:  # AutoGraph wraps what is raised in a function of the user's
            self.assertIn(failure.kind, ("WorkerMismatchError", "StagingError"))
            self.assertIn("worker 0 has gradient float32(2000,), worker 1 has gradient float32(2040,)", failure.message)

    def test_models_one_after_another(self):
        """R28 b: another size, the same strategy."""
        for results in run_workers(WORKERS + "same_models_one_after_another", timeout=60):
            for width, result in zip((3, 5), results, strict=True):
                self.assertAllEqual(result, np.full([4, width], 4.0))


if __name__ == "__main__":
    tf.test.main()
