"""Tests of examples/detection.py."""

import detection
import numpy as np
import pytest
import running

SMALL = ["--train", "64", "--test", "16", "--epochs", "1", "--batch", "16"]


def data(image_files):
    return ["--digits", image_files["mnist"], "--backgrounds", image_files["cifar10"]]


def test_scenes_to_test_on_are_those_of_every_seed(image_files):
    first, second = (
        detection.make_scenes(detection.parse([*SMALL, *data(image_files), "--seed", seed])) for seed in "12"
    )
    assert np.array_equal(first[1].images, second[1].images)
    assert not np.array_equal(first[0].images, second[0].images)
    assert (len(first[0].images), len(first[1].images)) == (64, 16)


def test_detections_are_drawn(tmp_path):
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "a.png"
    black = np.zeros((5, 64, 64, 3), np.uint8)
    boxes = np.tile(np.array([0.25, 0.25, 0.75, 0.75], np.float32), (5, 2, 1))
    detection.draw(path, black, (boxes, np.tile([0.9, 0.1], (5, 1)), np.ones((5, 2), int)))
    drawn = np.asarray(image.open(path))
    assert drawn.shape == (2 * 192, 4 * 192, 3)
    assert drawn[48, 100].tolist() == [255, 255, 0]
    assert drawn[192 + 48, 100].tolist() == [255, 255, 0]
    assert not drawn[192:, 192:].any()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_two_workers_train(image_files, tmp_path):
    pytest.importorskip("PIL")
    png = tmp_path / "detections.png"
    lines = running.run("detection.py", *data(image_files), *SMALL, "--bits", "11", "--png", str(png))
    result, progress = running.result_of(lines)
    assert result["identical"] and result["workers"] == 2
    assert 0 <= result["map"] <= 1
    assert progress[0].startswith("EPGC-11 epoch 1/1: loss")
    assert png.read_bytes().startswith(b"\x89PNG")
