"""Tests of examples/training.py."""

import exchange_options
import tensorflow as tf
import training


class Options:
    bits = 8
    epochs = 2


class TrainingTest(tf.test.TestCase):
    def test_the_learning_rate_rises_and_falls(self):
        rate = training.momentum(0.5, 100)._learning_rate
        rates = [float(rate(step)) for step in range(101)]
        self.assertAllClose(rates[0], 0.005)
        self.assertAllClose(rates[10], 0.5)
        self.assertAllClose(rates[100], 0.0, atol=1e-6)
        self.assertEqual(rates.index(max(rates)), 10)

    def test_the_callback_keeps_the_curve(self):
        progress = training.progress(Options, "accuracy", lambda logs: logs["loss"] / 2)
        for epoch, loss in enumerate((3.0, 2.0)):
            progress.on_epoch_begin(epoch)
            progress.on_epoch_end(epoch, {"loss": loss})
        self.assertEqual(progress.curve, [1.5, 1.0])
        self.assertLen(progress.seconds, 2)
        self.assertEqual(exchange_options.NAMES[Options.bits], "EPGC-8")

    def test_no_loss_scale_without_mpu(self):
        class Model:
            optimizer = training.momentum(0.1, 10)

        self.assertEqual(training.loss_scale(Model), {})
