"""Table 1: scaling efficiency of ResNet-50, VGG-16 and SSD300 by format, predicted, then measured on emulated hosts.

    python benchmarks/table1.py                    # N = 8, 4, 2; writes results/table1.{csv,json,md,png}

For each network the link rate is set so that float32 on the largest number of workers has the published efficiency.
Then, for each N: the cluster is calibrated, the steps of all formats are predicted from that calibration alone, and
only then measured. The step is that of benchmarks/step.py; efficiency is the step of one worker over that of N.
"""

import argparse
import csv
import dataclasses
import json
import math
import os
import sys
import time

if __package__ in (None, ""):  # run as a script
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks import emulated_cluster, step
from tf_epgc import performance
from tf_epgc.formats import FORMATS
from tf_epgc.performance import machine as machine_files

#: Efficiency of float32 on 8 nodes that the link is set for. SSD's own is not published, only what LPDU gains.
BASELINES = {"ResNet50": 0.8405, "VGG16": 0.7942, "SSD300": 0.80}
BITS = (32, 16, 11, 9, 8)
PREDICTED_WORKERS = (16, 32, 64, 128, 256)
_RATE_ATTEMPTS = 5
_RATE_TOLERANCE = 0.004
_SEARCH_STEPS = 3
_FIRST_RATE = 12.5e6


@dataclasses.dataclass(frozen=True)
class Cell:
    """One measurement and what was predicted for it.

    Attributes:
        network: Its name.
        workers: N.
        bits: The format's.
        link: Bytes a second that the links were limited to.
        predicted: Efficiency, from the calibration.
        measured: Efficiency, None where it was not measured.
        predicted_exposed: Seconds that the exchange adds to the step.
        measured_exposed: The same, measured.
        bytes_sent: By each worker in a step, from the model.
    """

    network: str
    workers: int
    bits: int
    link: float
    predicted: float
    measured: float | None
    predicted_exposed: float
    measured_exposed: float | None
    bytes_sent: int


class Table:
    """Measures cell after cell.

    Args:
        settings: `compute` (seconds), `values`, `steps` and `one` (seconds of one worker's step, by network).
    """

    def __init__(self, settings):
        self._settings = settings
        self.cells: list[Cell] = []
        self.calibrations: list[dict] = []
        self._machines = {}

    def calibrate(self, session, network):
        packs = self.predict(network, performance.ideal_machine(_FIRST_RATE), 2, 32).packs
        content = session.call("calibrate", elements=max(pack.elements for pack in packs))[0]
        self.calibrations.append(content)
        return machine_files.machine_from(content)

    def measure(self, session, bits, steps):
        compute = self._settings.compute
        return step.medians(session.call("measure", compute=compute, bits=list(bits), steps=steps, timeout=600))

    def predict(self, network, machine, workers, bits):
        scale = step.scale_of(network, self._settings.values)
        scaled, exchange = performance.network(network).scaled(scale), step.exchange_of(bits, network, scale)
        return performance.predict(scaled, machine, workers, self._settings.one[network], exchange)

    def find_rate(self, cluster, session, network, workers, target) -> float:
        """The link rate at which float32 has `target` efficiency, by measuring it."""
        wanted = self._settings.one[network] * (1 / target - 1)
        rate = _FIRST_RATE
        cluster.set_rate(rate)
        machine = self.calibrate(session, network)
        # A first guess from the model; a rate-limited link carries a little less than its rate.
        overhead = rate / machine.bandwidth
        low, high = 1e5, 1e9
        while high / low > 1.001:
            rate = (low * high) ** 0.5
            exposed = self.predict(network, machine.with_bandwidth(rate / overhead), workers, 32).exposed_seconds
            low, high = (rate, high) if exposed > wanted else (low, rate)
        tried: list[tuple[float, float]] = []
        for _ in range(_RATE_ATTEMPTS):
            cluster.set_rate(rate)
            seconds = self.measure(session, [32], _SEARCH_STEPS)[32]
            efficiency = self._settings.one[network] / seconds
            tried.append((rate, seconds - self._settings.one[network]))
            say(f"{network}: {performance.format_rate(rate)} gives float32 {efficiency:.2%}, wanted {target:.2%}")
            if abs(efficiency - target) <= _RATE_TOLERANCE:
                break
            rate = next_rate(tried, wanted)
        return min(tried, key=lambda one: abs(one[1] - wanted))[0]

    def fill(self, cluster, session, network, workers, rate):
        """Calibrates, predicts, then measures one network on `workers` workers."""
        cluster.set_rate(rate)
        machine = self.calibrate(session, network)
        predictions = {bits: self.predict(network, machine, workers, bits) for bits in BITS}
        measured = self.measure(session, BITS, self._settings.steps)
        for bits in BITS:
            self._add(network, workers, bits, rate, predictions[bits], measured[bits])
        self._machines[network, workers] = machine

    def extrapolate(self, network, workers, rate):
        """Predicts larger clusters from the calibration of `workers`."""
        for more in PREDICTED_WORKERS:
            for bits in BITS:
                prediction = self.predict(network, self._machines[network, workers], more, bits)
                self._add(network, more, bits, rate, prediction, None)

    def _add(self, network, workers, bits, rate, prediction, seconds):
        one = self._settings.one[network]
        cell = Cell(
            network,
            workers,
            bits,
            rate,
            prediction.efficiency,
            None if seconds is None else one / seconds,
            prediction.exposed_seconds,
            None if seconds is None else seconds - one,
            prediction.bytes_sent,
        )
        self.cells.append(cell)
        if seconds is not None:
            name = f"{network} N={workers} {FORMATS[bits].name}"
            say(f"{name}: predicted {cell.predicted:.2%}, measured {cell.measured:.2%}")


