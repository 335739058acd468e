"""Lets an example start its own workers on this machine when it is not already one of a cluster.

An example ends with

    if __name__ == "__main__":
        sys.exit(local_workers.main(__file__, train, options))

Where `TF_CONFIG` is set, as a cluster's scheduler does, the program simply trains. Else it starts itself once a
worker, each copy with a `TF_CONFIG` of its own, shows what the first one says, and compares their final weights.
"""

import hashlib
import json
import os
import sys
import time

from tf_epgc import launcher

_MARK = "TF_EPGC_LOCAL_WORKER"
_RESULT = "RESULT "
_PROGRESS = "PROGRESS "


def main(program, train, options, arguments=None):
    """Trains here or on local workers.

    Args:
        program: Path of the example, to start it again.
        train: Called as `train(options)` in a worker; returns a dict that JSON can hold, `"weights"` (see
            `fingerprint`) among its entries.
        options: The parsed options; `options.workers` copies are started, or with 0 none: it trains in this process.
        arguments: The command line to start the workers with; None for that of this process.

    Returns:
        The exit code: 0 when all went well and all workers hold the same weights.
    """
    if "TF_CONFIG" in os.environ or options.workers == 0:
        _hand_over(train(options))
        return 0
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        result = start(program, arguments, options.workers)
    except (RuntimeError, KeyboardInterrupt) as error:
        print(f"{os.path.basename(program)}: {error or 'interrupted'}", file=sys.stderr)
        return 1
    print(json.dumps(result), flush=True)
    return 0 if result["identical"] else 1


def start(program, arguments, workers):
    """Starts the workers and gathers what they report.

    Returns:
        Worker 0's result, without `"weights"` but with `"workers"`, `"identical"` (whether all ended with the same
        weights, bit for bit) and `"seconds"` (start of the processes included).

    Raises:
        RuntimeError: If a worker failed or reported nothing; the text holds its output.
    """
    started = time.monotonic()
    ended = launcher.launch(
        [sys.executable, os.path.abspath(program), *arguments], workers, env=_environment(workers), on_line=_show
    )
    for worker in ended:
        if worker.returncode and not worker.stopped:
            raise RuntimeError(f"worker {worker.index} failed (exit code {worker.returncode}):\n{worker.output}")
    results = [_result(worker) for worker in ended]
    weights = [result.pop("weights", None) for result in results]
    seconds = round(time.monotonic() - started, 1)
    return dict(results[0], workers=workers, identical=len(set(weights)) == 1, seconds=seconds)


def say(text):
    """Prints a line of progress; on local workers only the first one's is shown."""
    print((_PROGRESS if _MARK in os.environ else "") + text, flush=True)


def fingerprint(model):
    """A hash of all weights of a Keras model; equal only when they are the same bits."""
    digest = hashlib.sha256()
    for weight in model.get_weights():
        digest.update(weight.tobytes())
    return digest.hexdigest()


def _environment(workers):
    # Without this, each worker would start a thread a core, and they would wait for each other.
    threads = max(1, (os.cpu_count() or 1) // workers)
    return {_MARK: "1", "TF_CPP_MIN_LOG_LEVEL": "2", "TF_NUM_INTRAOP_THREADS": str(threads)}


def _hand_over(result):
    if _MARK in os.environ:
        print(_RESULT + json.dumps(result), flush=True)
    else:
        print(json.dumps({name: value for name, value in result.items() if name != "weights"}), flush=True)


def _show(index, line):
    if index == 0 and line.startswith(_PROGRESS):
        print(line[len(_PROGRESS) :], flush=True)


def _result(worker):
    for line in worker.output.splitlines():
        if line.startswith(_RESULT):
            return json.loads(line[len(_RESULT) :])
    raise RuntimeError(f"worker {worker.index} ended without a result; it wrote:\n{worker.output}")
