"""A network as the performance model sees it: its gradients, and when in the backward pass each one is ready."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import pathlib
from collections.abc import Iterable, Sequence

#: The backward pass computes two products for each one of the forward pass: with respect to inputs and to weights.
FORWARD_SHARE = 1 / 3


@dataclasses.dataclass(frozen=True)
class Gradient:
    """One variable's gradient.

    Attributes:
        name: The variable's.
        elements: Number of values.
        ready: Part of the backward pass, from 0 to 1, after which it is known.
    """

    name: str
    elements: int
    ready: float

    def __post_init__(self):
        if self.elements < 0 or int(self.elements) != self.elements:
            raise ValueError(f"Gradient {self.name!r} has {self.elements!r} elements; give a whole number from 0.")
        if not 0 <= self.ready <= 1:
            raise ValueError(
                f"Gradient {self.name!r} is ready at {self.ready!r}; give a part of the backward pass, 0 to 1."
            )


@dataclasses.dataclass(frozen=True)
class Layer:
    """One layer of a forward pass: its variables' numbers of values, and its work (multiplications, in any unit)."""

    name: str
    variables: tuple[int, ...]
    work: float


@dataclasses.dataclass(frozen=True)
class Network:
    """A network's gradients in the order of its variables, which is that of the forward pass.

    Attributes:
        name: For messages.
        gradients: One for each trainable variable.
        forward_share: Part of the compute time that passes before the backward pass starts.

    Raises:
        ValueError: If it has no gradients or `forward_share` is not between 0 and 1.
    """

    name: str
    gradients: tuple[Gradient, ...]
    forward_share: float = FORWARD_SHARE

    def __post_init__(self):
        object.__setattr__(self, "gradients", tuple(self.gradients))
        if not self.elements:
            raise ValueError(f"{self.name} has no trainable weights, so there is nothing to exchange.")
        if not 0 <= self.forward_share <= 1:
            raise ValueError(f"forward_share is {self.forward_share!r}; give a part of the compute time, 0 to 1.")

    @property
    def elements(self) -> int:
        """Number of values of all gradients."""
        return sum(gradient.elements for gradient in self.gradients)

    def scaled(self, factor: float) -> Network:
        """The same network with `factor` times as many values in each gradient, at least one."""
        gradients = [
            dataclasses.replace(g, elements=max(1, round(g.elements * factor)) if g.elements else 0)
            for g in self.gradients
        ]
        return dataclasses.replace(self, gradients=tuple(gradients))


def from_layers(name: str, layers: Sequence[Layer]) -> Network:
    """A network from its layers in forward order; a layer's gradients are ready when its part of the work is done.

    Args:
        name: For messages.
        layers: In forward order.

    Returns:
        A `Network`.

    Raises:
        ValueError: If no layer has variables.
    """
    gradients = [
        Gradient(f"{layer.name}/{i}", elements, ready)
        for layer, ready in zip(layers, _ready_parts([layer.work for layer in layers]))
        for i, elements in enumerate(layer.variables)
    ]
    return Network(name, tuple(gradients))


def _ready_parts(works: Sequence[float]) -> list[float]:
    """For each layer in forward order, the part of the backward pass at whose end its gradients are known."""
    total, done, parts = sum(works), 0.0, []
    for number, work in enumerate(reversed(works), 1):
        done += work
        parts.append(min(done / total, 1.0) if total else number / len(works))
    return parts[::-1]


def from_keras(model) -> Network:
    """A network from a built Keras model (`keras` or `tf_keras`); weights' values do not matter.

    A layer's work is what its kernel takes at every place of its output, so only layers with kernels take time.

    Args:
        model: A model whose layers know their shapes, such as `keras.applications.ResNet50(weights=None)`.

    Returns:
        A `Network`, its gradients in the order of `model.trainable_variables`.

    Raises:
        ValueError: If the model is not built or has no trainable weights.
    """
    if not getattr(model, "built", True):
        raise ValueError(f"Model {model.name!r} is not built; call it once or give its first layer an input shape.")
    layers = list(_leaf_layers(model))
    ready: dict[int, float] = {}
    for layer, part in zip(layers, _ready_parts([_keras_work(layer) for layer in layers])):
        for variable in layer.trainable_variables:
            ready.setdefault(id(variable), part)
    # What no layer holds is taken to be known last.
    gradients = [
        Gradient(getattr(variable, "path", variable.name), math.prod(variable.shape), ready.get(id(variable), 1.0))
        for variable in model.trainable_variables
    ]
    return Network(model.name, tuple(gradients))


def _leaf_layers(model) -> Iterable:
    for layer in model.layers:
        if getattr(layer, "layers", None):
            yield from _leaf_layers(layer)
        else:
            yield layer


def _keras_work(layer) -> float:
    """Multiplications of one example's forward pass, in layers with kernels; looking up in a table is none."""
    kernels = [math.prod(v.shape) for v in layer.weights if len(v.shape) >= 2]
    if not kernels or type(layer).__name__ == "Embedding":
        return 0.0
    shape = tuple(getattr(getattr(layer, "output", None), "shape", None) or ())
    places = shape[2:] if getattr(layer, "data_format", None) == "channels_first" else shape[1:-1]
    return float(sum(kernels) * math.prod(size or 1 for size in places))


def load_network(path: str | pathlib.Path) -> Network:
    """A network from a file.

    A CSV file has the columns `name`, `elements` and `ready` (0 to 1), one row a variable in the model's order. A JSON
    file has `{"name": ..., "forward_share": ..., "gradients": [{"name": ..., "elements": ..., "ready": ...}, ...]}`.
    Where `ready` is left out, gradients are ready in equal steps, the last variable first.

    Args:
        path: Ends in .csv or .json.

    Returns:
        A `Network`.

    Raises:
        ValueError: If it is not such a file.
        OSError: If it cannot be read.
    """
    path = pathlib.Path(path)
    try:
        if path.suffix == ".csv":
            with path.open(newline="") as file:
                rows, settings = list(csv.DictReader(file)), {}
        elif path.suffix == ".json":
            settings = json.loads(path.read_text())
            rows = settings["gradients"]
        else:
            raise ValueError("the name must end in .csv or .json")
        gradients = [_gradient_of_row(row, i, len(rows)) for i, row in enumerate(rows)]
        share = float(settings.get("forward_share", FORWARD_SHARE))
        return Network(settings.get("name", path.stem), tuple(gradients), share)
    except (KeyError, TypeError, AttributeError) as e:
        raise ValueError(f"{path} does not describe a network: {e!r}; see tf_epgc.performance.load_network.") from e
    except ValueError as e:
        raise ValueError(f"{path} does not describe a network: {e}") from e


def _gradient_of_row(row, index: int, count: int) -> Gradient:
    ready = row.get("ready")
    ready = (count - index) / count if ready in (None, "") else float(ready)
    return Gradient(row.get("name") or f"variable_{index}", int(row["elements"]), ready)
