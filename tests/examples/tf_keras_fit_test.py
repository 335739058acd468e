"""Tests of examples/tf_keras_fit.py."""

import pytest
import running
import tf_keras_fit


def test_defaults():
    assert (tf_keras_fit.parse([]).bits, tf_keras_fit.parse([]).workers) == (11, 2)


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("mpu", [[], ["--mpu"]])
def test_two_workers_train(mpu):
    pytest.importorskip("tf_keras")
    result, progress = running.result_of(running.run("tf_keras_fit.py", "--bits", "8", "--epochs", "5", *mpu))
    assert result["identical"] and result["workers"] == 2
    assert result["accuracy"] > 0.8
    assert progress[4].startswith("epoch 5/5: loss")
