"""Measures the CUDA kernels against a device-to-device copy of the gradients, taken in turns.

Printed are the median time of a pass, the bytes per second that it reads and writes, and "x copy": those over the
copy's. What fits the GPU's L2 cache (50 MB on an H200) does not show the memory's speed: measure a reduce with
--megabytes 1000. TensorFlow is not needed. In the repository's root:

    cmake -S ops -B .build/cuda -DPython_EXECUTABLE=$(command -v python) && cmake --build .build/cuda --parallel
    cmake --install .build/cuda --prefix .
    python -m benchmarks.cuda_codec --build .build/cuda
"""

import argparse
import pathlib
import statistics
import sys
import time

import numpy as np

from tf_epgc import native


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True, help="the build folder")
    parser.add_argument("--megabytes", type=int, default=100, help="float32 gradients in megabytes")
    parser.add_argument("--tensors", type=int, default=20, help="tensors that the gradients are cut into")
    parser.add_argument("--odd", action="store_true", help="tensors whose sizes are no multiple of 4 values")
    parser.add_argument("--bits", type=int, nargs="+", default=[8, 9, 11, 16])
    parser.add_argument("--rounding", nargs="+", default=["truncate", "nearest", "stochastic"])
    parser.add_argument("--scaling", nargs="+", default=["none", "block"])
    parser.add_argument("--rows", type=int, default=4, help="replicas whose shards a reduce adds up")
    parser.add_argument("--rounds", type=int, default=15)
    return parser.parse_args()


def load_module(folder):
    """Imports the built module, or says clearly what is missing."""
    sys.path.insert(0, str(folder))
    try:
        import epgc_cuda
    except ImportError as error:
        sys.exit(f"No module epgc_cuda in {folder} ({error}): build it with cmake -S ops -B {folder}; see --help.")
    if epgc_cuda.device_count() == 0:
        sys.exit("There is no NVIDIA GPU here, and nothing to measure.")
    return epgc_cuda


class Part:
    """A part of a buffer as an array of 4-byte elements."""

    def __init__(self, buffer, typestr, first, size):
        data = (buffer.address + 4 * first, False)
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": typestr, "data": data, "version": 3}


class Workload:
    """Gradients, their copy, and room for codes."""

    def __init__(self, module, args):
        self.module, self.rows = module, args.rows
        self.elements = args.megabytes * 10**6 // 4
        values = (np.random.default_rng(1).standard_normal(self.elements) * 1e-3).astype(np.float32)
        self.gradients, self.copy = module.Buffer(values.nbytes), module.Buffer(values.nbytes)
        self.gradients.copy_from(values)
        self.codes = module.Buffer(values.nbytes + 4096)
        size = self.elements // args.tensors // 4 * 4 + (1 if args.odd else 0)
        self.parts = [(first, min(size, self.elements - first)) for first in range(0, self.elements, size)]

    def tensors(self, buffer):
        return [Part(buffer, "<f4", *part) for part in self.parts]

    def passes(self, bits, rounding, scaling):
        """Returns {name: (call, bytes read and written)}."""
        module, codec = self.module, (bits, rounding, scaling)
        layout = native.shard_layout(self.elements, self.rows, bits=bits, scaling=scaling)
        shard_words, shard_elements = layout["shard_words"], layout["shard_elements"]
        words = self.rows * shard_words
        codes, reduced = Part(self.codes, "<u4", 0, words), Part(self.copy, "<u4", 0, shard_words)
        pack = module.pack(self.tensors(self.gradients), codes, self.rows, *codec)
        unpack = module.unpack(codes, self.tensors(self.copy), self.rows, bits, scaling)
        reduce = module.reduce(codes, reduced, self.rows, shard_elements, *codec, 1 / self.rows)
        both = 4 * (self.elements + words)
        return {
            "pack": (pack, both),
            "unpack": (unpack, both),
            f"reduce {self.rows}": (reduce, 4 * (words + shard_words)),
            "copy": (module.copy(self.copy, self.gradients), 8 * self.elements),
        }


def warm_up(module, workload, seconds=0.5):
    """Keeps the GPU busy until its clocks have risen."""
    copy, _ = workload.passes(8, "nearest", "none")["copy"]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        module.seconds_of(copy, 10)


def report(module, label, passes, rounds):
    seconds = {name: [] for name in passes}
    for _ in range(rounds):
        for name, (call, _) in passes.items():
            seconds[name].append(module.seconds_of(call, 10))
    rate = {name: size / statistics.median(seconds[name]) for name, (_, size) in passes.items()}
    for name, times in seconds.items():
        time, speed = statistics.median(times) * 1e6, rate[name] / 1e9
        print(f"{label:28s} {name:9s} {time:9.1f} us {speed:8.1f} GB/s {rate[name] / rate['copy']:5.2f} x copy")


def main():
    args = parse_arguments()
    module = load_module(args.build)
    odd = ", odd" if args.odd else ""
    print(f"{module.device_name()}, {args.megabytes} MB of float32 in {args.tensors} tensors{odd}")
    workload = Workload(module, args)
    warm_up(module, workload)
    for bits in args.bits:
        for rounding in args.rounding:
            for scaling in args.scaling:
                passes = workload.passes(bits, rounding, scaling)
                report(module, f"{bits} bits {rounding} {scaling}", passes, args.rounds)


if __name__ == "__main__":
    main()
