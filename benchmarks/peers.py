"""Times one exchange of gradients by this product, Horovod and PyTorch's DistributedDataParallel on the same links.

    python benchmarks/peers.py --horovod PYTHON --torch PYTHON                  # loopback, 2 workers, 25.6 M values
    python benchmarks/peers.py --horovod PYTHON --rate 1Gbit/s --elements 6400000

Each PYTHON is the interpreter of an environment that has the library with Gloo (docs/performance.md). The libraries
take turns by rounds of processes, their variants by steps within a round; a row is the median over all rounds. A DDP
row is what the exchange adds to a pass; "no_sync" is the pass without it. On emulated links "limit" is the time over
what the link needs for the bytes sent: counted by the kernel for this product, those of a ring for the others.
"""

import argparse
import os
import statistics
import subprocess
import sys

if __package__ in (None, ""):  # run as a script
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks import emulated_cluster, exchange
from tf_epgc import launcher
from tf_epgc.performance import format_rate

#: Library -> the module that its environment must have, and the script of its worker.
PEERS = {"horovod": ("horovod.tensorflow", "horovod_worker.py"), "torch": ("torch.distributed", "torch_worker.py")}
FORMATS = ("LPDU", "EPGC-11", "EPGC-9", "EPGC-8")
PRODUCT = (exchange.FLOAT32, exchange.FLOAT16, *FORMATS)
_IMPORT_SECONDS = 120


def parse_arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in PEERS:
        parser.add_argument(f"--{name}", metavar="PYTHON", help="interpreter of its environment (default: left out)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--elements", type=int, default=25_600_000, help="values in all gradients together")
    parser.add_argument("--tensors", type=int, default=16, help="gradients they are spread over")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5, help="of each variant in a round")
    parser.add_argument("--rate", nargs="+", help="rates of the links to emulate, such as 1Gbit/s (default: loopback)")
    parser.add_argument("--json", help="file to write the results to")
    return parser.parse_args(words)


def why_missing(python, module):
    """Why an interpreter cannot import a module; an empty string if it can."""
    try:
        done = subprocess.run(
            [python, "-c", f"import {module}"], capture_output=True, text=True, timeout=_IMPORT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        return str(e)
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1] if done.returncode else ""


def commands(arguments):
    """What starts a worker, by library."""
    sizes = [
        word for name in ("elements", "tensors", "repeats") for word in (f"--{name}", str(getattr(arguments, name)))
    ]
    found = {"product": exchange.command_of_worker([*sizes, "--variants", *PRODUCT])}
    for name, (module, script) in PEERS.items():
        python = getattr(arguments, name)
        if python is None:
            continue
        reason = why_missing(python, module)
        if reason:
            sys.exit(f"--{name} {python} cannot import {module} ({reason}); give an environment that has it.")
        found[name] = [python, os.path.join(os.path.dirname(os.path.abspath(__file__)), script), *sizes]
    return found


def ring_bytes(variant, workers, elements):
    """What a worker sends in a ring all-reduce; nothing in the pass without exchange."""
    if "no_sync" in variant:
        return 0
    return 2 * (workers - 1) * -(-elements // workers) * (2 if "float16" in variant else 4)


def measure(arguments, rate):
    """By variant: `times` (seconds, of all rounds) and `bytes`."""
    started, rows = commands(arguments), {}
    for _ in range(arguments.rounds):
        for library, command in started.items():
            for variant, result in exchange.run(command, arguments.workers, rate).items():
                if library != "product":
                    result = {"times": result, "bytes": ring_bytes(variant, arguments.workers, arguments.elements)}
                row = rows.setdefault(variant, {"times": [], "bytes": result["bytes"]})
                row["times"] += result["times"]
    return rows


def table(rows, arguments, rate) -> str:
    """Medians, and how many times as long each takes as the formats of this product do."""
    medians = {name: statistics.median(row["times"]) for name, row in rows.items()}
    formats = [name for name in FORMATS if name in medians]
    where = "loopback" if rate is None else f"links of {format_rate(rate)}"
    lines = [
        f"{arguments.elements / 1e6:.1f} M values, {arguments.workers} workers on {where}, medians of "
        f"{arguments.rounds * arguments.repeats}",
        f"{'variant':18}{'ms':>8}{'limit':>8}" + "".join(f"{'/ ' + name:>11}" for name in formats),
    ]
    for name, seconds in medians.items():
        sent = rows[name]["bytes"]
        limit = "" if rate is None or not sent else f"{seconds * rate / sent:.2f}"
        ratios = "".join(f"{seconds / medians[one]:11.2f}" for one in formats)
        lines.append(f"{name:18}{seconds * 1e3:8.1f}{limit:>8}{ratios}")
    return "\n".join(lines)


def main():
    arguments = parse_arguments()
    emulated_cluster.end_on_signals()
    try:
        exchange.measure_links(
            arguments,
            lambda rate: measure(arguments, rate),
            lambda rows, rate: print(table(rows, arguments, rate), flush=True),
        )
    except (ValueError, emulated_cluster.CannotEmulate, launcher.LaunchTimeout) as e:
        sys.exit(f"peers: {e}")


if __name__ == "__main__":
    main()
