"""Tests of tests.distributed.harness: what the other multi-worker tests rely on."""

import os
import signal
import time

import numpy as np
import pytest

from tests.distributed import harness
from tf_epgc import launcher

HERE = "tests.distributed.harness_test:"


def describe(**kwargs):
    """Runs in a worker."""
    return {
        "index": harness.worker_index(),
        "kwargs": kwargs,
        "array": np.arange(3, dtype=np.float16),
        "cluster": "TF_CONFIG" in os.environ,
        "name": os.environ.get("NAME"),
    }


def raise_on(worker, late=0.0):
    """Runs in a worker."""
    if harness.worker_index() == worker:
        raise LookupError("no such thing")
    time.sleep(late)
    return "fine"


def die():
    """Runs in a worker."""
    print("last words", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def sleep(seconds):
    """Runs in a worker."""
    print("sleeping", flush=True)
    time.sleep(seconds)


def count_cpus():
    """Runs in a worker."""
    import tensorflow as tf

    return len(tf.config.list_logical_devices("CPU"))


def test_results_come_back_in_the_workers_order():
    results = harness.run_workers(
        HERE + "describe", workers=3, kwargs={"x": [1, "two"]}, env=lambda index: {"NAME": f"n{index}"}
    )
    assert [result["index"] for result in results] == [0, 1, 2]
    assert [result["name"] for result in results] == ["n0", "n1", "n2"]
    assert all(result["kwargs"] == {"x": [1, "two"]} and result["cluster"] for result in results)
    assert all(result["array"].dtype == np.float16 and result["array"].tolist() == [0, 1, 2] for result in results)


def test_one_process_has_no_tf_config(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{}")
    result = harness.run_single(HERE + "describe", {"x": 1})
    assert (result["index"], result["cluster"], result["kwargs"]) == (0, False, {"x": 1})


def test_several_workers_need_tf_config():
    with pytest.raises(ValueError, match="workers is 2; without TF_CONFIG there can be only 1"):
        harness.run_workers(HERE + "describe", workers=2, tf_config=False)


def test_an_exception_in_a_worker_is_shown_with_its_traceback():
    with pytest.raises(harness.WorkersFailed, match="1 of 2 workers failed") as caught:
        harness.run_workers(HERE + "raise_on", kwargs={"worker": 1})
    assert "worker 1: LookupError: no such thing" in str(caught.value)
    assert 'raise LookupError("no such thing")' in str(caught.value)
    assert caught.value.results[0] == "fine"


def test_an_expected_failure_is_returned():
    fine, failure = harness.run_workers(HERE + "raise_on", kwargs={"worker": 1}, expect_failure=True)
    assert fine == "fine"
    assert (failure.index, failure.kind, failure.message) == (1, "LookupError", "no such thing")


def test_a_worker_that_is_killed_is_a_failure():
    [failure] = harness.run_workers(HERE + "die", workers=1, expect_failure=True)
    assert (failure.kind, failure.message) == ("exit", "worker 0 ended with exit code -9")
    assert "last words" in failure.traceback


def test_a_worker_that_waits_for_a_failed_one_is_ended():
    failures = harness.run_workers(HERE + "raise_on", kwargs={"worker": 1, "late": 600}, expect_failure=True, grace=0.5)
    assert failures[0].message == "worker 0 was ended after another had failed"
    assert failures[1].kind == "LookupError"


def test_a_function_that_does_not_exist():
    with pytest.raises(harness.WorkersFailed, match="AttributeError"):
        harness.run_workers(HERE + "no_such_function", workers=1)


def test_time_limit():
    with pytest.raises(launcher.LaunchTimeout, match="worker 0, worker 1 of 2 still running"):
        harness.run_workers(HERE + "sleep", kwargs={"seconds": 600}, timeout=2)


def test_logical_devices():
    assert harness.run_single(HERE + "count_cpus", logical_cpus=3) == 3
