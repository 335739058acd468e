"""Runs the cells of the study one after another and writes each that ends to a file.

    python examples/study/run.py --out results.jsonl
    python examples/study/run.py --out results.jsonl --groups resnet vgg --cifar cifar10.npz --mnist mnist.npz

Started again with the same file, it goes on where it stopped; a cell that failed is tried again. Every line of the
file holds one cell and the result of its example, or the error it ended with. `report.py` makes tables and plots of it.
"""

import argparse
import datetime
import json
import os
import pathlib
import subprocess
import sys
import time

import cells as cells_module

EXAMPLES = pathlib.Path(__file__).resolve().parents[1]
PAUSE_SECONDS = 5
KEPT_CHARACTERS = 2000


def main(arguments=None):
    """Runs the study; returns the exit code, 0 when every cell has a result."""
    options = parse(arguments)
    wanted = [cell for cell in cells_module.cells(options.groups, options.seeds) if cell["bits"] in options.bits]
    done = finished(options.out)
    left = [cell for cell in wanted if cells_module.key(cell) not in done]
    print(f"{len(wanted)} cells, {len(left)} of them to run", flush=True)
    failed = 0
    for number, cell in enumerate(left, 1):
        print(f"[{number}/{len(left)}] {cells_module.name(cell)}", flush=True)
        if options.dry_run:
            print("  " + " ".join(command(cell, options)))
            continue
        wait_while(options.pause_file)
        record = run(cell, options)
        append(options.out, record)
        failed += "error" in record
        print("  " + summary(record), flush=True)
    return 1 if failed else 0


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="results.jsonl", metavar="FILE", help="(default: results.jsonl)")
    parser.add_argument("--groups", nargs="+", choices=cells_module.GROUPS, help="(default: all)")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(cells_module.SEEDS), help="(default: 1 2 3)")
    formats = cells_module.FORMATS
    parser.add_argument("--bits", nargs="+", type=int, choices=formats, default=list(formats), help="(default: all)")
    parser.add_argument("--cifar", metavar="FILE.npz", help="CIFAR-10 (default: keras.datasets)")
    parser.add_argument("--mnist", metavar="FILE.npz", help="MNIST (default: keras.datasets)")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="options for every example")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds a cell may take (default: 1800)")
    parser.add_argument("--pause-file", metavar="FILE", help="start no cell while this file exists")
    parser.add_argument("--dry-run", action="store_true", help="only show what would be run")
    options = parser.parse_args(arguments)
    if any("=" not in item for item in options.set):
        parser.error(f"--set is {' '.join(options.set)}; write each as NAME=VALUE, for instance epochs=1")
    return options


def finished(path):
    """Keys of the cells that have a result in the file."""
    return {cells_module.key(record["cell"]) for record in records(path) if "result" in record}


def records(path):
    """What the file holds, as a list of dicts; a last line that was cut off is left out."""
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.endswith("\n")]


def command(cell, options):
    """The command that trains a cell."""
    data = {"--data": options.cifar}
    if cell["task"] == "detection":
        data = {"--digits": options.mnist, "--backgrounds": options.cifar}
    sizes = dict(item.split("=", 1) for item in options.set)
    line = [sys.executable, str(EXAMPLES / f"{cell['task']}.py"), *cells_module.arguments(cell, sizes)]
    return line + [part for name, path in data.items() if path for part in (name, path)]


def run(cell, options):
    """Trains a cell and returns its record."""
    started = time.monotonic()
    try:
        done = subprocess.run(
            command(cell, options), capture_output=True, text=True, timeout=options.timeout, check=False
        )
        output, error = done.stdout, f"exit code {done.returncode}: {done.stderr[-KEPT_CHARACTERS:]}"
        failed = done.returncode != 0
    except subprocess.TimeoutExpired:
        output, error, failed = "", f"took longer than {options.timeout} seconds", True
    record = {
        "cell": cell,
        "ended": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "wall_seconds": round(time.monotonic() - started, 1),
    }
    return {**record, "error": error} if failed else {**record, "result": json.loads(output.splitlines()[-1])}


def append(path, record):
    """Writes a record so that it is in the file whole when this returns."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
        file.flush()
        os.fsync(file.fileno())


def wait_while(path):
    """Returns once there is no file of that name."""
    while path and os.path.exists(path):
        time.sleep(PAUSE_SECONDS)


def summary(record):
    """A record in one line."""
    if "error" in record:
        return f"FAILED after {record['wall_seconds']} s: {record['error']}"
    result = record["result"]
    figure = "accuracy" if "accuracy" in result else "map"
    return f"{figure} {result[figure]:.4f} in {record['wall_seconds']} s"


if __name__ == "__main__":
    sys.exit(main())