def next_rate(tried: list[tuple[float, float]], wanted: float) -> float:
    """The link rate to try next, to see `wanted` seconds exposed; what is not hidden falls linearly with a byte's time.

    Args:
        tried: Pairs of rate and exposed seconds, at least one.
        wanted: Seconds.
    """
    nearest = sorted(tried, key=lambda one: abs(one[1] - wanted))
    rate, exposed = nearest[0]
    # Between two that enclose it rather than beyond two that do not.
    for other, more in sorted(nearest[1:], key=lambda one: (one[1] > wanted) == (exposed > wanted)):
        slope = (more - exposed) / (1 / other - 1 / rate) if other != rate else 0.0
        if slope > 0:
            inverse = 1 / rate + (wanted - exposed) / slope
            # Never far outside of what has been seen: measurements scatter.
            return min(max(1 / inverse if inverse > 0 else math.inf, rate / 2), rate * 2)
    return rate * min(max(exposed / wanted, 0.5), 2.0) ** 0.6


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def measure_table(table, settings) -> None:
    """The whole table: by network one worker first, then the largest cluster, which sets the links, then the others."""
    for network in settings.networks:
        rate = None
        for workers in [1, *sorted(settings.workers, reverse=True)]:
            with (
                emulated_cluster.cluster(workers) as cluster,
                step.Session(cluster, workers, network, settings.values) as session,
            ):
                if workers == 1:
                    [seconds] = table.measure(session, [step.NO_EXCHANGE], settings.steps).values()
                    settings.one[network] = seconds
                    say(f"{network} N=1: {seconds * 1e3:.1f} ms for {settings.compute * 1e3:.0f} ms of computing")
                    continue
                rate = rate or table.find_rate(cluster, session, network, workers, BASELINES[network])
                table.fill(cluster, session, network, workers, rate)
        table.extrapolate(network, max(settings.workers), rate)


# What comes out


