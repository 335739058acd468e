"""Measures a `Machine` on a running cluster: link, collectives and codec, with the parts that training uses.

Every worker of the cluster calls `measure` at the same time. Functions import TensorFlow when they are called.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence

from tf_epgc.formats import FORMATS, CodecConfig
from tf_epgc.performance.machine import CodecRates, Machine

#: Group keys of the strategies' own collectives are below them. Each measurement has one of its own, since TensorFlow
#: remembers the shapes of all instances of a group.
_group_keys = itertools.count(900_000)
_SMALL_REPEATS = 15
_LARGE_REPEATS = 7
#: Collectives in a row when one is timed.
_CHAIN = 4


def fit_latency(workers: int, all_to_all: float, all_gather: float, all_reduce: float) -> tuple[float, float]:
    """Seconds a message and seconds a collective from the times of three collectives of next to no bytes.

    The model gives the first two `op + (N - 1) α` and the ring `op + 2 (N - 1) α`; what measurement would make
    negative becomes 0, at the cost of the other.

    Args:
        workers: N, at least 2.
        all_to_all: Seconds.
        all_gather: Seconds.
        all_reduce: Seconds.

    Returns:
        α and op.
    """
    once = (all_to_all + all_gather) / 2
    latency = min(max(all_reduce - once, 0.0), once) / (workers - 1)
    return latency, once - (workers - 1) * latency


class _Bench:
    """Times collectives and codec phases on every worker at once. All workers make the same calls in the same order."""

    def __init__(self, workers: int):
        import tensorflow as tf

        from tf_epgc._tf_compat import Collectives, CommunicationOptions, make_launcher

        self.workers = workers
        self._tf = tf
        self._launcher = make_launcher("/CPU:0", workers, next(_group_keys))
        self._collectives = Collectives(self._launcher, CommunicationOptions())

    def meet(self) -> None:
        self.agreed(0.0)

    def agreed(self, value: float) -> float:
        """The largest of the workers' values: what counts is when the last one is done."""
        row = self._tf.constant([value], self._tf.float32)
        return float(self._tf.reduce_max(self._collectives.all_gather(row)))

    def seconds(self, call: Callable[[], object], repeats: int) -> float:
        """Median time of a call, which all workers make at the same time; the slowest worker's."""
        call()
        times = []
        for _ in range(repeats):
            self.meet()
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        return self.agreed(statistics.median(times))

    def seconds_of_one(self, chain: Callable[[], object], repeats: int) -> float:
        """`seconds` of each collective of a chain."""
        return self.seconds(chain, repeats) / _CHAIN

    def all_to_all(self, words: int) -> Callable[[], object]:
        """A call that sends `words` float32 to each other worker, `_CHAIN` times."""
        return self._chain(self._collectives.all_to_all, self._tf.ones([self.workers, words]))

    def all_gather(self, words: int) -> Callable[[], object]:
        """The same for an all-gather of `words`."""
        return self._chain(lambda row: self._collectives.all_gather(row)[0], self._tf.ones([words]))

    def all_reduce(self, words: int) -> Callable[[], object]:
        """The same for adding up `N words` float32, so that a step of the ring sends `words`."""
        return self._chain(self._launcher.all_reduce, self._tf.ones([self.workers * words]))

    def two_all_to_all(self) -> Callable[[], object]:
        """Two all-to-alls of one value at the same time, `_CHAIN` times."""

        def both(pair):
            return self._tf.stack([self._collectives.all_to_all(pair[lane], lane) for lane in (0, 1)])

        return self._chain(both, self._tf.ones([2, self.workers, 1]))

    def _chain(self, collective: Callable, value) -> Callable[[], object]:
        """As in training: one follows another in a function, without Python or an idle link between them."""

        def run(value):
            for _ in range(_CHAIN):
                value = collective(value)
            return self._tf.reshape(value, [-1])[0]

        function = self._tf.function(run)
        return lambda: function(value).numpy()


def fit_line(small: tuple[float, float], large: tuple[float, float]) -> tuple[float, float]:
    """Seconds a byte and seconds for none, from two pairs of bytes sent and seconds."""
    slope = max(large[1] - small[1], 1e-9) / (large[0] - small[0])
    return slope, max(large[1] - slope * large[0], 0.0)


