"""Measures the compiled ops against TensorFlow's casts, memcpy and ml_dtypes, in the same run.

What is compared takes turns, so that a busy machine disturbs all alike. Printed are medians, ratios to the cast to
float16 and back, and bytes read and written per second over memcpy's. ml_dtypes' float8_e5m2 is numpy code, one
thread. A reduce decodes as many values as the unpack: each of its rows has 1/rows of them.

    python benchmarks/codec_ops.py
    python benchmarks/codec_ops.py --threads 1 --elements 1000000 --json codec.json
"""

import argparse
import concurrent.futures
import json
import statistics
import time

import numpy as np


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=25_600_000)
    parser.add_argument("--bits", type=int, nargs="+", default=[8, 9, 11, 16])
    parser.add_argument("--rows", type=int, default=4, help="replicas whose shards a reduce adds up")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", help="file to write the results to")
    return parser.parse_args()


def op_passes(values, bits, rows):
    """{name: (function, bytes read and written)} of the compiled ops."""
    import tensorflow as tf

    from tf_epgc import formats, ops

    config = formats.CodecConfig(bits)
    tensor = tf.constant(values)
    packed = ops.pack([tensor], config, 1)
    part = ops.pack([tensor[: len(values) // rows]], config, 1)
    shards = tf.concat([part] * rows, 0)
    size = values.nbytes + 4 * int(tf.size(packed))
    words = 4 * int(tf.size(part))
    return {
        f"pack {bits}": (lambda: ops.pack([tensor], config, 1), size),
        f"unpack {bits}": (lambda: ops.unpack(packed, config, [tensor]), size),
        f"reduce {bits}, {rows} rows": (lambda: ops.reduce(shards, config, 1 / rows), words * (rows + 1)),
    }


def peer_passes(values, threads):
    """{name: (function, bytes read and written)} of what is compared with."""
    import ml_dtypes
    import tensorflow as tf

    tensor = tf.constant(values)
    copy = np.empty_like(values)
    pieces = list(zip(np.array_split(values, threads), np.array_split(copy, threads), strict=True))
    pool = concurrent.futures.ThreadPoolExecutor(threads)
    passes = {"memcpy": (lambda: list(pool.map(lambda pair: np.copyto(pair[1], pair[0]), pieces)), 2 * values.nbytes)}
    for dtype in (tf.float16, tf.bfloat16):
        half = tf.cast(tensor, dtype)
        size = 3 * values.nbytes // 2
        passes[f"cast to {dtype.name}"] = (lambda dtype=dtype: tf.cast(tensor, dtype), size)
        passes[f"cast from {dtype.name}"] = (lambda half=half: tf.cast(half, tf.float32), size)
    e5m2 = values.astype(ml_dtypes.float8_e5m2)
    passes["ml_dtypes to e5m2"] = (lambda: values.astype(ml_dtypes.float8_e5m2), 5 * values.nbytes // 4)
    passes["ml_dtypes from e5m2"] = (lambda: e5m2.astype(np.float32), 5 * values.nbytes // 4)
    return passes


def measure(passes, repeats):
    """{name: seconds, the median}; the passes take turns."""
    seconds = {name: [] for name in passes}
    for repeat in range(repeats + 1):
        for name, (function, _) in passes.items():
            start = time.perf_counter()
            result = function()
            elapsed = time.perf_counter() - start
            del result
            if repeat > 0:
                seconds[name].append(elapsed)
    return {name: statistics.median(times) for name, times in seconds.items()}


def report(passes, seconds):
    """Prints one line a pass and returns the rows."""
    to_half, from_half = seconds["cast to float16"], seconds["cast from float16"]
    memcpy = passes["memcpy"][1] / seconds["memcpy"]
    rows = []
    for name, (_, size) in passes.items():
        cast = from_half if name.startswith(("unpack", "cast from", "ml_dtypes from")) else to_half
        row = {"pass": name, "ms": seconds[name] * 1e3, "of_cast": seconds[name] / cast}
        row["of_memcpy"] = size / seconds[name] / memcpy
        rows.append(row)
        print(f"{name:24s} {row['ms']:8.2f} ms {row['of_cast']:7.2f} x cast {row['of_memcpy']:7.2f} x memcpy's rate")
    return rows


def main():
    arguments = parse_arguments()
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(arguments.threads)
    values = (np.random.default_rng(1).standard_normal(arguments.elements) * 1e-3).astype(np.float32)
    passes = peer_passes(values, arguments.threads)
    for bits in arguments.bits:
        passes.update(op_passes(values, bits, arguments.rows))
    rows = report(passes, measure(passes, arguments.repeats))
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"settings": vars(arguments), "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
