"""What the training examples share: how the learning rate goes, and what is said and timed each epoch."""

import time

import exchange_options
import local_workers


def momentum(rate, steps):
    """SGD with momentum, whose learning rate rises to `rate` over a tenth of the steps and falls like a cosine."""
    import keras

    warm_up = max(1, steps // 10)
    schedule = keras.optimizers.schedules.CosineDecay(
        rate / 100, max(1, steps - warm_up), warmup_target=rate, warmup_steps=warm_up
    )
    return keras.optimizers.SGD(schedule, momentum=0.9, nesterov=True, weight_decay=5e-4)


def progress(options, name, measure):
    """A callback that measures each epoch, says how it went and times its training.

    Args:
        options: The parsed options.
        name: Of the measure.
        measure: Called as `measure(logs)` after each epoch; returns a number.

    Returns:
        A Keras callback with a list `curve` of the measures and a list `seconds` of the epochs' times, without those
        of measuring.
    """
    import keras

    class Progress(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.curve = []
            self.seconds = []

        def on_epoch_begin(self, epoch, logs=None):
            self.started = time.monotonic()

        def on_epoch_end(self, epoch, logs=None):
            self.seconds.append(round(time.monotonic() - self.started, 2))
            self.curve.append(round(float(measure(logs)), 4))
            local_workers.say(
                f"{exchange_options.NAMES[options.bits]} epoch {epoch + 1}/{options.epochs}: loss {logs['loss']:.3f}, "
                f"{name} {self.curve[-1]:.3f}, {self.seconds[-1]:.1f} s"
            )

    return Progress()


def loss_scale(model):
    """Where the loss scale and the skipped steps ended, as entries of the result; empty without a loss scale."""
    optimizer = model.optimizer
    if not hasattr(optimizer, "skipped_steps"):
        return {}
    return {"loss_scale": float(optimizer.loss_scale), "skipped_steps": int(optimizer.skipped_steps)}
