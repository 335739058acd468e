"""Runs a function in several worker processes and brings back what it returned.

    results = run_workers("tests.distributed.some_module:train", workers=2, kwargs={"bits": 11})

Every worker is a process of its own with its `TF_CONFIG` set: it imports the module, calls the function with
`kwargs`, and its return value (anything that can be pickled: numpy arrays, dicts, ...) comes back in the workers'
order. Where nothing asks for a fresh interpreter it is a copy of one that has imported TensorFlow (fork_server.py).
"""

import contextlib
import dataclasses
import importlib
import json
import os
import pickle
import sys
import tempfile
import time
import traceback

from tests.distributed import fork_server
from tf_epgc import launcher

DEFAULT_TIMEOUT = 120.0

_JOB_FILE = "job.pickle"
_BARRIER_SECONDS = 30.0
_SHOWN_LINES = 40


@dataclasses.dataclass(frozen=True)
class Failure:
    """How one worker failed; what `run_workers(expect_failure=True)` returns for it.

    Attributes:
        index: The worker's number.
        kind: Name of the exception's class, or "exit" when the process ended without one.
        message: The exception's text, or the exit code in words.
        traceback: The whole traceback, or the last lines of the output.
        output: All that the worker wrote.
    """

    index: int
    kind: str
    message: str
    traceback: str
    output: str = ""


class WorkersFailed(AssertionError):
    """Some worker did not return; the text has every failed worker's traceback.

    Attributes:
        results: What each worker returned, or its `Failure`.
    """

    def __init__(self, target, results):
        self.results = results
        super().__init__(_failure_text(target, results))


def run_workers(
    target,
    workers=2,
    kwargs=None,
    *,
    timeout=DEFAULT_TIMEOUT,
    env=None,
    tf_config=True,
    logical_cpus=None,
    expect_failure=False,
    show=False,
    grace=launcher.DEFAULT_GRACE,
    fresh=False,
):
    """Calls `target(**kwargs)` in `workers` processes.

    Args:
        target: "package.module:function".
        workers: How many processes.
        kwargs: The function's arguments, the same for all workers; must be picklable.
        timeout: Seconds for all of it, start included; `launcher.LaunchTimeout` beyond it.
        env: Environment variables to add: a mapping, or a function from the worker's number to one. With any, workers
            are fresh.
        tf_config: False (or None) runs without `TF_CONFIG`, for the reference run in one process.
        logical_cpus: When given, TensorFlow sees so many CPU devices, so that a worker has several replicas.
        expect_failure: Return a `Failure` for a worker that fails instead of raising.
        show: Print the workers' lines as they come.
        grace: Seconds the others may go on after one has failed.
        fresh: Start interpreters that have imported nothing, as a user does.

    Returns:
        A list of what the function returned, one a worker.

    Raises:
        WorkersFailed: A worker raised, or ended in another way, and `expect_failure` is False.
        launcher.LaunchTimeout: It took too long.
    """
    if not tf_config and workers != 1:
        raise ValueError(f"workers is {workers}; without TF_CONFIG there can be only 1.")
    with tempfile.TemporaryDirectory(prefix="epgc_workers_") as folder:
        _write(os.path.join(folder, _JOB_FILE), (target, kwargs or {}, workers, logical_cpus))
        ended = launcher.launch(
            _command(folder, fresh or env is not None),
            workers,
            env=lambda index: _environment(index, env),
            timeout=timeout,
            grace=grace,
            tf_config=bool(tf_config),
            on_line=launcher.print_line if show else None,
        )
        results = [_result(folder, worker) for worker in ended]
    _check_none_left(ended)
    if not expect_failure and any(isinstance(result, Failure) for result in results):
        raise WorkersFailed(target, results)
    return results


def run_single(target, kwargs=None, **options):
    """Calls `target(**kwargs)` in one process without `TF_CONFIG`: the reference run.

    Args:
        target: "package.module:function".
        kwargs: The function's arguments.
        **options: As for `run_workers`.

    Returns:
        What the function returned.
    """
    return run_workers(target, 1, kwargs, tf_config=False, **options)[0]


def worker_index():
    """The number of the worker this process is; 0 without `TF_CONFIG`."""
    return json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0)


def _command(folder, fresh):
    if fresh:
        return [sys.executable, "-m", "tests.distributed.harness", folder]
    return [sys.executable, "-I", "-S", fork_server.CLIENT, fork_server.address(), folder]


def _environment(index, extra):
    environment = dict((extra(index) if callable(extra) else extra) or {})
    environment.setdefault("PYTHONPATH", fork_server.module_path())
    return environment


def _result(folder, ended):
    path = _result_path(folder, ended.index)
    if not os.path.exists(path):
        lines = "\n".join(ended.output.splitlines()[-_SHOWN_LINES:])
        how = "was ended after another had failed" if ended.stopped else f"ended with exit code {ended.returncode}"
        return Failure(ended.index, "exit", f"worker {ended.index} {how}", lines, ended.output)
    result = _read(path)
    return dataclasses.replace(result, output=ended.output) if isinstance(result, Failure) else result


def _check_none_left(ended):
    for worker in ended:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.pid, 0)
            raise AssertionError(f"worker {worker.index} left processes behind in group {worker.pid}")


def _failure_text(target, results):
    failures = [result for result in results if isinstance(result, Failure)]
    parts = [f"{target}: {len(failures)} of {len(results)} workers failed."]
    for failure in failures:
        parts.append(f"--- worker {failure.index}: {failure.kind}: {failure.message}")
        parts.append(failure.traceback)
    return "\n".join(parts)


def _result_path(folder, index):
    return os.path.join(folder, f"result_{index}.pickle")


def _write(path, value):
    """Writes the file whole or not at all: other workers look for it."""
    with open(path + ".part", "wb") as file:
        pickle.dump(value, file)
    os.replace(path + ".part", path)


def _read(path):
    with open(path, "rb") as file:
        return pickle.load(file)


def _set_logical_cpus(count):
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)


def _show_whole_tracebacks():
    """The libraries hide their own frames, and those of a strategy with them."""
    if "tensorflow" in sys.modules:
        sys.modules["tensorflow"].debugging.disable_traceback_filtering()
    for name in ("keras", "tf_keras"):
        if hasattr(sys.modules.get(name), "config"):
            sys.modules[name].config.disable_traceback_filtering()


def _wait_for_others(folder, workers):
    """A worker that leaves early would take its peers' last collectives down with it."""
    end = time.monotonic() + _BARRIER_SECONDS
    paths = [_result_path(folder, index) for index in range(workers)]
    while not all(map(os.path.exists, paths)) and time.monotonic() < end:
        time.sleep(0.02)


def _work(folder):
    target, kwargs, workers, logical_cpus = _read(os.path.join(folder, _JOB_FILE))
    index = worker_index()
    try:
        if logical_cpus:
            _set_logical_cpus(logical_cpus)
        module, name = target.split(":")
        function = getattr(importlib.import_module(module), name)
        _show_whole_tracebacks()
        value = function(**kwargs)
        _write(_result_path(folder, index), value)
    except Exception as error:  # reported to the test, whatever it is
        failure = Failure(index, type(error).__name__, str(error), traceback.format_exc())
        _write(_result_path(folder, index), failure)
        raise
    _wait_for_others(folder, workers)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # TensorFlow's own shutdown takes seconds and has nothing left to do


if __name__ == "__main__":
    # As the module tests.distributed.harness, not __main__: pickled results name their classes by it.
    importlib.import_module("tests.distributed.harness")._work(sys.argv[1])
