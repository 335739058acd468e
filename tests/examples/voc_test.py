"""Tests of examples/voc.py, against values worked out by hand."""

import numpy as np
import tensorflow as tf
import voc

TRUTH = np.array([[[0, 0, 10, 10], [20, 20, 30, 30]]], float)


class VocTest(tf.test.TestCase):
    def precision(self, boxes, scores, labels=None, truth=(0, 0)):
        found = np.array([boxes], float), np.array([scores]), np.array([labels or [0] * len(boxes)])
        return voc.average_precision(found, (TRUTH, np.array([truth])), 0)

    def test_all_found(self):
        self.assertEqual(self.precision(TRUTH[0], [0.9, 0.8]), 1)

    def test_nothing_found(self):
        self.assertEqual(self.precision(TRUTH[0], [0.0, 0.0]), 0)

    def test_a_wrong_one_between_two_right_ones(self):
        boxes = [TRUTH[0, 0], [50, 50, 60, 60], TRUTH[0, 1]]
        self.assertAllClose(self.precision(boxes, [0.9, 0.8, 0.7]), 0.5 * 1 + 0.5 * 2 / 3)

    def test_the_second_detection_of_an_object_is_wrong(self):
        self.assertAllClose(self.precision([TRUTH[0, 0], TRUTH[0, 0]], [0.9, 0.8]), 0.5)

    def test_too_little_overlap(self):
        self.assertEqual(self.precision([[0, 0, 10, 4.9]], [0.9]), 0)
        self.assertAllClose(self.precision([[0, 0, 10, 5]], [0.9]), 0.5)

    def test_other_classes_do_not_count(self):
        self.assertAllClose(self.precision(TRUTH[0], [0.9, 0.8], [1, 0]), 0.5)

    def test_the_mean_is_over_classes_that_occur(self):
        found = TRUTH, np.array([[0.9, 0.8]]), np.array([[0, 2]])
        mean = voc.mean_average_precision(found, (TRUTH, np.array([[0, 1]])), classes=3)
        self.assertAllClose(mean, 0.5)
        self.assertIsNone(voc.average_precision(found, (TRUTH, np.array([[0, 1]])), 2))

    def test_no_objects_at_all(self):
        found = TRUTH, np.array([[0.9, 0.8]]), np.array([[0, 2]])
        self.assertEqual(voc.mean_average_precision(found, (TRUTH, np.array([[-1, -1]])), classes=3), 0)
