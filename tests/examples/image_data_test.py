"""Tests of examples/image_data.py."""

import image_data
import numpy as np
import pytest
import tensorflow as tf


def save(folder, **arrays):
    path = str(folder / "data.npz")
    np.savez(path, **arrays)
    return path


@pytest.fixture
def path(tmp_path):
    images = np.arange(5 * 4 * 4, dtype=np.uint8).reshape(5, 4, 4)
    labels = np.arange(5)
    return save(tmp_path, x_train=images, y_train=labels[:, np.newaxis], x_test=images, y_test=labels)


def test_images_without_channels_get_one(path):
    x_train, y_train, x_test, y_test = image_data.load("mnist", path)
    assert (x_train.shape, x_test.shape) == ((5, 4, 4, 1), (5, 4, 4, 1))
    assert y_train.tolist() == list(range(5))
    assert (y_train.dtype, y_test.dtype) == (np.int64, np.int64)


def test_counts(path):
    arrays = image_data.load("mnist", path, train=3, test=2)
    assert [len(array) for array in arrays] == [3, 3, 2, 2]


def test_a_file_without_all_arrays(tmp_path):
    with pytest.raises(ValueError, match="has no y_train, x_test; it must hold the arrays"):
        image_data.load("mnist", save(tmp_path, x_train=np.zeros(1), y_test=np.zeros(1)))


class BatchesTest(tf.test.TestCase):
    images = np.arange(10 * 8 * 8 * 3, dtype=np.int64).reshape(10, 8, 8, 3).astype(np.uint8)
    labels = np.arange(10)

    def read(self, **arguments):
        return [(x.numpy(), y.numpy()) for x, y in image_data.batches(self.images, self.labels, 4, **arguments)]

    def test_whole_batches_of_values_from_minus_1_to_1(self):
        read = self.read()
        self.assertEqual([x.shape for x, _ in read], [(4, 8, 8, 3)] * 2)
        self.assertAllEqual(read[1][1], [4, 5, 6, 7])
        self.assertAllClose(read[0][0], self.images[:4] / 127.5 - 1)

    def test_the_seed_decides_order_and_augmentation(self):
        first, same, other = (self.read(seed=seed, augment=True) for seed in (1, 1, 2))
        self.assertAllEqual(first[0][0], same[0][0])
        self.assertAllEqual(first[0][1], same[0][1])
        self.assertNotAllEqual(first[0][1], other[0][1])

    def test_every_epoch_has_another_order(self):
        dataset = image_data.batches(self.images, self.labels, 10, seed=1)
        first, second = ([y.numpy() for _, y in dataset] for _ in range(2))
        self.assertNotAllEqual(first, second)

    def test_augmented_images_are_shifted_or_mirrored_ones(self):
        image = np.zeros((1, 32, 32, 3), np.uint8)
        image[0, 10:20, 10:20] = 255
        seen = set()
        for x, _ in image_data.batches(image, np.zeros(1), 1, seed=3, augment=True).repeat(20):
            self.assertEqual(x.shape, (1, 32, 32, 3))
            self.assertEqual(int(tf.reduce_sum(tf.cast(x > 0.5, tf.int32))), 300)
            seen.add(x.numpy().tobytes())
        self.assertGreater(len(seen), 5)
