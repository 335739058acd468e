"""MPUMonitor, in fit of both libraries."""

import logging

import numpy as np
import pytest

from tests.distributed import mpu_workers
from tf_epgc.keras_integration import MPUMonitor


def fit(case, monitor, bad=(), epochs=2, callbacks=(), **settings):
    x, y = mpu_workers.samples()
    x = mpu_workers.poisoned(x, np.inf, bad)
    model = case.model(lambda: case.mpu(initial_scale=16.0, **settings))
    data = mpu_workers.dataset(x, y)
    history = model.fit(data, validation_data=data, epochs=epochs, verbose=0, callbacks=[monitor, *callbacks]).history
    model.evaluate(data, verbose=0, callbacks=[monitor])
    model.predict(x, verbose=0, callbacks=[monitor])
    return history


def test_logs(case):
    history = fit(case, MPUMonitor(), bad=(2,))
    assert history["loss_scale"] == [8.0, 4.0]
    assert history["skipped_steps"] == [1, 2]
    # An Inf in a row makes NaN of every gradient it reaches, in one of six steps.
    assert all(0.1 < share <= 1 / 6 + 1e-6 for share in history["non_finite_gradients"])
    assert all(0.0 <= share < 0.5 for share in history["zero_gradients"])


def test_share_of_zeros(case):
    """A third of the inputs is never anything but zero, and the gradients of their weights neither."""
    x, y = mpu_workers.samples()
    x[:, :4] = 0
    model = case.model(lambda: case.mpu(), layers=lambda: [case.keras.layers.Dense(4, use_bias=False)])
    history = model.fit(x, y, verbose=0, callbacks=[MPUMonitor()]).history
    assert history["zero_gradients"] == pytest.approx([0.5])


def test_counts_only_while_fit_runs(case):
    x, y = mpu_workers.samples()
    model = case.model(lambda: case.mpu())
    watcher = model.optimizer._watcher
    model.fit(x, y, verbose=0, callbacks=[MPUMonitor()])
    model.fit(x, y, verbose=0)
    assert np.isnan(watcher.take()).all()
    model.fit(x, y, verbose=0, callbacks=[MPUMonitor()])
    assert np.isnan(watcher.take()).all()


def test_tensorboard(case, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    fit(case, MPUMonitor(str(tmp_path)))
    events = EventAccumulator(str(tmp_path)).Reload()
    tags = {"mpu/loss_scale", "mpu/skipped_steps", "mpu/zero_gradients", "mpu/non_finite_gradients"}
    assert tags <= {*events.Tags()["scalars"], *events.Tags()["tensors"]}


def test_log_dir_needs_tensorboard(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="needs TensorBoard, which is not installed; run `pip install tensorboard`"):
        MPUMonitor("logs")


def test_later_callbacks_see_the_report(case, tmp_path):
    log = tmp_path / "log.csv"
    fit(case, MPUMonitor(), callbacks=[case.keras.callbacks.CSVLogger(str(log))])
    assert "loss_scale" in log.read_text().splitlines()[0]


def test_says_once_that_the_floor_is_reached(case, caplog):
    with caplog.at_level(logging.WARNING, "tf_epgc"):
        fit(case, MPUMonitor(), bad=range(6), epochs=3, min_scale=4.0)
    messages = [record.message for record in caplog.records if "min_scale=4.0" in record.message]
    assert len(messages) == 1


def test_other_optimizers_are_refused(case):
    model = case.model(case.sgd)
    x, y = mpu_workers.samples()
    with pytest.raises(ValueError, match="MPUMonitor watches an MPUOptimizer, but the model's optimizer is"):
        model.fit(x, y, verbose=0, callbacks=[MPUMonitor()])
