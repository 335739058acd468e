"""Makes tables and plots of the study's results.

    python examples/study/report.py results.jsonl
    python examples/study/report.py results.jsonl --plots plots

prints Markdown, two tables a network: mean and standard deviation over the seeds, and how each setting differs from
float32 of the same seed; then the mean after each epoch. `--plots` needs matplotlib and draws the measure against the
epoch, one plot a network.
"""

import argparse
import pathlib
import sys

import cells as cells_module
import numpy as np
import run as run_module

NAMES = {32: "float32", 16: "LPDU", 11: "EPGC-11", 9: "EPGC-9", 8: "EPGC-8"}
COLUMNS = (
    "Format",
    "Rounding",
    "Scaling",
    "Exchange",
    "Workers",
    "Seeds",
    "Difference from float32",
    "Against its spread",
)


def main(arguments=None):
    """Prints the tables and draws the plots; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", metavar="FILE", help="what run.py has written")
    parser.add_argument("--plots", metavar="FOLDER", type=pathlib.Path, help="draw PNG files into this folder")
    options = parser.parse_args(arguments)
    records = [record for record in run_module.records(options.results) if "result" in record]
    if not records:
        print(f"{options.results} holds no results; run examples/study/run.py first", file=sys.stderr)
        return 1
    for network, settings in by_network(records).items():
        print(f"## {network}\n\n{table(settings)}\n\n{curves(settings)}\n")
        if options.plots:
            plot(options.plots, network, settings)
    return 0


def by_network(records):
    """Sorts records.

    Returns:
        For each network, for each setting (a cell without its seed, as a tuple), the results by seed. Of several
        results of one cell, the last counts.
    """
    networks = {}
    for record in records:
        cell = {**record["cell"]}
        seed, network = cell.pop("seed"), cell["network"]
        networks.setdefault(network, {}).setdefault(cells_module.key(cell), {})[seed] = record["result"]
    return networks


def table(settings):
    """A Markdown table of one network's settings."""
    exact = settings.get(exact_setting(next(iter(settings))), {})
    measure = "mAP@0.5" if "map" in next(iter(next(iter(settings.values())).values())) else "Accuracy"
    heads = (*COLUMNS[:6], measure, *COLUMNS[6:])
    lines = [
        heads,
        ["---"] * len(heads),
        *(row(dict(setting), results, exact) for setting, results in settings.items()),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def exact_setting(setting):
    """What the settings of a network are compared with: float32 on two workers."""
    cell = {**cells_module.DEFAULTS, **{name: dict(setting)[name] for name in ("task", "network")}}
    del cell["seed"]
    return cells_module.key(cell)


def row(cell, results, exact):
    """The fields of one line of the table."""
    values = [final(result) for _, result in sorted(results.items())]
    shared = [] if results is exact else sorted(set(results) & set(exact))
    differences = [final(results[seed]) - final(exact[seed]) for seed in shared]
    coded = cell["bits"] != 32
    return (
        NAMES[cell["bits"]],
        cell["rounding"] if coded else "-",
        (cell["scaling"] + (" + MPU" if cell["mpu"] else "")) if coded else "-",
        "plain Keras" if not cell["workers"] else "simulated" if cell["simulate"] else "packed" if coded else "float32",
        str(cell["workers"] or 1),
        str(len(values)),
        mean_and_deviation(values),
        mean_and_deviation(differences, "+") if differences else "-",
        place(np.mean(values), [final(result) for result in exact.values()]) if differences else "-",
    )


def place(mean, spread):
    """Where a mean lies: within the range that float32's seeds span, or above or below it."""
    if len(spread) < 2:
        return "-"
    return "below" if mean < min(spread) else "above" if mean > max(spread) else "within"


def final(result):
    """The measure a training ended with."""
    return result["map"] if "map" in result else result["accuracy"]


def mean_and_deviation(values, sign=""):
    """Mean and standard deviation (of a sample; left out for one value) as text."""
    text = f"{np.mean(values):{sign}.4f}"
    return f"{text} ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else text


def curves(settings):
    """A Markdown table with the mean over seeds after each epoch, for the formats' usual settings."""
    means = {bits: np.mean(usual_curves, 0) for bits, usual_curves in usual(settings).items()}
    epochs = max(map(len, means.values()), default=0)
    lines = [["After epoch", *map(str, range(1, epochs + 1))], ["---"] * (epochs + 1)]
    lines += [[NAMES[bits], *(f"{value:.3f}" for value in mean)] for bits, mean in means.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def usual(settings):
    """The curves of each format with the settings of `cells.DEFAULTS`: by bits, an array of shape (seeds, epochs)."""
    found = {}
    for setting, results in settings.items():
        cell = dict(setting)
        same = {**cells_module.DEFAULTS, **{name: cell[name] for name in ("task", "network", "bits")}}
        if all(cell[name] == same[name] for name in cell):
            found[cell["bits"]] = np.array([result["curve"] for result in results.values()])
    return found


def plot(folder, network, settings):
    """Draws the measure against the epoch, mean over seeds with the seeds' range, for the formats' usual settings."""
    try:
        from matplotlib import figure
    except ModuleNotFoundError as error:
        raise ImportError("--plots needs matplotlib; run `pip install matplotlib`, or leave --plots out") from error
    sheet = figure.Figure(figsize=(7, 4.5), layout="constrained")
    axes = sheet.add_subplot()
    for bits, by_seed in usual(settings).items():
        epochs = np.arange(1, by_seed.shape[1] + 1)
        [line] = axes.plot(epochs, by_seed.mean(0), label=NAMES[bits])
        axes.fill_between(epochs, by_seed.min(0), by_seed.max(0), color=line.get_color(), alpha=0.12)
    axes.set(xlabel="epoch", ylabel="mAP@0.5" if network == "ssd" else "test accuracy", title=network)
    axes.legend()
    axes.grid(alpha=0.3)
    folder.mkdir(parents=True, exist_ok=True)
    sheet.savefig(folder / f"{network}.png", dpi=110)


if __name__ == "__main__":
    sys.exit(main())
