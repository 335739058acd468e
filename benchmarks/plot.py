"""Draws what exchange.py and peers.py have written with --json: a bar a variant, a panel a link rate.

    python benchmarks/plot.py exchange.json --out exchange.png
    python benchmarks/plot.py loopback.json links.json --out exchange.png

Bars are medians, lines across them the range from the fastest to the slowest step; a black mark is what the link needs
for the bytes that were sent. Needs matplotlib.
"""

import argparse
import json
import statistics
import sys

if __package__ in (None, ""):  # run as a script
    import os

    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from tf_epgc.performance import format_rate

_PANEL_INCHES = (4.6, 3.4)


def read_panels(paths):
    """Reads result files.

    Returns:
        A list of pairs, one for each run: a title, and by variant a dict of `median`, `fastest`, `slowest` and `limit`
        (seconds; None on loopback and for what sends nothing).
    """
    panels = []
    for path in paths:
        with open(path) as file:
            content = json.load(file)
        about = content["arguments"]
        for run in content["runs"]:
            where = "loopback" if run["rate"] is None else format_rate(run["rate"])
            title = f"{about['elements'] / 1e6:.1f} M values, {about['workers']} workers, {where}"
            panels.append((title, {name: bar(row, run["rate"]) for name, row in run["results"].items()}))
    return panels


def bar(row, rate):
    """What is drawn of a variant's `times` (seconds) and `bytes`, on links of `rate` bytes a second or None."""
    times = row["times"]
    limit = row["bytes"] / rate if rate and row["bytes"] else None
    return {"median": statistics.median(times), "fastest": min(times), "slowest": max(times), "limit": limit}


def draw(panels, path):
    """Draws panels, as `read_panels` returns them, into a file."""
    try:
        from matplotlib import figure
    except ModuleNotFoundError as error:
        raise ImportError("plot.py needs matplotlib; run `pip install matplotlib`.") from error
    width, height = _PANEL_INCHES
    columns = min(len(panels), 2)
    rows = -(-len(panels) // columns)
    sheet = figure.Figure(figsize=(width * columns, height * rows), layout="constrained")
    for place, (title, bars) in enumerate(panels, 1):
        draw_panel(sheet.add_subplot(rows, columns, place), title, bars)
    sheet.savefig(path, dpi=110)


def draw_panel(axes, title, bars):
    """Draws one run."""
    names = list(bars)
    milliseconds = {key: [1e3 * bars[name][key] for name in names] for key in ("median", "fastest", "slowest")}
    axes.barh(names, milliseconds["median"], color=["tab:blue" if "EPGC" in name else "tab:gray" for name in names])
    axes.hlines(names, milliseconds["fastest"], milliseconds["slowest"], color="black", linewidth=0.8)
    limits = [(1e3 * bars[name]["limit"], name) for name in names if bars[name]["limit"]]
    axes.scatter([x for x, _ in limits], [name for _, name in limits], marker="|", s=120, color="black", zorder=3)
    axes.invert_yaxis()
    axes.set_title(title, fontsize=9)
    axes.set_xlabel("ms")
    axes.tick_params(labelsize=8)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", metavar="FILE.json")
    parser.add_argument("--out", default="exchange.png", metavar="FILE.png", help="(default: exchange.png)")
    arguments = parser.parse_args()
    try:
        draw(read_panels(arguments.results), arguments.out)
    except (OSError, ImportError) as error:
        sys.exit(f"plot: {error}")
    except (KeyError, TypeError, json.JSONDecodeError):
        sys.exit("plot: the files must be what exchange.py or peers.py have written with --json")


if __name__ == "__main__":
    main()