def markdown(cells) -> str:
    """The measured cells as a table, and the largest errors of the prediction."""
    lines = [
        "| network | N | link | format | predicted | measured | gain | exposed, predicted | exposed, measured |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    shown = [cell for cell in cells if cell.measured is not None]
    base = {(cell.network, cell.workers): cell.measured for cell in shown if cell.bits == 32}
    for cell in shown:
        gain = (cell.measured - base[cell.network, cell.workers]) * 100
        lines.append(
            f"| {cell.network} | {cell.workers} | {performance.format_rate(cell.link)} | {FORMATS[cell.bits].name} "
            f"| {cell.predicted:.2%} | {cell.measured:.2%} | {gain:+.2f} "
            f"| {cell.predicted_exposed * 1e3:.1f} ms | {cell.measured_exposed * 1e3:.1f} ms |"
        )
    worst = max(abs(cell.predicted - cell.measured) for cell in shown)
    relative = [abs(c.predicted_exposed - c.measured_exposed) / c.measured_exposed for c in shown]
    within = sum(error <= 0.1 for error in relative)
    lines += [
        "",
        f"Prediction off by at most {worst * 100:.2f} points of efficiency; exposed time within 10 % in {within} of "
        f"{len(shown)} cells, at worst {max(relative):.0%} off.",
    ]
    return "\n".join(lines) + "\n"


def charts(cells) -> str:
    """Mermaid's charts of the predicted efficiency, one a network, which a page can show without a file."""
    texts = []
    for network in dict.fromkeys(cell.network for cell in cells):
        mine = [cell for cell in cells if cell.network == network]
        workers = sorted({cell.workers for cell in mine})
        lines = [
            "```mermaid",
            "xychart-beta",
            f'    title "{network}, {performance.format_rate(mine[0].link)}, predicted"',
            f'    x-axis "workers" {workers}',
            '    y-axis "efficiency, %" 0 --> 100',
        ]
        for bits in BITS:
            row = sorted((cell for cell in mine if cell.bits == bits), key=lambda cell: cell.workers)
            lines.append(f"    line {[round(100 * cell.predicted, 1) for cell in row]}")
        texts.append("\n".join([*lines, "```"]))
    return "\n\n".join(texts) + "\n"


def write(table, settings, seconds: float) -> None:
    """Writes the CSV, JSON, markdown and PNG files."""
    os.makedirs(settings.out, exist_ok=True)
    rows = [dataclasses.asdict(cell) for cell in table.cells]
    with open(os.path.join(settings.out, "table1.csv"), "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    about = {**vars(settings), "seconds": seconds}
    with open(os.path.join(settings.out, "table1.json"), "w") as file:
        json.dump({"settings": about, "cells": rows, "calibrations": table.calibrations}, file, indent=2)
    text = markdown(table.cells)
    with open(os.path.join(settings.out, "table1.md"), "w") as file:
        file.write(f"{text}\n{charts(table.cells)}")
    print(text)
    plot(
        table.cells,
        [n for n in settings.networks if any(c.network == n for c in table.cells)],
        os.path.join(settings.out, "table1.png"),
    )
    say(f"done in {seconds / 60:.1f} minutes; files are in {settings.out}")


def plot(cells, networks, path: str) -> None:
    """Efficiency over N by format: lines predicted, points measured."""
    try:
        import matplotlib
    except ImportError:
        say("no plot: matplotlib is not installed (`pip install matplotlib`)")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(networks), figsize=(5 * len(networks), 4), sharey=True, squeeze=False)
    for axis, network in zip(axes[0], networks):
        for color, bits in enumerate(BITS):
            row = sorted((c for c in cells if c.network == network and c.bits == bits), key=lambda c: c.workers)
            label = FORMATS[bits].name
            axis.plot([1, *(c.workers for c in row)], [1, *(c.predicted for c in row)], f"C{color}-", label=label)
            points = [(c.workers, c.measured) for c in row if c.measured is not None]
            axis.plot(*zip((1, 1.0), *points), f"C{color}o")
        axis.set(xscale="log", title=f"{network}, {performance.format_rate(row[0].link)}", xlabel="workers")
        axis.set_xticks([1, 2, 4, 8, 16, 32, 64, 128, 256], labels=["1", "2", "4", "8", "16", "32", "64", "128", "256"])
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("efficiency (lines: predicted, points: measured)")
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def _arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=BASELINES, default=list(BASELINES))
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--compute", type=float, default=1.0, help="seconds of a step's computing")
    parser.add_argument("--values", type=int, default=step.DEFAULT_VALUES, help="of all gradients together, scaled")
    parser.add_argument("--steps", type=int, default=5, help="of each format")
    parser.add_argument("--out", default="results", help="folder to write to")
    settings = parser.parse_args()
    if min(settings.workers) < 2:
        parser.error("--workers must be 2 or more; one worker is always measured")
    settings.one = {}
    return settings


def main():
    settings = _arguments()
    emulated_cluster.end_on_signals()
    reason = emulated_cluster.why_not()
    if reason:
        sys.exit(f"table1 needs links of a set rate, which need emulated hosts: {reason}")
    start = time.monotonic()
    table = Table(settings)
    try:
        measure_table(table, settings)
    finally:
        if table.cells:  # also what there was before an error
            write(table, settings, time.monotonic() - start)


if __name__ == "__main__":
    main()
