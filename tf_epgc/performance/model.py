"""Predicts a training step on N workers: what the exchange of gradients costs, and how much of it computing hides.

docs/performance_model.md has the formulas, where they come from, and what they leave out.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
import sys

from tf_epgc.formats import CodecConfig
from tf_epgc.packing import DEFAULT_MIN_ELEMENTS, TensorSpec, plan_packs
from tf_epgc.performance.machine import Machine
from tf_epgc.performance.network import Network

ALGORITHMS = ("ring", "all_to_all")

_GROUP = 32
_BLOCK = 1024
_CODEC, _LINK = "codec", "link"


@dataclasses.dataclass(frozen=True)
class Exchange:
    """How gradients travel.

    Args:
        bits: 8, 9, 11, 16 or 32.
        scaling: `"block"`, `"none"`, or None for the format's default.
        min_elements: Tensors with fewer values travel as float32.
        bytes_per_pack: As in the strategy; 0 puts all in one pack, None chooses as the strategy does.
        algorithm: `"all_to_all"` followed by an all-gather, as coded gradients travel; `"ring"`, as TensorFlow adds up
            float32 and float16, one pack after another; None: `"ring"` for 32 bits, else `"all_to_all"`.

    Raises:
        ValueError: For a value that is not supported.
    """

    bits: int = 11
    scaling: str | None = None
    min_elements: int = DEFAULT_MIN_ELEMENTS
    bytes_per_pack: int | None = None
    algorithm: str | None = None

    def __post_init__(self):
        codec = CodecConfig(self.bits, scaling=self.scaling)
        object.__setattr__(self, "scaling", codec.scaling)
        if self.algorithm is None:
            object.__setattr__(self, "algorithm", "ring" if self.bits == 32 else "all_to_all")
        if self.algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm={self.algorithm!r} is not supported; use one of {', '.join(ALGORITHMS)}.")
        if self.algorithm == "ring" and self.bits not in (16, 32):
            raise ValueError(f"A ring adds float32 or float16, not {self.bits} bits; use algorithm='all_to_all'.")
        for name in ("min_elements", "bytes_per_pack"):
            if not (getattr(self, name) or 0) >= 0:
                raise ValueError(f"{name}={getattr(self, name)!r} is not supported; use an integer of at least 0.")


@dataclasses.dataclass(frozen=True)
class PackTimes:
    """One pack's way. Times are seconds from the start of the step.

    Attributes:
        elements: Values in it.
        bits: That a value travels in.
        bytes_sent: By each worker, both ways of the exchange together.
        ready: The last of its gradients is known.
        packed: It is encoded (a ring: copied into one buffer).
        sent: Every worker has its shard of all others (a ring: equal to `gathered`).
        reduced: The shard is added up and encoded (a ring: equal to `gathered`).
        gathered: Every worker has all shards.
        unpacked: The gradients can be applied.
    """

    elements: int
    bits: int
    bytes_sent: int
    ready: float
    packed: float
    sent: float
    reduced: float
    gathered: float
    unpacked: float


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A step on N workers.

    Attributes:
        workers: N.
        exchange: How gradients travel.
        compute_seconds: Forward and backward pass.
        packs: In the order in which they become ready.
        shares: Seconds of the step by part, which add up to the step: `compute`, and what the exchange shows after it:
            `wire` (bytes on the link), `codec`, `latency` (messages and collectives on their way, nothing else).
    """

    workers: int
    exchange: Exchange
    compute_seconds: float
    packs: tuple[PackTimes, ...]
    shares: dict[str, float]

    @property
    def step_seconds(self) -> float:
        return max([self.compute_seconds, *(pack.unpacked for pack in self.packs)])

    @property
    def exposed_seconds(self) -> float:
        """What the exchange adds to the step."""
        return self.step_seconds - self.compute_seconds

    @property
    def efficiency(self) -> float:
        """Compute time over step time: the throughput of N workers over N times that of one."""
        return self.compute_seconds / self.step_seconds

    @property
    def bytes_sent(self) -> int:
        """By each worker in a step."""
        return sum(pack.bytes_sent for pack in self.packs)


