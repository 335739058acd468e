"""The formats gradients travel in, and the settings that describe an exchange. Imports neither numpy nor TensorFlow."""

from __future__ import annotations

import dataclasses
import operator

#: Raised with every change of docs/wire_format.md; workers compare it at start-up.
PROTOCOL_VERSION = 1

ROUNDINGS = ("truncate", "nearest", "stochastic")
SCALINGS = ("block", "none")


@dataclasses.dataclass(frozen=True)
class Format:
    """One row of docs/wire_format.md's first table."""

    bits: int
    name: str
    exponent_bits: int
    mantissa_bits: int
    largest: float
    smallest: float
    default_scaling: str


#: Every format of the wire by its number of bits; 32 carries tensors too small to be worth coding.
FORMATS = {
    8: Format(8, "EPGC-8", 5, 2, 57344.0, 2.0**-16, "block"),
    9: Format(9, "EPGC-9", 8, 0, 2.0**127, 2.0**-126, "none"),
    11: Format(11, "EPGC-11", 5, 5, 64512.0, 2.0**-19, "block"),
    16: Format(16, "LPDU", 5, 10, 65504.0, 2.0**-24, "block"),
    32: Format(32, "float32", 8, 23, 3.4028234663852886e38, 2.0**-149, "none"),
}


def as_index(value) -> int | None:
    """An integer of any kind, numpy's included, as an int; None for anything else."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


@dataclasses.dataclass(frozen=True)
class CodecConfig:
    """How values are coded.

    Args:
        bits: 8, 9, 11, 16, or 32 for no coding.
        rounding: `"truncate"`, `"nearest"` (ties to even) or `"stochastic"`.
        scaling: `"block"` (one power of two for 1024 values), `"none"`, or `None` for the format's default: `"block"`
            for 8, 11 and 16 bits, `"none"` for 9 and 32.
        seed: Of stochastic rounding.

    Raises:
        ValueError: For a value that is not among those named.
    """

    bits: int = 11
    rounding: str = "nearest"
    scaling: str | None = None
    seed: int = 0

    def __post_init__(self):
        bits, seed = as_index(self.bits), as_index(self.seed)
        if bits not in FORMATS:
            raise ValueError(f"bits={self.bits!r} is not supported; use one of {', '.join(map(str, FORMATS))}.")
        object.__setattr__(self, "bits", bits)
        if self.rounding not in ROUNDINGS:
            raise ValueError(f"rounding={self.rounding!r} is not supported; use one of {', '.join(ROUNDINGS)}.")
        if self.scaling is None:
            object.__setattr__(self, "scaling", FORMATS[self.bits].default_scaling)
        if self.scaling not in SCALINGS:
            raise ValueError(
                f"scaling={self.scaling!r} is not supported; use one of {', '.join(SCALINGS)}, or None for the "
                "format's default."
            )
        if self.bits == 32 and self.scaling == "block":
            raise ValueError("scaling='block' has no meaning for bits=32, which is exact; leave scaling out.")
        if seed is None or not -(2**63) <= seed < 2**63:
            raise ValueError(f"seed={self.seed!r} is not supported; use an integer of at most 64 bits.")
        object.__setattr__(self, "seed", seed)

    @property
    def is_exact(self) -> bool:
        return self.bits == 32


#: What small tensors travel in: float32, untouched.
EXACT = CodecConfig(bits=32)
