"""Scenes to detect digits in: real scans from MNIST, at random places and scales, on photographs from CIFAR-10."""

import functools
import typing

import numpy as np

SIZE = 64
MOST_DIGITS = 4
#: Sides of a scan in a scene, in pixels; the digit itself covers about 0.7 of it.
SCAN_SIDES = (24, 48)
_PLACES_TRIED = 20
_INK = 0.3
_LARGEST_OVERLAP = 0.1


class Scenes(typing.NamedTuple):
    """Scenes and what is in them.

    Attributes:
        images: uint8, of shape (n, 64, 64, 3).
        boxes: float32, of shape (n, 4, 4): top, left, bottom and right of each digit's ink, from 0 to 1; 0 where there
            are fewer digits.
        classes: int64, of shape (n, 4): the digits; -1 where there are fewer.
    """

    images: np.ndarray
    boxes: np.ndarray
    classes: np.ndarray


def make(count, digits, labels, backgrounds, seed):
    """Composes scenes; the same ones for the same arguments.

    Args:
        count: How many scenes.
        digits: Scans, uint8 of shape (m, 28, 28) or (m, 28, 28, 1).
        labels: The digits in them, of shape (m,).
        backgrounds: Photographs, uint8 of shape (k, 32, 32, 3).
        seed: Of the random choices.

    Returns:
        `Scenes`, each with one to four digits.
    """
    random = np.random.default_rng(seed)
    digits = digits.reshape(len(digits), 28, 28)
    scenes = Scenes(
        np.empty((count, SIZE, SIZE, 3), np.uint8),
        np.zeros((count, MOST_DIGITS, 4), np.float32),
        np.full((count, MOST_DIGITS), -1, np.int64),
    )
    for i in range(count):
        photograph = backgrounds[random.integers(len(backgrounds))]
        scene = photograph.repeat(SIZE // 32, 0).repeat(SIZE // 32, 1).astype(np.float32)
        boxes = []
        for _ in range(random.integers(1, MOST_DIGITS + 1)):
            which = random.integers(len(digits))
            box = _place(scene, digits[which] / np.float32(255), boxes, random)
            if box is not None:
                scenes.classes[i, len(boxes)] = labels[which]
                boxes.append(box)
        scenes.images[i] = scene.round()
        scenes.boxes[i, : len(boxes)] = np.array(boxes, np.float32) / SIZE
    return scenes


def overlap(a, b):
    """Intersection over union of boxes.

    Args:
        a: Boxes as top, left, bottom, right, of shape (n, 4).
        b: Boxes of shape (m, 4).

    Returns:
        An array of shape (n, m).
    """
    a, b = np.asarray(a)[:, np.newaxis], np.asarray(b)[np.newaxis]
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    common = np.prod(np.maximum(sides, 0), -1)
    areas = np.prod(a[..., 2:] - a[..., :2], -1) + np.prod(b[..., 2:] - b[..., :2], -1)
    return common / np.maximum(areas - common, 1e-9)


def _place(scene, digit, taken, random):
    """Draws a digit where it covers no other; returns its box in pixels, or None when no place was found."""
    for _ in range(_PLACES_TRIED):
        side = int(random.integers(SCAN_SIDES[0], SCAN_SIDES[1] + 1))
        ink = _resized(digit, side)
        rows, columns = (np.flatnonzero(ink.max(axis) > _INK) for axis in (1, 0))
        top, left = random.integers(0, SIZE - side + 1, 2)
        box = (top + rows[0], left + columns[0], top + rows[-1] + 1, left + columns[-1] + 1)
        if not taken or overlap([box], taken).max() < _LARGEST_OVERLAP:
            _draw(scene[top : top + side, left : left + side], ink, random)
            return box
    return None


def _draw(area, ink, random):
    """Blends the ink into a part of a scene, light on dark or dark on light."""
    color = random.uniform(0, 70, 3)
    if area.mean() < 128:
        color = 255 - color
    area += ink[..., np.newaxis] * (color - area)


def _resized(digit, side):
    weights = _weights(side)
    return np.clip(weights @ digit @ weights.T, 0, 1)


@functools.cache
def _weights(side):
    """A matrix that resizes 28 samples to `side` by linear interpolation, averaging where it shrinks."""
    scale = 28 / side
    centers = (np.arange(side) + 0.5) * scale - 0.5
    weights = np.maximum(0, 1 - np.abs(np.arange(28) - centers[:, np.newaxis]) / max(scale, 1))
    return (weights / weights.sum(1, keepdims=True)).astype(np.float32)
