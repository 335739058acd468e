"""Gradients are coded, and nothing else is, whoever calls."""

import collections

import tensorflow as tf
from absl.testing import parameterized

from tests.distributed.harness import run_workers

MODELS = ("plain", "batch_norm", "sync_batch_norm", "embedding", "ambiguous")


def run(function, **kwargs):
    """In one process of two replicas: what reaches the cross-device ops is the same as with two workers."""
    target = f"tests.distributed.classify_workers:{function}"
    return run_workers(target, workers=1, kwargs=kwargs, tf_config=False, logical_cpus=2)[0]


class KerasTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters("keras", "tf_keras")
    def test_only_gradients(self, library):
        cases = [{"model": model} for model in MODELS]
        if library == "keras":
            cases.append({"accumulate": True})
        for case, (calls, variables) in zip(cases, run("keras_calls", library=library, cases=cases), strict=True):
            with self.subTest(**case):
                self.check(calls, variables)

    def check(self, calls, variables):
        coded = [values for marked, _, values in calls if marked]
        exact = [values for marked, _, values in calls if not marked]
        self.assertNotEmpty(coded)
        for values in coded:
            self.assertEqual(without_rows(values), without_rows(variables))
        # Nothing of the shapes of all variables at once was left exact.
        for values in exact:
            self.assertNotEqual(without_rows(values), without_rows(variables))


def without_rows(values):
    """Counts of dtype and shape less the first dimension, which a sparse gradient has another one of."""
    return collections.Counter((dtype, len(shape), shape[1:]) for dtype, shape in values)


class CustomLoopTest(tf.test.TestCase):
    def test_calls(self):
        self.assertEqual(
            run("custom_calls"),
            {
                "gradient": True,
                "mean": False,
                "other_shape": False,
                "too_many": False,
                "integer": False,
                "loss": False,
                "marked": True,
                "marked_exact": True,
            },
        )


if __name__ == "__main__":
    tf.test.main()
