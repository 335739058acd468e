"""Tests of examples/study/gradients.py."""

import gradients
import numpy as np
import pytest
import tensorflow as tf


class StatisticsTest(tf.test.TestCase):
    def test_share_leaves_zeros_out(self):
        self.assertEqual(gradients.share([0.0, 1.0, 2.0, 3.0], [True, True, False, False]), 1 / 3)
        self.assertEqual(gradients.share([0.0], [True]), 0)

    def test_decibel(self):
        self.assertAllClose(gradients.decibel([10.0, 0.0], [9.0, 0.0]), 20.0)
        self.assertAllClose(gradients.decibel([1.0], [1.0]), 200.0)

    def test_values_below_the_range_are_kept_by_block_scaling(self):
        values = tf.constant(np.linspace(1e-6, 2e-6, 2048, dtype=np.float32))
        below, lost, packed, simulated = gradients.statistics([[values], [values]], 8, "nearest")[:, 0]
        self.assertEqual((below, lost), (1, 0))
        self.assertBetween(packed, 15, 40)
        self.assertBetween(simulated, 15, 40)

    def test_packed_is_one_rounding_more(self):
        """Of independent replicas, the sum's rounding adds as much noise as those before it together: 3 dB."""
        first, second = (tf.random.stateless_normal([1 << 16], seed=[1, i]) for i in range(2))
        for bits in gradients.BITS:
            _, _, packed, simulated = gradients.statistics([[first], [second]], bits, "nearest")[:, 0]
            self.assertAllClose(simulated - packed, 3.0, atol=0.6)

    def test_more_bits_are_more_precise(self):
        values = tf.random.stateless_normal([4096], seed=[1, 2])
        ratios = [gradients.statistics([[values], [values]], bits, "nearest")[2, 0] for bits in gradients.BITS]
        self.assertEqual(ratios[:2], sorted(ratios[:2], reverse=True))
        self.assertGreater(ratios[1], ratios[3])


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_table(image_files, capsys):
    arguments = ["--width", "8", "--steps", "10", "--batch", "16", "--train", "64", "--data", image_files["cifar10"]]
    assert gradients.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.count("|") for line in lines if line} == {11}
    assert "becomes 0 EPGC-8" in lines[0] and lines[-1].endswith(" dB |")


def test_too_few_steps(image_files):
    arguments = ["--width", "4", "--steps", "1", "--batch", "8", "--train", "8", "--data", image_files["cifar10"]]
    with pytest.raises(ValueError, match="--steps is 1; it must be 10 or more"):
        gradients.main(arguments)
