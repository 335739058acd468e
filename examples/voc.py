"""Mean average precision as the Pascal VOC challenge counts it since 2010."""

import numpy as np
import scenes


def mean_average_precision(found, expected, classes, overlap=0.5):
    """Compares detections with the truth.

    Args:
        found: Boxes (n, most, 4), scores (n, most) and classes (n, most) of n scenes; a score of 0 is no detection.
        expected: The true boxes (n, m, 4) and classes (n, m); a class below 0 is no object.
        classes: How many classes there are.
        overlap: Intersection over union from which on a detection is right.

    Returns:
        The mean of the average precisions of those classes of which there is an object, from 0 to 1.
    """
    precisions = [average_precision(found, expected, each, overlap) for each in range(classes)]
    known = [value for value in precisions if value is not None]
    return float(np.mean(known)) if known else 0.0


def average_precision(found, expected, which, overlap=0.5):
    """The average precision of one class; None if there is no object of it. Arguments as above."""
    boxes, scores, labels = found
    true_boxes, true_labels = expected
    objects = int(np.sum(true_labels == which))
    if not objects:
        return None
    hits, confidences = [], []
    for i in range(len(boxes)):
        mine = (labels[i] == which) & (scores[i] > 0)
        hits.append(right(boxes[i][mine], scores[i][mine], true_boxes[i][true_labels[i] == which], overlap))
        confidences.append(np.sort(scores[i][mine])[::-1])
    order = np.argsort(-np.concatenate(confidences), kind="stable")
    return area(np.concatenate(hits)[order], objects)


def right(boxes, scores, truth, overlap):
    """Which detections of one scene and class are right, best score first; a second one of an object is not."""
    hits = np.zeros(len(boxes), bool)
    if not len(boxes) or not len(truth):
        return hits
    taken = np.zeros(len(truth), bool)
    shared = scenes.overlap(boxes, truth)
    for rank, i in enumerate(np.argsort(-scores, kind="stable")):
        best = shared[i].argmax()
        if shared[i, best] >= overlap and not taken[best]:
            taken[best] = hits[rank] = True
    return hits


def area(hits, objects):
    """The area under precision against recall, precision taken as the best at that recall or a higher one."""
    right_ones = np.cumsum(hits)
    precision = right_ones / np.arange(1, len(hits) + 1)
    best = np.maximum.accumulate(precision[::-1])[::-1]
    return float(np.sum(best[hits]) / objects)