@dataclasses.dataclass(frozen=True)
class _Stage:
    """A part of a pack's way: `busy` seconds of a resource that does one thing at a time, then `delay` of nobody's."""

    name: str
    resource: str
    busy: float
    delay: float = 0.0


@dataclasses.dataclass(frozen=True)
class _Span:
    kind: str
    start: float
    end: float


def shard_bytes(elements: int, workers: int, bits: int, scaling: str) -> int:
    """Bytes of one of the N shards of a pack (docs/wire_format.md, section 3)."""
    groups = math.ceil(math.ceil(elements / workers) / _GROUP)
    blocks = math.ceil(groups * _GROUP / _BLOCK) if scaling == "block" else 0
    return 4 * (math.ceil(blocks / 4) + groups * bits)


def predict(
    network: Network, machine: Machine, workers: int, compute_seconds: float, exchange: Exchange | None = None
) -> Prediction:
    """Predicts one training step.

    Args:
        network: Its gradients.
        machine: The cluster.
        workers: N, hosts that take part.
        compute_seconds: Forward and backward pass on one host.
        exchange: How gradients travel; the strategy's defaults when None.

    Returns:
        A `Prediction`.

    Raises:
        ValueError: For `workers` below 1 or `compute_seconds` not above 0.
    """
    exchange = exchange or Exchange()
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
        raise ValueError(f"workers is {workers!r}; it must be a whole number of at least 1.")
    if not 0 < compute_seconds < math.inf:
        raise ValueError(f"compute_seconds is {compute_seconds!r}; it must be a number of seconds above 0.")
    if workers == 1:
        return Prediction(1, exchange, compute_seconds, (), {**dict.fromkeys(_KINDS, 0.0), "compute": compute_seconds})
    jobs = sorted(_jobs(network, machine, workers, compute_seconds, exchange), key=lambda job: job.ready)
    ends, spans = _run([(job.ready, job.stages) for job in jobs])
    packs = tuple(_pack_times(job, end) for job, end in zip(jobs, ends, strict=True))
    shares = _shares(spans, compute_seconds)
    return Prediction(workers, exchange, compute_seconds, packs, shares)


@dataclasses.dataclass(frozen=True)
class _Job:
    elements: int
    bits: int
    bytes_sent: int
    ready: float
    stages: tuple[_Stage, ...]


def _jobs(network, machine, workers, compute_seconds, exchange):
    """One `_Job` a pack, the packs being those that the strategy makes."""
    specs = [TensorSpec(gradient.elements, "float32") for gradient in network.gradients]
    ring = exchange.algorithm == "ring"
    least = 0 if ring else sys.maxsize if exchange.bits == 32 else exchange.min_elements
    plan = plan_packs(specs, least, exchange.bytes_per_pack)
    packs = [(positions, exchange.bits, exchange.scaling) for positions in plan.coded]
    if plan.small:
        packs.append((plan.small, 32, "none"))
    forward = compute_seconds * network.forward_share
    backward = compute_seconds - forward
    for positions, bits, scaling in packs:
        elements = sum(specs[i].elements for i in positions)
        if not elements:
            continue
        ready = forward + backward * max(network.gradients[i].ready for i in positions)
        make = _ring_stages if ring else _all_to_all_stages
        sent, stages = make(machine, workers, elements, bits, scaling)
        yield _Job(elements, bits, sent, ready, stages)


def _all_to_all_stages(machine, workers, elements, bits, scaling):
    shard = shard_bytes(elements, workers, bits, scaling)
    sent = (workers - 1) * shard
    rates = machine.rates(bits)
    cost = machine.op_cost(shard) + (workers - 1) * machine.latency
    busy = min(machine.op_busy_seconds, cost)
    on_link = {"busy": sent / machine.bandwidth + busy, "delay": cost - busy}
    stages = (
        _Stage("packed", _CODEC, elements / rates.pack),
        _Stage("sent", _LINK, **on_link),
        _Stage("reduced", _CODEC, elements / rates.reduce),
        _Stage("gathered", _LINK, **on_link),
        _Stage("unpacked", _CODEC, elements / rates.unpack),
    )
    return 2 * sent, stages


