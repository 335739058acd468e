"""A compact single shot detector: network, default boxes, targets, loss and the way back from outputs to boxes.

After Liu et al., SSD: Single Shot MultiBox Detector, https://arxiv.org/abs/1512.02325, for images of 64 x 64 pixels.
"""

import itertools

import numpy as np
import scenes

#: Cells in a row of each feature map, and the side of its default boxes, as a share of the image.
MAPS = {16: 0.22, 8: 0.34, 4: 0.52}
#: Width over height. Digits are narrower than high, the 1 much so.
RATIOS = (1.0, 0.65, 0.35)
BACKGROUND = 0
MATCHED = 0.5
NEGATIVES_PER_POSITIVE = 3
#: Divide the offsets of centers and of sizes, so that the network learns values of about 1.
VARIANCES = np.array([0.1, 0.1, 0.2, 0.2], np.float32)


def network(classes, size=scenes.SIZE):
    """A trunk of convolutions with three feature maps, and on each a predictor of offsets and classes.

    Args:
        classes: How many kinds of objects there are; the background comes on top.
        size: Height and width of the images.

    Returns:
        A Keras model from float32 images of shape (batch, size, size, 3) to (batch, boxes, 4 + 1 + classes): the
        offsets from each default box, and the logits, those of the background first.
    """
    from keras import Model, layers

    image = layers.Input((size, size, 3))
    x = _convolution(image, 16, 2)
    x = _convolution(x, 24)
    x = _convolution(x, 48, 2)
    x = _convolution(x, 64)
    predictions = [_predictor(x, classes)]
    for channels in (96, 128):
        x = _convolution(_convolution(x, channels, 2), channels)
        predictions.append(_predictor(x, classes))
    return Model(image, layers.Concatenate(axis=1)(predictions), name="ssd")


def default_boxes():
    """The boxes the network starts from.

    Returns:
        float32 of shape (boxes, 4): the center's y and x, height and width, from 0 to 1, in the network's order.
    """
    boxes = [
        ((row + 0.5) / cells, (column + 0.5) / cells, side, side * ratio)
        for cells, side in MAPS.items()
        for row, column, ratio in itertools.product(range(cells), range(cells), RATIOS)
    ]
    return np.array(boxes, np.float32)


def targets(boxes, classes, defaults):
    """What the network should answer for one scene.

    A default box stands for an object when they overlap by half or more; each object has the box closest to it in any
    case.

    Args:
        boxes: The objects' boxes as top, left, bottom, right, of shape (n, 4).
        classes: The objects' classes, of shape (n,); those below 0 are not there.
        defaults: As `default_boxes` returns them.

    Returns:
        float32 of shape (boxes, 5): offsets, and 1 + the class, or `BACKGROUND`.
    """
    result = np.zeros((len(defaults), 5), np.float32)
    boxes, classes = boxes[classes >= 0], classes[classes >= 0]
    if not len(classes):
        return result
    shared = scenes.overlap(corners(defaults), boxes)
    shared[shared.argmax(0), np.arange(len(boxes))] = 2  # the closest box wins over every other
    matched = np.flatnonzero(shared.max(1) >= MATCHED)
    objects = shared[matched].argmax(1)
    result[matched, :4] = offsets(boxes[objects], defaults[matched])
    result[matched, 4] = 1 + classes[objects]
    return result


def offsets(boxes, defaults):
    """How boxes (top, left, bottom, right) differ from default ones: shape (n, 4), in units of `VARIANCES`."""
    size = boxes[:, 2:] - boxes[:, :2]
    center = (boxes[:, 2:] + boxes[:, :2]) / 2
    moved = (center - defaults[:, :2]) / defaults[:, 2:]
    return np.concatenate([moved, np.log(size / defaults[:, 2:])], 1) / VARIANCES


def corners(boxes):
    """Top, left, bottom and right of boxes given by center and size, of shape (..., 4)."""
    return np.concatenate([boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], -1)


def loss(expected, predicted):
    """Localization and confidence loss of each scene, with three negatives a positive, the hardest ones.

    Args:
        expected: As `targets` returns them, of shape (batch, boxes, 5).
        predicted: The network's answer, of shape (batch, boxes, 4 + 1 + classes).

    Returns:
        float32 of shape (batch,).
    """
    import tensorflow as tf

    labels = tf.cast(expected[..., 4], tf.int32)
    positive = tf.cast(labels != BACKGROUND, tf.float32)
    count = tf.reduce_sum(positive, 1)
    confidence = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, predicted[..., 4:])
    chosen = positive + _hardest(confidence * (1 - positive), NEGATIVES_PER_POSITIVE * count)
    distance = tf.abs(expected[..., :4] - predicted[..., :4])
    smooth = tf.where(distance < 1, 0.5 * distance**2, distance - 0.5)
    localization = tf.reduce_sum(smooth, -1) * positive
    return tf.reduce_sum(confidence * chosen + localization, 1) / tf.maximum(count, 1)


def detections(predicted, defaults, most=20, least_score=0.02, overlap=0.45):
    """The boxes in the network's answer, without those that overlap a better one of the same class.

    Args:
        predicted: As the network answers, of shape (batch, boxes, 4 + 1 + classes).
        defaults: As `default_boxes` returns them.
        most: Detections of a scene.
        least_score: Below it there are none.
        overlap: From which on the lower one of two is left out.

    Returns:
        Arrays of shape (batch, most, 4), (batch, most) and (batch, most): boxes as top, left, bottom, right; scores, 0
        where there are fewer; and classes.
    """
    import tensorflow as tf

    scaled = predicted[..., :4] * VARIANCES
    center = defaults[:, :2] + scaled[..., :2] * defaults[:, 2:]
    size = defaults[:, 2:] * tf.exp(tf.minimum(scaled[..., 2:], 4.0))
    boxes = tf.concat([center - size / 2, center + size / 2], -1)
    scores = tf.nn.softmax(predicted[..., 4:])[..., 1:]
    found = tf.image.combined_non_max_suppression(
        boxes[:, :, tf.newaxis], scores, most, most, overlap, least_score, clip_boxes=True
    )
    return found.nmsed_boxes.numpy(), found.nmsed_scores.numpy(), found.nmsed_classes.numpy().astype(int)


def _convolution(x, channels, strides=1):
    from keras import layers

    x = layers.Conv2D(channels, 3, strides, "same", use_bias=False, kernel_initializer="he_normal")(x)
    return layers.Activation("relu")(layers.BatchNormalization(momentum=0.9)(x))


def _predictor(x, classes):
    from keras import layers

    x = layers.Conv2D(len(RATIOS) * (5 + classes), 3, padding="same")(x)
    return layers.Reshape((-1, 5 + classes))(x)


def _hardest(losses, counts):
    """1 at the `counts[i]` largest values of each row i of `losses`, else 0."""
    import tensorflow as tf

    ranks = tf.argsort(tf.argsort(losses, 1, "DESCENDING"), 1)
    return tf.cast(tf.cast(ranks, tf.float32) < counts[:, tf.newaxis], tf.float32)
