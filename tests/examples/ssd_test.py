"""Tests of examples/ssd.py."""

import numpy as np
import ssd
import tensorflow as tf

DEFAULTS = ssd.default_boxes()
BOXES = np.array([[0.1, 0.1, 0.4, 0.35], [0.5, 0.5, 0.95, 0.9], [0, 0, 0, 0]], np.float32)
CLASSES = np.array([4, 9, -1])


def perfect_answer(target):
    """What a network would say that has learned `target`."""
    logits = 30 * np.eye(11, dtype=np.float32)[target[:, 4].astype(int)]
    return np.concatenate([target[:, :4], logits], 1)


class SsdTest(tf.test.TestCase):
    def test_the_network_answers_for_every_default_box(self):
        model = ssd.network(10)
        self.assertEqual(model.output_shape, (None, len(DEFAULTS), 15))

    def test_offsets_lead_back_to_the_boxes(self):
        defaults = DEFAULTS[[0, 500]]
        offsets = ssd.offsets(BOXES[:2], defaults) * ssd.VARIANCES
        centers = defaults[:, :2] + offsets[:, :2] * defaults[:, 2:]
        sizes = defaults[:, 2:] * np.exp(offsets[:, 2:])
        self.assertAllClose(ssd.corners(np.concatenate([centers, sizes], 1)), BOXES[:2])

    def test_every_object_has_a_default_box(self):
        tiny = np.array([[0.5, 0.5, 0.52, 0.52]], np.float32)
        target = ssd.targets(tiny, np.array([2]), DEFAULTS)
        self.assertEqual(np.sum(target[:, 4] == 3), 1)
        self.assertEqual(np.sum(target[:, 4] == ssd.BACKGROUND), len(DEFAULTS) - 1)

    def test_a_scene_without_objects(self):
        self.assertAllEqual(ssd.targets(BOXES, np.array([-1, -1, -1]), DEFAULTS), np.zeros((len(DEFAULTS), 5)))

    def test_a_perfect_answer_has_no_loss_and_is_detected(self):
        target = ssd.targets(BOXES, CLASSES, DEFAULTS)
        answer = tf.constant(perfect_answer(target)[np.newaxis])
        self.assertAllClose(ssd.loss(tf.constant(target[np.newaxis]), answer), [0.0], atol=1e-4)
        boxes, scores, classes = ssd.detections(answer, DEFAULTS)
        self.assertEqual(np.sum(scores[0] > 0.5), 2)
        order = np.argsort(classes[0][:2])
        self.assertAllEqual(classes[0][order], [4, 9])
        self.assertAllClose(boxes[0][order], BOXES[:2], atol=1e-5)

    def test_only_the_hardest_negatives_count(self):
        target = np.zeros((2, 8, 5), np.float32)
        target[0, 0, 4] = 1  # one object in the first scene, none in the second
        logits = np.zeros((2, 8, 3), np.float32)
        logits[:, 1:5, 2] = [4, 3, 2, 1]
        answer = tf.constant(np.concatenate([target[..., :4], logits], -1))
        entropies = np.log(np.exp(logits).sum(-1)) - logits[..., 0]
        expected = np.log(3) + entropies[0, 1:4].sum()
        self.assertAllClose(ssd.loss(tf.constant(target), answer), [expected, 0.0])
