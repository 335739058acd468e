"""Tests of examples/networks.py."""

import networks
import numpy as np
import pytest
import tensorflow as tf


class NetworksTest(tf.test.TestCase):
    def test_resnet20_is_the_one_of_the_paper(self):
        model = networks.build("resnet20")
        convolutions = [v for v in model.trainable_variables if len(v.shape) == 4 and v.shape[0] == 3]
        self.assertLen(convolutions, 19)
        # The paper's 0.27 million of table 6, and the two shortcuts, which have no weights there.
        self.assertEqual(sum(int(np.prod(v.shape)) for v in model.trainable_variables), 269722 + 16 * 32 + 32 * 64)

    def test_logits_of_every_family(self):
        for name in ("resnet8", "vgg8", "vgg11"):
            model = networks.build(name, shape=(32, 32, 3), classes=7, width=4)
            self.assertEqual(model(np.zeros((2, 32, 32, 3), np.float32)).shape, (2, 7))

    def test_width_is_that_of_the_first_layer(self):
        self.assertEqual(networks.build("vgg8", width=8).trainable_variables[0].shape, (3, 3, 3, 8))

    def test_small_images(self):
        self.assertEqual(networks.build("vgg11", shape=(8, 8, 1), width=4).output_shape, (None, 10))


@pytest.mark.parametrize("name", ["resnet9", "resnet2", "vgg12", "lenet", "resnet", "vgg8x"])
def test_unknown_network(name):
    with pytest.raises(ValueError, match=f"there is no network '{name}'; use resnet8"):
        networks.parse(name)