def _line(bench: _Bench, make, words: int, steps: int) -> tuple[float, float]:
    """`fit_line` of a collective that sends so many words, and a quarter of them, in each of `steps` messages."""
    points = [(4 * w * steps, bench.seconds_of_one(make(w), _LARGE_REPEATS)) for w in (words // 4, words)]
    return fit_line(*points)


def _codec_rates(bench: _Bench, bits: int, elements: int) -> CodecRates:
    from tf_epgc import ops

    tf, config = bench._tf, CodecConfig(bits)
    values = [tf.random.stateless_normal([elements // 4], [i, 1]) * 1e-4 for i in range(4)]
    shards = ops.pack(values, config, bench.workers)
    seconds = (
        bench.seconds(lambda: ops.pack(values, config, bench.workers), _LARGE_REPEATS),
        bench.seconds(lambda: ops.reduce(shards, config), _LARGE_REPEATS),
        bench.seconds(lambda: ops.unpack(shards, config, values), _LARGE_REPEATS),
    )
    return CodecRates(*(elements / max(s, 1e-9) for s in seconds))


def _float32_rates(bench: _Bench, elements: int) -> CodecRates:
    """TensorFlow's own way: gradients are copied into one buffer, and cut out of it; adding is part of the ring."""
    tf = bench._tf
    values = [tf.ones([elements // 4]) for _ in range(4)]
    whole = tf.concat(values, 0)
    together = bench.seconds(lambda: tf.concat(values, 0), _LARGE_REPEATS)
    apart = bench.seconds(lambda: tf.split(whole, 4), _LARGE_REPEATS)
    return CodecRates(pack=elements / max(together, 1e-9), unpack=elements / max(apart, 1e-9))


def measure(workers: int, elements: int = 1 << 22, bits: Sequence[int] = tuple(FORMATS)) -> Machine:
    """Measures the cluster. Every worker calls it at the same time, after its strategy has been made.

    Args:
        workers: N, at least 2.
        elements: Values of the pack that link and codec are timed with: as large as those to be predicted.
        bits: Formats to time.

    Returns:
        A `Machine`, the same on every worker: what counts is the slowest.

    Raises:
        ValueError: For less than two workers.
    """
    if workers < 2:
        raise ValueError(f"workers is {workers}; a link can only be measured between at least 2.")
    bench = _Bench(workers)
    makers = (bench.all_to_all, bench.all_gather, bench.all_reduce)
    tiny = [bench.seconds_of_one(make(1), _SMALL_REPEATS) for make in makers]
    latency, op_seconds = fit_latency(workers, *tiny)
    busy = max(bench.seconds_of_one(bench.two_all_to_all(), _SMALL_REPEATS) - tiny[0], 0.0)
    # From 8 to 32 bits a value of such a pack, so that what TCP does with messages of that size is in the line.
    words = max(elements // workers, 64)
    peers = workers - 1
    phases = [_line(bench, make, words, peers) for make in (bench.all_to_all, bench.all_gather)]
    seconds_per_byte = statistics.mean(slope for slope, _ in phases)
    full_op_seconds = max(op_seconds, statistics.mean(start for _, start in phases) - peers * latency)
    ring_slope, ring_start = _line(bench, bench.all_reduce, words, 2 * peers)
    ring_seconds = max(tiny[2] - 2 * peers * latency, 0.0)
    full_ring_seconds = max(ring_seconds, ring_start - 2 * peers * latency)
    codecs = {b: _float32_rates(bench, elements) if b == 32 else _codec_rates(bench, b, elements) for b in bits}
    return Machine(
        bandwidth=1 / seconds_per_byte,
        latency=latency,
        op_seconds=full_op_seconds,
        ring_seconds=full_ring_seconds,
        op_least_seconds=op_seconds,
        ring_least_seconds=ring_seconds,
        op_busy_seconds=busy,
        full_bytes=words // 4 * 4,
        ring_bandwidth=1 / ring_slope,
        codecs=codecs,
        workers=workers,
    )
