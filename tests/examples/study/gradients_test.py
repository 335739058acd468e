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
        below, lost, ratio = gradients.statistics([[values], [values]], 8, "nearest")[:, 0]
        self.assertEqual((below, lost), (1, 0))
        self.assertBetween(ratio, 15, 40)

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
    assert len({line.count("|") for line in lines}) == 1
    assert len(lines) > 5 and "dB EPGC-8" in lines[0]


def test_too_few_steps(image_files):
    arguments = ["--width", "4", "--steps", "1", "--batch", "8", "--train", "8", "--data", image_files["cifar10"]]
    with pytest.raises(ValueError, match="--steps is 1; it must be 10 or more"):
        gradients.main(arguments)
