"""A cluster as the performance model sees it: link, collectives, codec. `tf-epgc bench --calibrate` measures them."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Mapping

#: Raised with every change of the calibration file.
FILE_VERSION = 2
_FILE_KIND = "tf_epgc machine"
_MAKE_ONE = "make one with `tf-epgc bench --calibrate FILE`"


def _check_positive(what: str, value, zero: bool = False) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not (value > 0 or (zero and value == 0)):
        raise ValueError(f"{what} is {value!r}; it must be a number above 0{' or 0' if zero else ''}.")


@dataclasses.dataclass(frozen=True)
class CodecRates:
    """Values a second that one host codes; infinity for nothing at all.

    Attributes:
        pack: Values read and encoded.
        reduce: Values decoded and added: `N` times those of the shard.
        unpack: Values decoded and written.
    """

    pack: float = math.inf
    reduce: float = math.inf
    unpack: float = math.inf

    def __post_init__(self):
        for field in dataclasses.fields(self):
            _check_positive(f"Rate {field.name}", getattr(self, field.name))


@dataclasses.dataclass(frozen=True)
class Machine:
    """A cluster of equal hosts on equal links, in the terms of the α-β model.

    Attributes:
        bandwidth: Bytes a second that a host sends, while it receives as many; 1/β.
        latency: Seconds that each message of a collective adds; α.
        op_seconds: Seconds that an all-to-all or all-gather takes besides, with messages of `full_bytes` or more.
        ring_seconds: The same for a ring; as `op_seconds` when None.
        op_least_seconds: The same with empty messages, between which and `full_bytes` it grows evenly; as `op_seconds`
            when None.
        ring_least_seconds: The same for a ring; as `ring_seconds` when None.
        op_busy_seconds: What part of these an all-to-all or all-gather keeps others waiting: LogP's overhead, where the
            rest is latency.
        full_bytes: Size of a message from which on the start of a transfer costs no more than that.
        ring_bandwidth: Bytes a second that a host sends in a ring, adding included; as `bandwidth` when None.
        codecs: `CodecRates` by bits; bits that are missing cost nothing.
        workers: Hosts that took part in the measurement, None if it was none.
    """

    bandwidth: float
    latency: float = 0.0
    op_seconds: float = 0.0
    ring_seconds: float | None = None
    op_least_seconds: float | None = None
    ring_least_seconds: float | None = None
    op_busy_seconds: float = 0.0
    full_bytes: float = 0.0
    ring_bandwidth: float | None = None
    codecs: Mapping[int, CodecRates] = dataclasses.field(default_factory=dict)
    workers: int | None = None

    def __post_init__(self):
        _check_positive("bandwidth", self.bandwidth)
        _check_positive("latency", self.latency, zero=True)
        _check_positive("op_seconds", self.op_seconds, zero=True)
        _check_positive("op_busy_seconds", self.op_busy_seconds, zero=True)
        _check_positive("full_bytes", self.full_bytes, zero=True)
        self._use_for_none("ring_seconds", self.op_seconds)
        self._use_for_none("op_least_seconds", self.op_seconds)
        self._use_for_none("ring_least_seconds", self.ring_seconds)
        for name in ("ring_seconds", "op_least_seconds", "ring_least_seconds"):
            _check_positive(name, getattr(self, name), zero=True)
        self._use_for_none("ring_bandwidth", self.bandwidth)
        _check_positive("ring_bandwidth", self.ring_bandwidth)

    def _use_for_none(self, name: str, value: float) -> None:
        if getattr(self, name) is None:
            object.__setattr__(self, name, value)

    def op_cost(self, message: float) -> float:
        """Seconds that an all-to-all or all-gather with messages of so many bytes takes besides latency and bytes."""
        return self._cost(self.op_least_seconds, self.op_seconds, message)

    def ring_cost(self, message: float) -> float:
        """The same for a ring."""
        return self._cost(self.ring_least_seconds, self.ring_seconds, message)

    def _cost(self, least: float, full: float, message: float) -> float:
        part = min(message / self.full_bytes, 1.0) if self.full_bytes else 1.0
        return least + (full - least) * part

    def rates(self, bits: int) -> CodecRates:
        return self.codecs.get(bits, CodecRates())

    def with_bandwidth(self, bandwidth: float) -> Machine:
        """The same hosts on another link, in bytes a second; a ring takes as much longer for a byte as it did."""
        adding = max(1 / self.ring_bandwidth - 1 / self.bandwidth, 0.0)
        return dataclasses.replace(self, bandwidth=bandwidth, ring_bandwidth=1 / (1 / bandwidth + adding))

    def save(self, path: str | pathlib.Path) -> None:
        """Writes the file that `load_machine` reads."""
        content = {"kind": _FILE_KIND, "version": FILE_VERSION, **dataclasses.asdict(self)}
        content["codecs"] = {
            str(bits): {k: v for k, v in dataclasses.asdict(rates).items() if math.isfinite(v)}
            for bits, rates in self.codecs.items()
        }
        pathlib.Path(path).write_text(json.dumps(content, indent=2) + "\n")


def load_machine(path: str | pathlib.Path) -> Machine:
    """A machine from a calibration file.

    Args:
        path: A JSON file written by `Machine.save`.

    Returns:
        A `Machine`.

    Raises:
        ValueError: If it is not such a file, or of another version.
        OSError: If it cannot be read.
    """
    try:
        content = json.loads(pathlib.Path(path).read_text())
    except ValueError as e:
        raise ValueError(f"{path} is not a calibration file: {e}; {_MAKE_ONE}.") from e
    return machine_from(content, str(path))


def machine_from(content: object, name: str = "This") -> Machine:
    """A machine from the content of a calibration file.

    Args:
        content: What JSON made of the file.
        name: For messages.

    Returns:
        A `Machine`.

    Raises:
        ValueError: If it is not such a file's content, or of another version.
    """
    if not isinstance(content, dict) or content.get("kind") != _FILE_KIND:
        raise ValueError(f"{name} is not a calibration file; {_MAKE_ONE}.")
    if content.get("version") != FILE_VERSION:
        raise ValueError(
            f"{name} is a calibration file of version {content.get('version')!r}, this is version {FILE_VERSION}; "
            "measure again with `tf-epgc bench --calibrate`."
        )
    fields = {key: value for key, value in content.items() if key not in ("kind", "version")}
    try:
        fields["codecs"] = {int(bits): CodecRates(**rates) for bits, rates in fields.get("codecs", {}).items()}
        return Machine(**fields)
    except (TypeError, AttributeError, ValueError) as e:
        raise ValueError(f"{name} is damaged: {e}; measure again with `tf-epgc bench --calibrate`.") from e


def ideal_machine(bandwidth: float, latency: float = 50e-6) -> Machine:
    """A machine of which only the link is known: coding is free and a message costs `latency` seconds."""
    return Machine(bandwidth, latency)
