"""Which tensor travels in which pack: pure arithmetic, the same on every worker and in the simulation."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tf_epgc.formats import as_index

#: Smaller tensors travel as float32: what coding them could save is less than what it costs.
DEFAULT_MIN_ELEMENTS = 1024

#: An exchange is divided into so many packs, within the limits below: smaller packs let coding of one overlap sending
#: of another, and both backpropagation, but a collective costs a worker 1-2 ms whatever its size (docs/performance.md).
_WANTED_PACKS = 6
_LEAST_BYTES_PER_PACK = 4 * 1024 * 1024
_MOST_BYTES_PER_PACK = 16 * 1024 * 1024


def checked_min_elements(value) -> int:
    """`value` as an int.

    Raises:
        ValueError: If it is not an integer of at least 0.
    """
    number = as_index(value)
    if number is None or number < 0:
        raise ValueError(f"min_elements={value!r} is not supported; use an integer of at least 0.")
    return number


def default_bytes_per_pack(total_bytes: int) -> int:
    """Bytes of float32 gradients after which a pack is closed, for an exchange of so many: from 4 to 16 MiB."""
    return min(max(-(-total_bytes // _WANTED_PACKS), _LEAST_BYTES_PER_PACK), _MOST_BYTES_PER_PACK)


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """What the plan needs to know of a gradient: its number of elements (None if unknown) and its dtype's name."""

    elements: int | None
    dtype: str


@dataclasses.dataclass(frozen=True)
class PackPlan:
    """Positions of the gradients in the list, grouped.

    Attributes:
        coded: Packs of tensors that travel coded, in the order in which they are sent.
        small: Tensors that travel as float32, in one pack.
        exact: float64 tensors too small to be coded; float32 would not hold them exactly.
    """

    coded: tuple[tuple[int, ...], ...]
    small: tuple[int, ...]
    exact: tuple[int, ...]


def plan_packs(specs: Sequence[TensorSpec], min_elements: int, bytes_per_pack: int | None) -> PackPlan:
    """Groups gradients into packs.

    The list is walked from its end, as backpropagation makes gradients of the last variables first, so that a pack's
    exchange can start while earlier layers are still being computed.

    Args:
        specs: One for each gradient, in the order of the variables.
        min_elements: Tensors with fewer elements are not coded.
        bytes_per_pack: A pack is closed once it holds at least this many bytes of float32; 0 puts all in one, None
            chooses by `default_bytes_per_pack`.

    Returns:
        A `PackPlan`.
    """
    if bytes_per_pack is None:
        bytes_per_pack = default_bytes_per_pack(sum(4 * (spec.elements or 0) for spec in specs))
    coded: list[list[int]] = []
    small, exact = [], []
    open_bytes = None
    for index in reversed(range(len(specs))):
        spec = specs[index]
        if spec.elements is not None and spec.elements < min_elements:
            (exact if spec.dtype == "float64" else small).append(index)
            continue
        if open_bytes is None or (bytes_per_pack and open_bytes >= bytes_per_pack):
            coded.append([])
            open_bytes = 0
        coded[-1].append(index)
        open_bytes += 4 * (spec.elements or 0)
    return PackPlan(tuple(map(tuple, coded)), tuple(small), tuple(exact))
