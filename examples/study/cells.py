"""Which trainings the study consists of: each cell is one run of an example from a seed."""

import itertools

FORMATS = (32, 16, 11, 9, 8)
SEEDS = (1, 2, 3)

#: What a cell says unless its group says otherwise.
DEFAULTS = {
    "task": "classification",
    "network": "resnet8",
    "bits": 32,
    "rounding": "nearest",
    "scaling": "block",
    "mpu": False,
    "simulate": False,
    "workers": 2,
    "seed": 1,
}

#: How long and on how much each kind of cell trains: what two processor cores do in about a minute.
SIZES = {
    "resnet": {"train": 4000, "test": 2000, "epochs": 10},
    "vgg": {"train": 4000, "test": 2000, "epochs": 10, "rate": 0.05},
    "detection": {"train": 3000, "test": 500, "epochs": 8},
}

#: Groups in the order in which they are run, each as lists of values to combine.
GROUPS = {
    "resnet": [{"bits": FORMATS}],
    "plain": [{"workers": (0,)}],
    "vgg": [{"network": ("vgg8",), "bits": FORMATS}],
    "detection": [{"task": ("detection",), "network": ("ssd",), "bits": FORMATS}],
    "rounding": [{"bits": (8, 9, 11), "rounding": ("truncate", "stochastic")}],
    "scaling": [
        {"bits": (8, 11, 16), "scaling": ("none",), "mpu": (True,)},
        {"bits": (9,), "scaling": ("none",)},
        {"bits": (8,), "scaling": ("none",)},
    ],
    "simulated": [{"bits": (8, 9, 11, 16), "simulate": (True,)}],
    "workers": [{"bits": (32, 8), "workers": (4,)}],
    "resnet20": [
        {"network": ("resnet20",), "bits": (32, 8), "workers": (2,)},
        {"network": ("resnet20",), "workers": (0,)},
    ],
}


def cells(groups=None, seeds=SEEDS):
    """The cells of some groups, in their order: each seed with all its settings before the next seed.

    Args:
        groups: Names in `GROUPS`; None for all.
        seeds: What to start the random numbers from.

    Returns:
        A list of dicts with the keys of `DEFAULTS`, without duplicates.
    """
    found = {}
    for group, seed in itertools.product(GROUPS if groups is None else groups, seeds):
        for varied in GROUPS[group]:
            for values in itertools.product(*varied.values()):
                cell = {**DEFAULTS, **dict(zip(varied, values, strict=True)), "seed": seed}
                found.setdefault(key(cell), cell)
    return list(found.values())


def key(cell):
    """What tells cells apart; the same for every order of the entries."""
    return tuple(sorted(cell.items()))


def arguments(cell, sizes=None):
    """The command line of the example that trains a cell.

    Args:
        cell: As `cells` returns it.
        sizes: Options to use in place of those in `SIZES`.
    """
    family = cell["task"] if cell["task"] != "classification" else cell["network"].rstrip("0123456789")
    values = {**SIZES[family], **(sizes or {})}
    for name in ("bits", "rounding", "workers", "seed"):
        values[name] = cell[name]
    if cell["bits"] != 32:
        values["scaling"] = cell["scaling"]
    if cell["task"] == "classification":
        values["network"] = cell["network"]
    line = [part for name, value in values.items() for part in (f"--{name}", str(value))]
    return line + [f"--{name}" for name in ("mpu", "simulate") if cell[name]]


def name(cell):
    """A cell in a few words."""
    words = [cell["network"], f"{cell['bits']} bits", cell["rounding"], cell["scaling"]]
    words += [word for word in ("mpu", "simulate") if cell[word]]
    return ", ".join([*words, f"{cell['workers']} workers", f"seed {cell['seed']}"])
