"""Measures the codec against memcpy, single passes over float32 in memory.

Passes and memcpy take turns, so that a busy machine disturbs them alike. Printed are the median and the best time, and
"x memcpy": the pass's bytes read and written per second over memcpy's (medians). A reduce row counts the words of its
rows and its result.

    python benchmarks/codec_core.py --threads 1 2 --isas avx512 avx2
"""

import argparse
import concurrent.futures
import statistics
import time

import numpy as np

from tf_epgc import _core


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=25_600_000)
    parser.add_argument("--bits", type=int, nargs="+", default=[8, 9, 11, 16])
    parser.add_argument("--rounding", nargs="+", default=["nearest"])
    parser.add_argument("--scaling", nargs="+", default=["block"])
    parser.add_argument("--isas", nargs="+", default=_core.runnable_isas())
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rows", type=int, default=4, help="replicas whose shards a reduce adds up")
    parser.add_argument("--repeats", type=int, default=15)
    return parser.parse_args()


def memcpy_pass(values, copy, threads):
    """Returns a function that copies the values, split over threads."""
    pieces = list(zip(np.array_split(values, threads), np.array_split(copy, threads), strict=True))
    if threads == 1:
        return lambda: np.copyto(copy, values)
    pool = concurrent.futures.ThreadPoolExecutor(threads)
    return lambda: list(pool.map(lambda pair: np.copyto(pair[1], pair[0]), pieces))


def codec_passes(values, output, bits, rounding, scaling, threads, rows):
    """Returns {name: (function, bytes read and written)}."""
    packed = _core.pack([values], 1, bits, rounding, scaling)
    layout = _core.shard_layout(len(values) // rows, 1, bits, scaling)
    part = [values[: layout["shard_elements"]]]
    shards = np.concatenate([_core.pack(part, 1, bits, rounding, scaling)] * rows)
    reduced = np.empty(layout["shard_words"], np.uint32)
    shape, dtype = [(len(values),)], ["float32"]
    options = {"threads": threads}
    return {
        "pack": (
            lambda: _core.pack([values], 1, bits, rounding, scaling, out=packed, **options),
            values.nbytes + packed.nbytes,
        ),
        "unpack": (
            lambda: _core.unpack(packed, shape, dtype, bits, scaling, out=[output], **options),
            values.nbytes + packed.nbytes,
        ),
        f"reduce {rows}": (
            lambda: _core.reduce(
                shards, layout["shard_elements"], bits, rounding, scaling, 1 / rows, out=reduced, **options
            ),
            shards.nbytes + reduced.nbytes,
        ),
    }


def measure(passes, repeats):
    """Returns {name: seconds of each repeat}; the passes take turns."""
    seconds = {name: [] for name in passes}
    for repeat in range(repeats + 1):
        for name, (function, _) in passes.items():
            start = time.perf_counter()
            function()
            if repeat > 0:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def report(label, passes, repeats):
    seconds = measure(passes, repeats)
    rate = {name: size / statistics.median(seconds[name]) for name, (_, size) in passes.items()}
    for name, times in seconds.items():
        median, best = statistics.median(times) * 1e3, min(times) * 1e3
        print(f"{label:42s} {name:9s} {median:7.2f} ms (best {best:6.2f})  {rate[name] / rate['memcpy']:5.2f} x memcpy")


def main():
    args = parse_arguments()
    values = (np.random.default_rng(1).standard_normal(args.elements) * 1e-3).astype(np.float32)
    output = np.zeros_like(values)
    for isa in args.isas:
        _core.set_isa_for_test(isa)
        for threads in args.threads:
            for bits in args.bits:
                for rounding in args.rounding:
                    for scaling in args.scaling if bits != 32 else ["none"]:
                        passes = codec_passes(values, output, bits, rounding, scaling, threads, args.rows)
                        passes["memcpy"] = (memcpy_pass(values, output, threads), 2 * values.nbytes)
                        label = f"{isa} {bits} bits {rounding} {scaling} {threads} thread{'s' * (threads > 1)}"
                        report(label, passes, args.repeats)


if __name__ == "__main__":
    main()
