"""Trains a compact SSD to find digits on photographs, with gradients exchanged in few bits.

    python examples/detection.py --bits 11 --png detections.png

starts two workers on this machine; where TF_CONFIG is set, it trains as one worker of that cluster. The scenes are made
of MNIST's scans and CIFAR-10's photographs, those for the test of the test images of both. These come through
keras.datasets, or from files: `--digits mnist.npz --backgrounds cifar10.npz`. The last line of the output is the result
as JSON, with the mean average precision at an overlap of 0.5. `--png` needs Pillow.
"""

import argparse
import os
import sys

import exchange_options
import image_data
import local_workers
import numpy as np
import scenes
import ssd
import training
import voc

CLASSES = 10
EVALUATED_AT_ONCE = 100
SHOWN_SCENES = 12
SHOWN_SCORE = 0.5


def parse(arguments=None):
    """Reads the command line; ends the program with a message when it is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    exchange_options.add_arguments(parser, epochs=10, batch=32)
    parser.add_argument("--rate", type=float, default=0.05, help="highest learning rate (default: 0.05)")
    parser.add_argument("--digits", metavar="FILE.npz", help="scans (default: MNIST through keras.datasets)")
    parser.add_argument("--backgrounds", metavar="FILE.npz", help="photographs (default: CIFAR-10, likewise)")
    parser.add_argument("--train", type=exchange_options.positive, default=3000, help="scenes (default: 3000)")
    parser.add_argument("--test", type=exchange_options.positive, default=500, help="scenes (default: 500)")
    parser.add_argument("--png", metavar="FILE.png", help="draw detections in test scenes into this file")
    options = parser.parse_args(arguments)
    exchange_options.check_batch(parser, options)
    return options


def train(options):
    """Trains as one worker, or with `--workers 0` alone, and returns the result."""
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import keras

    strategy = exchange_options.strategy(options)
    keras.utils.set_random_seed(options.seed)
    train_scenes, test_scenes = make_scenes(options)
    with exchange_options.scope(strategy):
        model = ssd.network(CLASSES)
        steps = max(1, options.train // options.batch) * options.epochs
        model.compile(exchange_options.optimizer(training.momentum(options.rate, steps), options), ssd.loss)
    detect = detector(model)
    progress = training.progress(options, "mAP", lambda logs: evaluate(detect, test_scenes))
    answers = np.stack([ssd.targets(*truth, detect.defaults) for truth in zip(*train_scenes[1:], strict=True)])
    batches = image_data.batches(train_scenes.images, answers, options.batch, options.seed)
    history = model.fit(batches, epochs=options.epochs, verbose=0, callbacks=[progress]).history
    if options.png and is_chief():
        draw(options.png, test_scenes.images[:SHOWN_SCENES], detect(test_scenes.images[:SHOWN_SCENES]))
    return result(options, model, history, progress)


def make_scenes(options):
    """Scenes to train on, another lot for every seed, and scenes to test on, always the same."""
    scans, labels, test_scans, test_labels = image_data.load("mnist", options.digits)
    photographs, _, test_photographs, _ = image_data.load("cifar10", options.backgrounds)
    return (
        scenes.make(options.train, scans, labels, photographs, options.seed),
        scenes.make(options.test, test_scans, test_labels, test_photographs, 0),
    )


def detector(model):
    """A function from uint8 images to detections, as `ssd.detections` returns them; each worker calls it alone."""
    import tensorflow as tf

    defaults = ssd.default_boxes()
    answer = tf.function(lambda images: model(tf.cast(images, tf.float32) / 127.5 - 1.0, training=False))

    def detect(images):
        parts = [
            ssd.detections(answer(tf.constant(images[start : start + EVALUATED_AT_ONCE])), defaults)
            for start in range(0, len(images), EVALUATED_AT_ONCE)
        ]
        return tuple(np.concatenate(part) for part in zip(*parts, strict=True))

    detect.defaults = defaults
    return detect


def evaluate(detect, test_scenes):
    """The mean average precision on scenes, at an overlap of 0.5."""
    return voc.mean_average_precision(
        detect(test_scenes.images), (test_scenes.boxes, test_scenes.classes), CLASSES, overlap=0.5
    )


def result(options, model, history, progress):
    """What the training came to, as a dict for JSON."""
    return {
        "task": "detection",
        "network": "ssd",
        "parameters": model.count_params(),
        **exchange_options.settings(options),
        "train": options.train,
        "test": options.test,
        "map": progress.curve[-1],
        "curve": progress.curve,
        "loss": [round(value, 4) for value in history["loss"]],
        "epoch_seconds": progress.seconds,
        **training.loss_scale(model),
        "weights": local_workers.fingerprint(model),
    }


def is_chief():
    """Whether this process is to write files: worker 0 of its cluster, or alone."""
    import tensorflow as tf

    return (tf.distribute.cluster_resolver.TFConfigClusterResolver().task_id or 0) == 0


def draw(path, images, found, columns=4, zoom=3):
    """Draws scenes side by side, with the boxes and classes found in each, and writes them as PNG."""
    try:
        from PIL import Image, ImageDraw
    except ModuleNotFoundError as error:
        raise ImportError("--png needs Pillow; run `pip install pillow`, or leave --png out") from error
    side = scenes.SIZE * zoom
    rows = -(-len(images) // columns)
    sheet = Image.new("RGB", (columns * side, rows * side))
    pen = ImageDraw.Draw(sheet)
    for i, (image, boxes, scores, classes) in enumerate(zip(images, *found, strict=True)):
        corner = np.array([i // columns * side, i % columns * side])
        sheet.paste(Image.fromarray(image).resize((side, side)), (int(corner[1]), int(corner[0])))
        for box, score, which in zip(boxes, scores, classes, strict=True):
            if score >= SHOWN_SCORE:
                top, left, bottom, right = (float(v) for v in box * side + np.tile(corner, 2))
                pen.rectangle((left, top, right, bottom), outline="yellow", width=2)
                pen.text(
                    (left + 4, top + 2), f"{which} {score:.2f}", fill="yellow", stroke_width=1, stroke_fill="black"
                )
    sheet.save(path, "PNG")


def main(arguments=None):
    """Runs the example; also the entry point of the workers it starts. Returns the exit code."""
    options = parse(arguments)
    return local_workers.main(__file__, train, options, arguments)


if __name__ == "__main__":
    sys.exit(main())
