"""What the tests of keras_integration share: each library as a `Case`."""

import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import pytest

from tests.distributed import mpu_workers


@pytest.fixture(params=["keras", "tf_keras"])
def case(request):
    """Either library, without a strategy."""
    made = mpu_workers.Case(request.param)
    yield made
    made.set_policy("float32")


@pytest.fixture
def keras3():
    """Keras 3, without a strategy."""
    made = mpu_workers.Case("keras")
    yield made
    made.set_policy("float32")
