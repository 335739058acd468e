"""Times one exchange of gradients between local workers, by format, against TensorFlow's own all-reduces.

All formats take turns in the same processes; what counts are the ratios of the medians of one run. Bytes are what
the kernel saw a worker send. With `--rate` the workers are hosts of an emulated cluster (emulated_cluster.py), on links
of that rate, and "limit" is the time over what the link needs for the bytes sent.

    python benchmarks/exchange.py                              # 25.6 M values (ResNet-50's number), 2 workers
    python benchmarks/exchange.py --elements 10000000 --workers 4 --json exchange.json
    python benchmarks/exchange.py --rate 1Gbit/s 200Mbit/s --elements 6400000
"""

import argparse
import json
import os
import statistics
import sys
import time

if __package__ in (None, ""):  # run as a script
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks import emulated_cluster
from tf_epgc import launcher
from tf_epgc.performance import format_rate, parse_rate

#: What is not coded: TensorFlow's all-reduce with its default options, and of values that are cast to float16.
FLOAT32, FLOAT16 = "float32", "float16 cast"
#: Name -> `GradientOptions` arguments.
VARIANTS = {
    FLOAT32: None,
    "float32, packs": {"bits": 32},
    FLOAT16: None,
    "LPDU": {"bits": 16},
    "EPGC-11": {"bits": 11},
    "EPGC-9": {"bits": 9},
    "EPGC-8": {"bits": 8},
}
RESULT_MARK = "RESULT "
_SETTLE_SECONDS = 0.1


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--elements", type=int, default=25_600_000, help="values in all gradients together")
    parser.add_argument("--tensors", type=int, default=16, help="gradients they are spread over")
    parser.add_argument("--megabytes-per-pack", type=float, default=0, help="0: the strategy's default")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--rate", nargs="+", help="rates of the links to emulate, such as 1Gbit/s (default: loopback)")
    parser.add_argument("--json", help="file to write the results to")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def make_step(strategy, gradients, name, bytes_per_pack):
    """A function that exchanges `gradients` once, as the variant `name` does."""
    import tensorflow as tf

    import tf_epgc

    options = VARIANTS[name]
    if options is not None and bytes_per_pack:
        options = {**options, "bytes_per_pack": bytes_per_pack}

    def replica_fn():
        context = tf.distribute.get_replica_context()
        # As gradients come out of backpropagation: fresh buffers that nobody else holds.
        values = [g * 1.0 for g in gradients]
        if name == FLOAT16:
            values = [tf.cast(v, tf.float16) for v in values]
        marked = {} if options is None else {"options": tf_epgc.GradientOptions(**options)}
        return [tf.reduce_max(tf.cast(v, tf.float32)) for v in context.all_reduce("SUM", values, **marked)]

    return tf.function(lambda: strategy.run(replica_fn))


def settled_bytes(counter):
    """What the counter reads once nothing is sent any more: what others still read of a step belongs to that step."""
    last = counter.bytes_sent()
    while True:
        time.sleep(_SETTLE_SECONDS)
        now = counter.bytes_sent()
        if now == last:
            return now
        last = now


def worker(arguments):
    """Measures all variants in turns and prints the seconds of each step and the bytes sent."""
    import tensorflow as tf

    import tf_epgc
    from tf_epgc.wire_counter import WireCounter

    strategy = tf_epgc.EPGCMirroredStrategy(bits=32)
    size = arguments.elements // arguments.tensors
    gradients = [tf.random.stateless_normal([size], [i, 1]) * 1e-4 for i in range(arguments.tensors)]
    counter = WireCounter()
    steps, times, sent = {}, {}, {}
    for name in arguments.variants:
        bytes_per_pack = int(arguments.megabytes_per_pack * 2**20)
        steps[name], times[name] = make_step(strategy, gradients, name, bytes_per_pack), []
        steps[name]()
    # Not in the timed steps: the kernel's list of sockets takes long enough to delay other workers of this machine.
    for name, step in steps.items():
        before = settled_bytes(counter)
        step()
        sent[name] = settled_bytes(counter) - before
    for _ in range(arguments.repeats):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    results = {name: {"bytes": sent[name], "times": values} for name, values in times.items()}
    print(RESULT_MARK + json.dumps(results), flush=True)


def command_of_worker(options):
    """What starts a worker of this program with some of its options."""
    return [sys.executable, os.path.abspath(__file__), *options, "--worker"]


def run(command, workers, rate):
    """Starts a command once a worker, on links of so many bytes a second or on loopback.

    Returns:
        The results that the first one prints.
    """
    if rate is None:
        results = launcher.launch(command, workers, timeout=600)
    else:
        with emulated_cluster.EmulatedCluster(workers, rate) as hosts:
            results = hosts.launch(command, timeout=1200)
    for result in results:
        if result.returncode and not result.stopped:  # the others were ended because of it
            sys.exit(f"worker {result.index} failed:\n{result.output}")
    line = next(line for line in results[0].output.splitlines() if line.startswith(RESULT_MARK))
    return json.loads(line.removeprefix(RESULT_MARK))


def print_table(results, arguments, rate):
    medians = {name: statistics.median(row["times"]) for name, row in results.items()}
    base = medians[arguments.variants[0]]
    ideal = 2 * (arguments.workers - 1) / arguments.workers * arguments.elements / 8
    where = "loopback" if rate is None else f"links of {format_rate(rate)}"
    print(f"{arguments.elements / 1e6:.1f} M values, {arguments.workers} workers on {where}, medians")
    print(f"{'variant':16}{'ms':>8}{'speed-up':>10}{'MB sent':>10}{'bits a value':>14}{'limit':>8}")
    for name, seconds in medians.items():
        sent = results[name]["bytes"]
        limit = "" if rate is None else f"{seconds * rate / sent:.2f}"
        print(
            f"{name:16}{seconds * 1e3:8.1f}{base / seconds:10.2f}{sent / 1e6:10.1f}{sent / ideal:14.2f}{limit:>8}",
            flush=True,
        )


def measure_links(arguments, measure, show):
    """Measures on each of the links that `arguments` name, shows what came of it, and writes all of it as JSON.

    Args:
        arguments: With `rate` and `json` as the parsers of exchange.py and peers.py have them.
        measure: Takes bytes a second, or None for loopback; returns results.
        show: Takes results and the rate.
    """
    runs = []
    for rate in map(parse_rate, arguments.rate) if arguments.rate else [None]:
        runs.append({"rate": rate, "results": measure(rate)})
        show(runs[-1]["results"], rate)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"arguments": vars(arguments), "runs": runs}, file, indent=2)


def main():
    arguments = parse_arguments()
    if arguments.worker:
        worker(arguments)
        return
    command = command_of_worker(sys.argv[1:])
    measure_links(
        arguments,
        lambda rate: run(command, arguments.workers, rate),
        lambda results, rate: print_table(results, arguments, rate),
    )


if __name__ == "__main__":
    main()
