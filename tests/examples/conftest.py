"""Examples are programs that import what lies beside them, so their folders are on the path here too."""

import pathlib
import sys

import numpy as np
import pytest

TESTS = pathlib.Path(__file__).parent
EXAMPLES = TESTS.parents[1] / "examples"
for folder in (EXAMPLES, EXAMPLES / "study", TESTS):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


@pytest.fixture
def image_files(tmp_path):
    """Paths of small files in the form of MNIST and CIFAR-10; their images are easy to tell apart."""
    return {name: str(write_images(tmp_path / f"{name}.npz", shape)) for name, shape in SHAPES.items()}


SHAPES = {"mnist": (28, 28), "cifar10": (32, 32, 3)}


def write_images(path, shape, train=256, test=64):
    """An .npz file of images whose brightest rows tell their class."""
    generator = np.random.default_rng(0)
    arrays = {}
    for name, count in (("train", train), ("test", test)):
        labels = np.arange(count) % 10
        images = generator.integers(0, 60, (count, *shape)).astype(np.uint8)
        for image, label in zip(images, labels):
            image[2 + 2 * label : 6 + 2 * label, 6:22] = 255
        arrays |= {f"x_{name}": images, f"y_{name}": labels}
    np.savez(path, **arrays)
    return path
