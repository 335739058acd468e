"""Training in few bits reaches float32's accuracy, with plain optimizers and no loss scale."""

import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests.distributed.harness import run_workers


@pytest.mark.slow
class DigitsTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters(("adam", 8), ("sgd", 25))
    def test_accuracy(self, optimizer, epochs):
        settings = [{"bits": 32}, {"bits": 8}, {"bits": 9}, {"bits": 11}, {"bits": 8, "rounding": "stochastic"}]
        exact, *coded = run_workers(
            "tests.distributed.digits_workers:accuracies",
            workers=1,
            kwargs={"settings": settings, "optimizer": optimizer, "epochs": epochs},
            tf_config=False,
            logical_cpus=2,
            timeout=280,
        )[0]
        print(optimizer, exact, coded)
        self.assertGreater(exact, 0.9)
        for accuracy in coded:
            self.assertGreater(accuracy, exact - 0.02)


if __name__ == "__main__":
    tf.test.main()
