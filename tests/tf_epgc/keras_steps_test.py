"""Keras's steps and optimizers are recognized, as the installed versions make them."""

import keras
import tensorflow as tf
import tf_keras

from tf_epgc import keras_steps


class OwnStep(keras.Model):
    def train_step(self, data):
        return super().train_step(data)


class StepTest(tf.test.TestCase):
    def test_model(self):
        model = keras.Sequential()
        self.assertIs(keras_steps.model_of_step(model.train_step), model)
        self.assertIsNone(keras_steps.model_of_step(model.test_step))
        self.assertIsNone(keras_steps.model_of_step(lambda: None))

        old = tf_keras.Sequential()

        def run_step(data):
            return old.train_step(data)

        self.assertIs(keras_steps.model_of_step(run_step), old)

    def test_whose_step(self):
        self.assertTrue(keras_steps.has_keras_train_step(keras.Sequential()))
        self.assertTrue(keras_steps.has_keras_train_step(tf_keras.Sequential()))
        self.assertFalse(keras_steps.has_keras_train_step(OwnStep()))


class OptimizerTest(tf.test.TestCase):
    def test_clipping(self):
        model = keras.Sequential()
        for arguments in ({"clipnorm": 1.0}, {"global_clipnorm": 1.0}, {"clipvalue": 0.5}):
            optimizer = keras.optimizers.SGD(0.1, **arguments)
            for used in (optimizer, keras.optimizers.LossScaleOptimizer(optimizer)):
                model.compile(used)
                with self.assertRaisesRegex(ValueError, "SGD.* would clip each replica's gradients.*MPUOptimizer"):
                    keras_steps.refuse_local_clipping(model)
        model.compile("sgd")
        keras_steps.refuse_local_clipping(model)

    def test_tf_keras_clips_the_sum(self):
        model = tf_keras.Sequential()
        model.compile(tf_keras.optimizers.SGD(0.1, clipnorm=1.0))
        keras_steps.refuse_local_clipping(model)

    def test_finite_check(self):
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
        self.assertTrue(keras_steps.is_loss_scale_check(optimizer.check_finite))
        self.assertFalse(keras_steps.is_loss_scale_check(optimizer.apply))
        self.assertFalse(keras_steps.is_loss_scale_check(lambda: None))


if __name__ == "__main__":
    tf.test.main()
