"""The command line `tf-epgc`: doctor, launch, bench, estimate."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from tf_epgc.formats import FORMATS
from tf_epgc.version import __version__

#: A gain below it is not worth another format.
_WORTH = 1.05
#: Formats this close to the fastest are as good, and the most precise one is advised.
_CLOSE = 1.01


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one sub-command.

    Args:
        arguments: Those after the program's name; `sys.argv`'s when None.

    Returns:
        The exit code: 0; 1 if a check or a worker has failed; 2 for wrong arguments or files, with a sentence on
        stderr.
    """
    parsed = _parser().parse_args(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        return parsed.run(parsed)
    except (ValueError, OSError, ImportError, RuntimeError) as e:
        print(f"tf-epgc {parsed.command}: {e}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tf-epgc", description="Low-bit gradient exchange: tools.")
    parser.add_argument("--version", action="version", version=f"tf-epgc {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    for add in (_add_doctor, _add_launch, _add_bench, _add_estimate):
        add(commands)
    return parser


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


# doctor


def _add_doctor(commands) -> None:
    command = commands.add_parser("doctor", help="check the installation and TF_CONFIG")
    command.add_argument("--timeout", type=float, default=2.0, help="seconds to wait for each worker's port")
    command.set_defaults(run=_doctor)


def _doctor(arguments) -> int:
    from tf_epgc import doctor

    good = True
    for check in doctor.checks(os.environ.get("TF_CONFIG"), arguments.timeout):
        good = good and check.good is not False
        print(f"{ {True: 'ok', False: 'FAILED', None: 'note'}[check.good]:7}{check.what}: {check.text}")
    return 0 if good else 1


# launch


def _add_launch(commands) -> None:
    command = commands.add_parser("launch", help="run a script as several workers on this machine")
    command.add_argument("-n", "--workers", type=_positive, default=2)
    command.add_argument("--timeout", type=float, help="seconds all of it may take")
    command.add_argument("script", help="a Python file")
    command.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own arguments")
    command.set_defaults(run=_launch)


def _launch(arguments) -> int:
    from tf_epgc import launcher

    if not os.path.isfile(arguments.script):
        raise ValueError(f"there is no file {arguments.script!r}; give the Python script to run.")
    command = [sys.executable, arguments.script, *arguments.arguments]
    results = launcher.launch(command, arguments.workers, timeout=arguments.timeout, on_line=launcher.print_line)
    return _worst(results)


def _worst(results) -> int:
    failed = [result for result in results if result.returncode and not result.stopped]
    for result in failed:
        print(f"tf-epgc: worker {result.index} ended with exit code {result.returncode}", file=sys.stderr)
    return 1 if any(result.returncode for result in results) else 0


# bench


def _add_bench(commands) -> None:
    command = commands.add_parser(
        "bench",
        help="measure link, collectives and codec",
        description="With TF_CONFIG set, run it on every worker; without, it starts workers on this machine.",
    )
    command.add_argument("--calibrate", metavar="FILE", help="JSON file to write, for `estimate --machine`")
    command.add_argument("-n", "--workers", type=_positive, default=2, help="without TF_CONFIG: how many")
    command.add_argument("--elements", type=_positive, default=1 << 22, help="values of the pack to measure with")
    command.add_argument("--timeout", type=float, default=300.0, help="without TF_CONFIG: seconds it may take")
    command.set_defaults(run=_bench)


def _bench(arguments) -> int:
    if arguments.calibrate and not os.path.isdir(os.path.dirname(os.path.abspath(arguments.calibrate))):
        raise ValueError(f"the folder of {arguments.calibrate!r} does not exist; make it first.")
    if os.environ.get("TF_CONFIG"):
        return _bench_worker(arguments)
    if arguments.workers < 2:
        raise ValueError("a link can only be measured between workers; use -n 2 or more, or set TF_CONFIG.")
    from tf_epgc import launcher

    command = [sys.executable, "-m", "tf_epgc.cli", "bench", "--elements", str(arguments.elements)]
    if arguments.calibrate:
        command += ["--calibrate", os.path.abspath(arguments.calibrate)]
    results = launcher.launch(command, arguments.workers, timeout=arguments.timeout)
    for result in results:
        if result.returncode and not result.stopped:
            print(result.output, file=sys.stderr)
    print("\n".join(line for line in results[0].output.splitlines() if line.startswith("  ")))
    return _worst(results)


def _bench_worker(arguments) -> int:
    import tf_epgc
    from tf_epgc.performance import calibration, format_rate

    strategy = tf_epgc.EPGCMirroredStrategy(bits=32)
    machine = calibration.measure(strategy.num_replicas_in_sync, arguments.elements)
    if strategy.cluster_resolver.task_id == 0:
        if arguments.calibrate:
            machine.save(arguments.calibrate)
        print(f"  link         {format_rate(machine.bandwidth)}")
        print(f"  message      {machine.latency * 1e6:.0f} us")
        print(f"  collective   {machine.op_seconds * 1e6:.0f} us (ring {machine.ring_seconds * 1e6:.0f} us)")
        print(f"  {'bits':>4}{'pack':>9}{'reduce':>9}{'unpack':>9}   (G values/s)")
        for bits, rates in machine.codecs.items():
            print(f"  {bits:4}{rates.pack / 1e9:9.2f}{rates.reduce / 1e9:9.2f}{rates.unpack / 1e9:9.2f}", flush=True)
    return 0


# estimate


def _add_estimate(commands) -> None:
    command = commands.add_parser("estimate", help="predict step time and efficiency by format")
    network = command.add_mutually_exclusive_group(required=True)
    network.add_argument("--model", help="ResNet50, VGG16, SSD300 or any model of keras.applications")
    network.add_argument("--file", help="a CSV or JSON file of gradients (see tf_epgc.performance.load_network)")
    command.add_argument("--machine", help="file from `tf-epgc bench --calibrate`")
    command.add_argument("--link", help="rate of a worker's link, such as 10Gbit/s; replaces the machine's")
    command.add_argument("--latency", default="50us", help="without --machine: time a message adds")
    command.add_argument("--workers", type=_positive, default=8)
    command.add_argument("--compute", required=True, help="forward and backward pass on one worker, such as 180ms")
    command.add_argument("--bits", type=int, nargs="+", choices=sorted(FORMATS), default=sorted(FORMATS, reverse=True))
    command.add_argument("--json", action="store_true", help="print JSON instead of a table")
    command.set_defaults(run=_estimate)


def _estimate(arguments) -> int:
    from tf_epgc import performance

    machine = _machine(arguments)
    source = arguments.file or arguments.model
    network = performance.load_network(arguments.file) if arguments.file else performance.network(arguments.model)
    compute = performance.parse_seconds(arguments.compute)
    rows = []
    for bits in sorted({*arguments.bits, 32}, reverse=True):
        exchange = performance.Exchange(bits)
        prediction = performance.predict(network, machine, arguments.workers, compute, exchange)
        break_even = None
        if bits != 32:
            break_even = performance.break_even_rate(network, machine, arguments.workers, compute, exchange)
        rows.append(_row(bits, prediction, rows[0]["step_seconds"] if rows else None, break_even))
    if arguments.json:
        print(json.dumps({"network": source, "workers": arguments.workers, "rows": rows, "advice": _advice(rows)}))
        return 0
    rate = performance.format_rate(machine.bandwidth)
    print(f"{source}: {network.elements / 1e6:.1f} M values, {arguments.workers} workers, {rate}, {arguments.compute}")
    if not machine.codecs:
        print("Coding is taken as free; `tf-epgc bench --calibrate machine.json` measures it.")
    _print_rows(rows)
    print(_advice(rows))
    return 0


def _machine(arguments):
    from tf_epgc import performance

    link = performance.parse_rate(arguments.link) if arguments.link else None
    if arguments.machine:
        machine = performance.load_machine(arguments.machine)
        return machine if link is None else machine.with_bandwidth(link)
    if link is None:
        raise ValueError("neither --machine nor --link is given; write --link 10Gbit/s or calibrate a machine file.")
    return performance.ideal_machine(link, performance.parse_seconds(arguments.latency))


def _row(bits, prediction, base, break_even) -> dict:
    return {
        "bits": bits,
        "name": FORMATS[bits].name,
        "step_seconds": prediction.step_seconds,
        "efficiency": prediction.efficiency,
        "speed_up": (base or prediction.step_seconds) / prediction.step_seconds,
        "bytes_sent": prediction.bytes_sent,
        "break_even_bytes_per_second": None if break_even is None or break_even == float("inf") else break_even,
        "shares": prediction.shares,
    }


def _print_rows(rows) -> None:
    from tf_epgc.performance import format_rate

    print(f"{'format':10}{'step ms':>10}{'efficiency':>12}{'speed-up':>10}{'MB sent':>10}{'pays up to':>16}")
    for row in rows:
        rate = row["break_even_bytes_per_second"]
        limit = "" if row["bits"] == 32 else "any link" if rate is None else format_rate(rate) if rate else "never"
        print(
            f"{row['name']:10}{row['step_seconds'] * 1e3:10.1f}{row['efficiency']:12.1%}{row['speed_up']:10.2f}"
            f"{row['bytes_sent'] / 1e6:10.1f}{limit:>16}"
        )


def _precision(row) -> tuple[int, int]:
    chosen = FORMATS[row["bits"]]
    return chosen.mantissa_bits, chosen.exponent_bits


def _advice(rows) -> str:
    """One sentence: the most precise format among the fastest, or none."""
    best = max(row["speed_up"] for row in rows)
    fastest = max(rows, key=lambda row: row["speed_up"])
    if best < _WORTH:
        gain = (best - 1) * 100
        if fastest["bits"] == 32 or gain < 0.5:
            return "No format gains anything here: stay with float32."
        return f"{fastest['bits']} bits gain {gain:.0f} % here: stay with float32."
    chosen = max((row for row in rows if row["speed_up"] * _CLOSE >= best), key=_precision)
    return f"{chosen['bits']} bits make the step {chosen['speed_up']:.2f} times as fast: use bits={chosen['bits']}."


if __name__ == "__main__":
    sys.exit(main())