def _ring_stages(machine, workers, elements, bits, scaling):
    del scaling
    steps = 2 * (workers - 1)
    message = -(-elements // workers) * bits // 8
    sent = steps * message
    rates = machine.rates(bits)
    # The next pack waits for this one, so that nothing fills the gaps between the steps: all of it occupies the link.
    busy = machine.ring_cost(message) + steps * machine.latency + sent / machine.ring_bandwidth
    stages = (
        _Stage("packed", _CODEC, elements / rates.pack),
        _Stage("gathered", _LINK, busy),
        _Stage("unpacked", _CODEC, elements / rates.unpack),
    )
    return sent, stages


_KINDS = ("compute", "wire", "codec", "latency")


def _run(jobs):
    """Runs chains of stages on resources that serve first who comes first.

    Args:
        jobs: Pairs of the time at which a chain may start, and its stages.

    Returns:
        For each job a dict of its stages' end times by name, and the list of all `_Span`.
    """
    free = {_CODEC: 0.0, _LINK: 0.0}
    ends: list[dict[str, float]] = [{} for _ in jobs]
    spans: list[_Span] = []
    waiting = [(ready, number, 0) for number, (ready, _) in enumerate(jobs)]
    heapq.heapify(waiting)
    while waiting:
        now, number, at = heapq.heappop(waiting)
        stages = jobs[number][1]
        stage = stages[at]
        start = max(now, free[stage.resource])
        end = start + stage.busy
        free[stage.resource] = end
        ends[number][stage.name] = end + stage.delay
        spans.append(_Span("wire" if stage.resource == _LINK else "codec", start, end))
        spans.append(_Span("latency", end, end + stage.delay))
        if at + 1 < len(stages):
            heapq.heappush(waiting, (end + stage.delay, number, at + 1))
    return ends, spans


def _shares(spans: list[_Span], compute_seconds: float) -> dict[str, float]:
    """Time after computing, each instant given to the first of wire, codec, latency that goes on in it."""
    shares = dict.fromkeys(_KINDS, 0.0)
    shares["compute"] = compute_seconds
    late = [s for s in spans if s.end > compute_seconds and s.end > s.start]
    cuts = sorted({compute_seconds, *(s.end for s in late), *(s.start for s in late if s.start > compute_seconds)})
    for start, end in zip(cuts, cuts[1:]):
        kinds = {s.kind for s in late if s.start <= start and s.end >= end}
        shares[next(kind for kind in ("wire", "codec", "latency") if kind in kinds)] += end - start
    return shares


def _pack_times(job: _Job, ends: dict[str, float]) -> PackTimes:
    gathered = ends["gathered"]
    return PackTimes(
        job.elements,
        job.bits,
        job.bytes_sent,
        job.ready,
        ends["packed"],
        ends.get("sent", gathered),
        ends.get("reduced", gathered),
        gathered,
        ends["unpacked"],
    )


def speed_up(network: Network, machine: Machine, workers: int, compute_seconds: float, exchange: Exchange) -> float:
    """Step time with float32 in a ring, in packs of the same size, over step time with `exchange`."""
    base = dataclasses.replace(exchange, bits=32, scaling=None, algorithm="ring")
    before = predict(network, machine, workers, compute_seconds, base).step_seconds
    return before / predict(network, machine, workers, compute_seconds, exchange).step_seconds


def break_even_rate(
    network: Network,
    machine: Machine,
    workers: int,
    compute_seconds: float,
    exchange: Exchange,
    gain: float = 1.01,
) -> float:
    """The fastest link on which `exchange` still is `gain` times as fast as float32.

    Args:
        network: As for `predict`, also for the next ones.
        machine: Its bandwidth is not used.
        workers: N.
        compute_seconds: Forward and backward pass.
        exchange: How gradients travel.
        gain: Speed-up that counts as one.

    Returns:
        Bytes a second, to 1 %; 0 if it pays on no link, infinity if it pays on every one.
    """

    def pays(bandwidth: float) -> bool:
        return speed_up(network, machine.with_bandwidth(bandwidth), workers, compute_seconds, exchange) >= gain

    low, high = 1e2, 1e14
    if not pays(low):
        return 0.0
    if pays(high):
        return math.inf
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if pays(middle) else (low, middle)
    return low
