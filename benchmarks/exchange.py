"""Times one exchange of gradients between local workers, by format, against TensorFlow's own float32 all-reduce.

All formats take turns in the same processes; what counts are the ratios of the medians of one run. Bytes are what
the kernel saw a worker send.

    python benchmarks/exchange.py                              # 25.6 M values (ResNet-50's number), 2 workers
    python benchmarks/exchange.py --elements 10000000 --workers 4 --json exchange.json
"""

import argparse
import json
import statistics
import sys
import time

from tf_epgc import launcher

#: Name -> `GradientOptions` arguments; None is TensorFlow's all-reduce with its default options.
VARIANTS = {
    "float32": None,
    "float32, packs": {"bits": 32},
    "LPDU": {"bits": 16},
    "EPGC-11": {"bits": 11},
    "EPGC-9": {"bits": 9},
    "EPGC-8": {"bits": 8},
}
RESULT_MARK = "RESULT "


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--elements", type=int, default=25_600_000, help="values in all gradients together")
    parser.add_argument("--tensors", type=int, default=16, help="gradients they are spread over")
    parser.add_argument("--megabytes-per-pack", type=float, default=0, help="0: the strategy's default")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--json", help="file to write the results to")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def make_step(strategy, gradients, options):
    """A function that exchanges `gradients` once and returns how long the slowest local part took to finish."""
    import tensorflow as tf

    import tf_epgc

    def replica_fn():
        context = tf.distribute.get_replica_context()
        # As gradients come out of backpropagation: fresh buffers that nobody else holds.
        values = [g * 1.0 for g in gradients]
        marked = {} if options is None else {"options": tf_epgc.GradientOptions(**options)}
        return [tf.reduce_max(v) for v in context.all_reduce("SUM", values, **marked)]

    return tf.function(lambda: strategy.run(replica_fn))


def worker(arguments):
    """Measures all variants in turns and prints the medians and the bytes sent."""
    import tensorflow as tf

    import tf_epgc
    from tf_epgc.wire_counter import WireCounter

    strategy = tf_epgc.EPGCMirroredStrategy(bits=32)
    size = arguments.elements // arguments.tensors
    gradients = [tf.random.stateless_normal([size], [i, 1]) * 1e-4 for i in range(arguments.tensors)]
    counter = WireCounter()
    steps, times, sent = {}, {}, {}
    for name in arguments.variants:
        options = VARIANTS[name]
        if options is not None and arguments.megabytes_per_pack:
            options = {**options, "bytes_per_pack": int(arguments.megabytes_per_pack * 2**20)}
        steps[name], times[name] = make_step(strategy, gradients, options), []
        steps[name]()
    for _ in range(arguments.repeats):
        for name, step in steps.items():
            before, start = counter.bytes_sent(), time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
            sent[name] = counter.bytes_sent() - before
    results = {name: {"seconds": statistics.median(times[name]), "bytes": sent[name]} for name in times}
    print(RESULT_MARK + json.dumps(results), flush=True)


def run(arguments):
    """Starts the workers; returns the first one's results."""
    results = launcher.launch([sys.executable, __file__, *sys.argv[1:], "--worker"], arguments.workers, timeout=600)
    for result in results:
        if result.returncode:
            sys.exit(f"worker {result.index} failed:\n{result.output}")
    line = next(line for line in results[0].output.splitlines() if line.startswith(RESULT_MARK))
    return json.loads(line.removeprefix(RESULT_MARK))


def print_table(results, arguments):
    base = results[arguments.variants[0]]["seconds"]
    ideal = 2 * (arguments.workers - 1) / arguments.workers * arguments.elements / 8
    print(f"{arguments.elements / 1e6:.1f} M values, {arguments.workers} workers on loopback, medians")
    print(f"{'variant':16}{'ms':>8}{'speed-up':>10}{'MB sent':>10}{'bits a value':>14}")
    for name, row in results.items():
        print(
            f"{name:16}{row['seconds'] * 1e3:8.1f}{base / row['seconds']:10.2f}{row['bytes'] / 1e6:10.1f}"
            f"{row['bytes'] / ideal:14.2f}"
        )


def main():
    arguments = parse_arguments()
    if arguments.worker:
        worker(arguments)
        return
    results = run(arguments)
    print_table(results, arguments)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"arguments": vars(arguments), "results": results}, file, indent=2)


if __name__ == "__main__":
    main()
