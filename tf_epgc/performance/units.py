"""Rates and times as people write them: `"10Gbit/s"`, `"180ms"`."""

from __future__ import annotations

import math
import re

_BYTES_PER_SECOND = {
    **{f"{prefix}bit/s": factor / 8 for prefix, factor in (("", 1), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12))},
    **{f"{prefix}B/s": float(factor) for prefix, factor in (("", 1), ("k", 1e3), ("M", 1e6), ("G", 1e9))},
}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_NUMBER_AND_UNIT = re.compile(r"\s*(\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+)\s*([A-Za-z/]+)\s*")


def _parse(text: str, units: dict[str, float], what: str, example: str) -> float:
    match = _NUMBER_AND_UNIT.fullmatch(str(text))
    if match is None or match[2] not in units:
        raise ValueError(f"{text!r} is not a {what}; write a number and one of {', '.join(units)}, as in {example}.")
    value = float(match[1]) * units[match[2]]
    if not 0 < value < math.inf:
        raise ValueError(f"{text!r} is not a {what}; it must be more than 0.")
    return value


def parse_rate(text: str) -> float:
    """Bytes a second from a text such as `"10Gbit/s"`, `"200Mbit/s"` or `"1.2GB/s"`.

    Raises:
        ValueError: Without a unit, with an unknown one, or not above 0.
    """
    return _parse(text, _BYTES_PER_SECOND, "link rate", "10Gbit/s")


def parse_seconds(text: str) -> float:
    """Seconds from a text such as `"180ms"`, `"0.2s"` or `"50us"`.

    Raises:
        ValueError: Without a unit, with an unknown one, or not above 0.
    """
    return _parse(text, _SECONDS, "time", "180ms")


def format_rate(bytes_per_second: float) -> str:
    """A link rate in bits a second, three digits: `"1.25 Gbit/s"`."""
    bits = bytes_per_second * 8
    for unit, factor in (("Tbit/s", 1e12), ("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bits >= factor:
            return f"{bits / factor:.3g} {unit}"
    return f"{bits:.3g} bit/s"
