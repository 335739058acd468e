"""The rule by which the scale moves, on plain variables."""

import pytest
import tensorflow as tf

from tf_epgc.keras_integration.loss_scale import LossScale, LossScaleSettings
from tf_epgc.keras_integration.replicas import Replicas


def loss_scale(initial=8.0, dynamic=True, growth_steps=2, minimum=2.0, maximum=32.0):
    settings = LossScaleSettings(initial, dynamic, growth_steps, minimum, maximum)
    return LossScale(settings, lambda name, value, dtype: tf.Variable(value, name=name, dtype=dtype))


def after(made, steps):
    """Scales after each of the steps: "+" is a good one, "-" a bad one."""
    everywhere = Replicas(tf.distribute.get_strategy(), merged=True)
    scales = []
    for step in steps:
        (made.after_good_step if step == "+" else made.after_bad_step)(everywhere)
        scales.append(float(made.value()))
    return scales


@pytest.mark.parametrize(
    "steps, scales",
    [
        ("++++", [8, 16, 16, 32]),
        ("++++++", [8, 16, 16, 32, 32, 32]),
        ("---", [4, 2, 2]),
        ("+-++", [8, 4, 4, 8]),
        ("++-+", [8, 16, 8, 8]),
    ],
)
def test_dynamic(steps, scales):
    assert after(loss_scale(), steps) == scales


def test_fixed():
    made = loss_scale(dynamic=False)
    assert after(made, "++--+") == [8] * 5
    assert int(made.skipped_steps) == 2


def test_growth_never_passes_the_maximum_that_is_no_power_of_two():
    assert after(loss_scale(growth_steps=1, maximum=20.0), "++") == [16, 20]


def test_floor_is_said_once(capfd):
    made = loss_scale()
    after(made, "--")
    assert not made.has_overflowed_at_floor()
    after(made, "---")
    assert made.has_overflowed_at_floor()
    assert capfd.readouterr().err.count(made.floor_message()) == 1
