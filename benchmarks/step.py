"""Times training steps on N workers, with computing stood in for by waiting, so that two cores can be N hosts.

    python benchmarks/step.py --model ResNet50 --workers 2 --rate 100Mbit/s

Each gradient becomes available when the network's backward pass would have it: an operation waits until then and
burns no CPU. Gradients are real tensors, and travel through the product's own strategy. Their sizes are the network's
times one factor, which makes them `--values` together; packs and `min_elements` are scaled alike.
"""

import argparse
import contextlib
import functools
import json
import os
import statistics
import sys
import tempfile
import threading
import time

if __package__ in (None, ""):  # run as a script
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks import emulated_cluster
from tf_epgc import packing, performance

#: Values of all gradients together: what two cores can send for 8 hosts at the rates of interest.
DEFAULT_VALUES = 400_000
#: The step without any exchange, among the formats' bits.
NO_EXCHANGE = 0
_POLL_SECONDS = 0.02
_INTER_OP_THREADS = 8
_SHOWN_LINES = 30


class SessionFailed(RuntimeError):
    """A worker ended or took too long; the text has its last lines."""


def scale_of(model: str, values: int) -> float:
    """What the sizes of a network's gradients are multiplied by, so that together they have `values` values."""
    return values / performance.network(model).elements


def exchange_of(bits: int, model: str, scale: float) -> performance.Exchange:
    """How gradients travel in a step whose tensors are scaled: in as many packs as the network's own."""
    bytes_per_pack = packing.default_bytes_per_pack(4 * performance.network(model).elements)
    return performance.Exchange(
        bits,
        min_elements=max(1, round(packing.DEFAULT_MIN_ELEMENTS * scale)),
        bytes_per_pack=max(4, round(bytes_per_pack * scale)),
    )


# What the parent does


class Session:
    """Workers that stay up and carry out one job after another, in a `with` block.

    Args:
        cluster: An entered `emulated_cluster.cluster(...)`.
        workers: How many hosts it has.
        model: The network's name.
        values: Of all gradients together.
        timeout: Seconds the whole session may take.
    """

    def __init__(self, cluster, workers: int, model: str, values: int = DEFAULT_VALUES, timeout: float = 1200):
        self._cluster = cluster
        self._workers = workers
        self._options = ["--model", model, "--values", str(values)]
        self._timeout = timeout
        self._jobs = 0
        self._ended: list = []

    def __enter__(self):
        self._stack = contextlib.ExitStack()
        self._folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="epgc_step_"))
        self._thread = threading.Thread(target=self._launch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception):
        # Should writing fail, workers end by themselves: each watches the folder.
        with contextlib.suppress(OSError):
            _write(self._path("job"), {"function": "stop"})
        self._thread.join(30)
        self._stack.close()
        self._thread.join(30)

    def call(self, function: str, timeout: float = 300, **arguments) -> list:
        """Runs `function` of this module on every worker; returns what each one returned."""
        _write(self._path("job"), {"function": function, "arguments": arguments})
        end = time.monotonic() + timeout
        paths = [self._path("result", index) for index in range(self._workers)]
        while not all(map(os.path.exists, paths)):
            if not self._thread.is_alive() or time.monotonic() > end:
                raise SessionFailed(
                    f"{function} is not done after {timeout:g} s or a worker has ended:\n{self._tail()}"
                )
            time.sleep(_POLL_SECONDS)
        self._jobs += 1
        return [_read(path) for path in paths]

    def _path(self, kind, index=""):
        return os.path.join(self._folder, f"{kind}_{self._jobs}_{index}.json")

    def _launch(self):
        command = [sys.executable, os.path.abspath(__file__), "--serve", self._folder, *self._options]
        try:
            self._ended = self._cluster.launch(command, timeout=self._timeout, grace=5)
        except Exception as e:  # shown by `call`, which runs in another thread
            self._ended = getattr(e, "results", [e])

    def _tail(self):
        texts = [getattr(ended, "output", str(ended)) for ended in self._ended]
        return "\n".join("\n".join(text.splitlines()[-_SHOWN_LINES:]) for text in texts) or "(no output)"


def _write(path, value):
    """Writes the file whole or not at all: others look for it."""
    with open(path + ".part", "w") as file:
        json.dump(value, file)
    os.replace(path + ".part", path)


def _read(path):
    with open(path) as file:
        return json.load(file)


# What a worker does


