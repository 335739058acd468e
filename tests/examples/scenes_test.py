"""Tests of examples/scenes.py."""

import numpy as np
import scenes
import tensorflow as tf

generator = np.random.default_rng(0)
BACKGROUNDS = generator.integers(0, 256, (5, 32, 32, 3)).astype(np.uint8)
LABELS = np.array([3, 7])
DIGITS = np.zeros((2, 28, 28), np.uint8)
DIGITS[0, 4:24, 8:20] = 255
DIGITS[1, 4:24, 12:16] = 255


class ScenesTest(tf.test.TestCase):
    def test_the_same_seed_makes_the_same_scenes(self):
        first, same, other = (scenes.make(6, DIGITS, LABELS, BACKGROUNDS, seed) for seed in (1, 1, 2))
        for a, b in zip(first, same):
            self.assertAllEqual(a, b)
        self.assertNotAllEqual(first.images, other.images)

    def test_shapes(self):
        made = scenes.make(6, DIGITS, LABELS, BACKGROUNDS, 1)
        self.assertEqual((made.images.shape, made.images.dtype), ((6, 64, 64, 3), np.uint8))
        self.assertEqual((made.boxes.shape, made.classes.shape), ((6, 4, 4), (6, 4)))

    def test_boxes_frame_the_ink(self):
        """On black photographs, everything that is not black lies in the boxes, and reaches their edges."""
        made = scenes.make(20, DIGITS, LABELS, np.zeros_like(BACKGROUNDS), 1)
        for image, boxes, classes in zip(*made):
            inked = image.max(-1) > 55  # at least 0.3 of a color's 185
            rest = inked.copy()
            for top, left, bottom, right in np.round(boxes[classes >= 0] * scenes.SIZE).astype(int):
                self.assertTrue(inked[top, left:right].any() and inked[top:bottom, left].any())
                self.assertTrue(inked[bottom - 1, left:right].any() and inked[top:bottom, right - 1].any())
                rest[max(top - 1, 0) : bottom + 1, max(left - 1, 0) : right + 1] = False
            self.assertFalse(rest.any())

    def test_every_scene_has_a_digit_and_no_two_overlap_much(self):
        made = scenes.make(50, DIGITS, LABELS, BACKGROUNDS, 3)
        counts = (made.classes >= 0).sum(1)
        self.assertEqual((counts.min(), counts.max()), (1, 4))
        self.assertAllInSet(made.classes, [-1, 3, 7])
        for boxes, count in zip(made.boxes, counts):
            shared = scenes.overlap(boxes[:count], boxes[:count]) - np.eye(count)
            self.assertLess(shared.max(), 0.1)

    def test_overlap(self):
        boxes = [[0, 0, 2, 2], [1, 1, 3, 3], [5, 5, 6, 6]]
        self.assertAllClose(scenes.overlap(boxes, boxes[:2]), [[1, 1 / 7], [1 / 7, 1], [0, 0]])