class Worker:
    """One worker's strategy, and the functions that `Session.call` names."""

    def __init__(self, model: str, values: int):
        import tensorflow as tf

        import tf_epgc

        self._model = model
        self._scale = scale_of(model, values)
        self._network = performance.network(model).scaled(self._scale)
        tf.config.threading.set_inter_op_parallelism_threads(_INTER_OP_THREADS)
        self._tf = tf
        least = exchange_of(11, model, self._scale).min_elements
        self._strategy = tf_epgc.EPGCMirroredStrategy(bits=11, min_elements=least)

    def calibrate(self, elements: int) -> dict:
        """Measures the cluster; returns the content of a calibration file."""
        from tf_epgc.performance import calibration

        machine = calibration.measure(self._strategy.num_replicas_in_sync, elements)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "machine.json")
            machine.save(path)
            return _read(path)

    def measure(self, compute: float, bits: list, steps: int) -> dict:
        """Times `steps` steps of each format, in turns.

        Returns:
            By bits: seconds of each step on this worker.
        """
        run = {b: self._step(compute, b) for b in bits}
        times = {b: [] for b in bits}
        for _ in range(steps):
            for b, step in run.items():
                start = time.perf_counter()
                step()
                times[b].append(time.perf_counter() - start)
        return times

    def _step(self, compute: float, bits: int):
        """A function that makes one step and has been traced."""
        import tf_epgc

        tf, network, exchange = self._tf, self._network, exchange_of(bits or 32, self._model, self._scale)
        gradients = [tf.random.stateless_normal([g.elements], [i, 1]) * 1e-4 for i, g in enumerate(network.gradients)]
        forward = compute * network.forward_share
        ready = [forward + (compute - forward) * gradient.ready for gradient in network.gradients]

        def replica_fn():
            values = waiting_gradients(gradients, ready, compute)
            if bits != NO_EXCHANGE:
                options = tf_epgc.GradientOptions(bits=bits, bytes_per_pack=exchange.bytes_per_pack)
                values = tf.distribute.get_replica_context().all_reduce("SUM", values, options=options)
            with tf.control_dependencies(values):
                return tf.constant(0)

        step = tf.function(lambda: self._strategy.run(replica_fn))
        step()
        return lambda: step().numpy()


def _wait_until(start, seconds):
    """Sleeps until `seconds` after `start`; returns `start` and a zero that depends on having waited."""
    rest = start + seconds - time.perf_counter()
    if rest > 0:
        time.sleep(rest)
    import numpy as np

    return start, np.float32(0)


def waiting_gradients(gradients, ready, compute: float):
    """Copies of `gradients`, each of which exists `ready` seconds after the step has begun.

    The waits are one chain, the last of them at `compute`, and end at set times, so that their errors do not add up.

    Args:
        gradients: Tensors.
        ready: Seconds, one for each.
        compute: Seconds of the whole pass.

    Returns:
        A list of tensors.
    """
    import numpy as np
    import tensorflow as tf

    begin = tf.numpy_function(lambda: np.float64(time.perf_counter()), [], tf.float64)
    zeros = {}
    for seconds in sorted({*ready, compute}):
        begin, zeros[seconds] = tf.numpy_function(
            functools.partial(_wait_until, seconds=seconds), [begin], (tf.float64, tf.float32)
        )
    # The last wait is part of the step even where no gradient needs it.
    late = tf.reshape(zeros[compute], [])
    values = [gradient + tf.reshape(zeros[seconds], []) for gradient, seconds in zip(gradients, ready)]
    with tf.control_dependencies([late]):
        values[0] = tf.identity(values[0])
    return values


def serve(folder: str, model: str, values: int) -> None:
    """Carries out the jobs in `folder` until one says stop or the folder is gone."""
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    worker = Worker(model, values)
    number = 0
    while os.path.isdir(folder):
        path = os.path.join(folder, f"job_{number}_.json")
        if not os.path.exists(path):
            time.sleep(_POLL_SECONDS)
            continue
        job = _read(path)
        if job["function"] == "stop":
            break
        result = getattr(worker, job["function"])(**job["arguments"])
        _write(os.path.join(folder, f"result_{number}_{index}.json"), result)
        number += 1
    sys.stdout.flush()
    os._exit(0)  # TensorFlow's own shutdown takes seconds and has nothing left to do


def medians(times: list) -> dict[int, float]:
    """Median step by bits, of the slowest worker, from what `Session.call("measure", ...)` returned."""
    return {int(bits): max(statistics.median(worker[bits]) for worker in times) for bits in times[0]}


def _arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="ResNet50")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rate", default="100Mbit/s")
    parser.add_argument("--compute", default="1s")
    parser.add_argument("--values", type=int, default=DEFAULT_VALUES, help="of all gradients together")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--bits", type=int, nargs="+", default=[NO_EXCHANGE, 32, 16, 11, 9, 8], help="0: no exchange")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    arguments = _arguments()
    if arguments.serve:
        serve(arguments.serve, arguments.model, arguments.values)
        return
    emulated_cluster.end_on_signals()
    compute = performance.parse_seconds(arguments.compute)
    rate = performance.parse_rate(arguments.rate)
    with (
        emulated_cluster.cluster(arguments.workers, rate) as hosts,
        Session(hosts, arguments.workers, arguments.model, arguments.values) as session,
    ):
        times = session.call("measure", compute=compute, bits=arguments.bits, steps=arguments.steps)
    for bits, seconds in medians(times).items():
        name = f"{bits} bits" if bits else "no exchange"
        print(f"{name:12}{seconds * 1e3:9.1f} ms{compute / seconds:9.1%}")


if __name__ == "__main__":
    main()
