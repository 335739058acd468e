"""Hosts on one machine: network namespaces joined by rate-limited links, with one worker process in each.

    python benchmarks/emulated_cluster.py --hosts 4 --rate 1Gbit/s train.py --epochs 1
    python benchmarks/emulated_cluster.py --hosts 4 --rate 1Gbit/s tf-epgc bench --calibrate machine.json

Each copy of the command has its own `TF_CONFIG`. Needs root, and `ip` and `tc` of iproute2. Without, it says so and
runs the workers on loopback, whose rate it cannot limit. Namespaces are named after this process, and removed with
everything in them when it ends.
"""

import argparse
import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys

from tf_epgc import launcher
from tf_epgc.performance import parse_rate

_PORT = 20000
_NETWORK = "10.77.0"
_INTERFACE = "eth0"
#: A token bucket lets so many seconds of its rate pass at once, and at least two frames. The kernel cuts larger pieces.
_BURST_SECONDS = 0.001
_LEAST_BURST_BYTES = 4096
#: Deep enough that all others can send to one host at once: what is lost costs the slow links a time-out.
_QUEUE_SECONDS = 0.2
_LEAST_QUEUE_BYTES = 1 << 20
#: TCP's shortest time-out; its usual 200 ms would be a fifth of a step.
_RETRANSMIT_AFTER = "20ms"
#: The same on every machine, allowed in every namespace, and without ideas of its own of what the link's rate is.
_CONGESTION_CONTROL = "reno"
_COMMAND_SECONDS = 20
#: A veth's name is freed only a moment after its namespace is deleted, so each cluster has names of its own.
_numbers = itertools.count()


class CannotEmulate(RuntimeError):
    """This machine or user cannot make network namespaces; the text says why."""


def why_not() -> str:
    """Why hosts cannot be emulated here; an empty string if they can."""
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} not found (Debian's package iproute2 has them)"
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    name = f"epgc{os.getpid()}probe"
    try:
        _run("ip", "netns", "add", name)
        try:
            _run("ip", "-n", name, "link", "set", "lo", "up")
        finally:
            _run("ip", "netns", "delete", name)
    except CannotEmulate as e:
        return str(e)
    return ""


class EmulatedCluster:
    """Network namespaces on a bridge, in a `with` block.

    Each host's link is limited in both directions: what the host sends at its own end, what it receives at the
    switch's.

    Args:
        hosts: How many, at least 1.
        rate: Bytes a second of each link, None for no limit.

    Raises:
        CannotEmulate: When entered without the rights or the tools.
        ValueError: For `hosts` below 1 or above 250.
    """

    def __init__(self, hosts: int, rate: float | None = None):
        if not 1 <= hosts <= 250:
            raise ValueError(f"hosts is {hosts!r}; it must be from 1 to 250.")
        self._rate = rate
        self._prefix = f"epgc{os.getpid()}c{next(_numbers)}"
        self._switch = f"{self._prefix}s"
        self._names = [f"{self._prefix}h{index}" for index in range(hosts)]
        self._made: list[str] = []

    def __enter__(self):
        reason = why_not()
        if reason:
            raise CannotEmulate(reason)
        remove_left_behind()
        try:
            self._add_namespace(self._switch)
            _run("ip", "-n", self._switch, "link", "add", "bridge", "type", "bridge")
            _run("ip", "-n", self._switch, "link", "set", "bridge", "up")
            for index, name in enumerate(self._names):
                self._add_host(index, name)
            self.set_rate(self._rate)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception):
        self.close()

    def close(self) -> None:
        """Removes the namespaces and with them their interfaces. Processes in them should have ended."""
        while self._made:
            with contextlib.suppress(CannotEmulate):
                _run("ip", "netns", "delete", self._made[-1])
            self._made.pop()

    def set_rate(self, rate: float | None) -> None:
        """Limits every link to `rate` bytes a second in each direction, at once; None lifts the limit."""
        self._rate = rate
        for index, name in enumerate(self._names):
            _limit(name, _INTERFACE, rate)
            _limit(self._switch, _port_name(index), rate)

    def environment(self, index: int) -> dict[str, str]:
        """What worker `index` needs to know: its `TF_CONFIG` and its namespace's name."""
        addresses = [f"{_address(i)}:{_PORT}" for i in range(len(self._names))]
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        return {
            "EMULATED_HOST": self._names[index],
            "TF_CONFIG": json.dumps(config),
            "no_grpc_proxy": ",".join(_address(i) for i in range(len(self._names))),
        }

    def launch(self, command, env=None, **options):
        """`launcher.launch` with one worker on each host; `env` may not be a function."""
        inside = ["sh", "-c", 'exec ip netns exec "$EMULATED_HOST" "$@"', "sh", *command]
        return launcher.launch(
            inside,
            len(self._names),
            env=lambda index: {**(env or {}), **self.environment(index)},
            tf_config=False,
            **options,
        )

    def _add_namespace(self, name):
        _run("ip", "netns", "add", name)
        self._made.append(name)
        _run("ip", "-n", name, "link", "set", "lo", "up")

    def _add_host(self, index, name):
        self._add_namespace(name)
        port = _port_name(index)
        pair = ("type", "veth", "peer", "name", port, "netns", self._switch)
        _run("ip", "-n", name, "link", "add", _INTERFACE, *pair)
        _run("ip", "-n", self._switch, "link", "set", port, "master", "bridge")
        _run("ip", "-n", self._switch, "link", "set", port, "up")
        _run("ip", "-n", name, "address", "add", f"{_address(index)}/24", "dev", _INTERFACE)
        _run("ip", "-n", name, "link", "set", _INTERFACE, "up")
        _run("ip", "-n", name, "route", "replace", f"{_NETWORK}.0/24", "dev", _INTERFACE, "rto_min", _RETRANSMIT_AFTER)
        setting = f"net.ipv4.tcp_congestion_control={_CONGESTION_CONTROL}"
        _run("ip", "netns", "exec", name, "sysctl", "-qw", setting)


class Loopback:
    """The stand-in for `EmulatedCluster` where hosts cannot be emulated: workers on loopback, without limits."""

    def __init__(self, hosts: int):
        self._hosts = hosts

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def set_rate(self, rate: float | None) -> None:
        """Does nothing."""

    def launch(self, command, env=None, **options):
        """`launcher.launch`."""
        return launcher.launch(command, self._hosts, env=env, **options)


def cluster(hosts: int, rate: float | None = None):
    """An `EmulatedCluster`, or `Loopback` with a line on stderr that says why."""
    reason = why_not()
    if not reason:
        return EmulatedCluster(hosts, rate)
    print(f"Hosts are not emulated: {reason}. Workers run on loopback, at no set rate.", file=sys.stderr, flush=True)
    return Loopback(hosts)


def remove_left_behind() -> None:
    """Removes the namespaces of runs of this tool that were killed: those named after a process that is no more."""
    for line in _run("ip", "netns", "list").splitlines():
        name = line.split()[0] if line.split() else ""
        match = re.fullmatch(r"epgc(\d+)c\d+(?:s|h\d+)", name)
        if match and not os.path.exists(f"/proc/{match[1]}"):
            with contextlib.suppress(CannotEmulate):
                _run("ip", "netns", "delete", name)


def _address(index):
    return f"{_NETWORK}.{index + 1}"


def _port_name(index):
    return f"port{index}"


def _limit(namespace, interface, rate):
    device = ("tc", "-n", namespace, "qdisc")
    if rate is None:
        with contextlib.suppress(CannotEmulate):
            _run(*device, "delete", "dev", interface, "root")
        return
    burst = max(int(rate * _BURST_SECONDS), _LEAST_BURST_BYTES)
    limit = burst + max(int(rate * _QUEUE_SECONDS), _LEAST_QUEUE_BYTES)
    settings = ("rate", f"{int(rate * 8)}bit", "burst", str(burst), "limit", str(limit))
    _run(*device, "replace", "dev", interface, "root", "tbf", *settings)


def _run(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False)
    except subprocess.TimeoutExpired as e:
        raise CannotEmulate(f"`{' '.join(command)}` took more than {_COMMAND_SECONDS} s") from e
    if done.returncode:
        raise CannotEmulate(f"`{' '.join(command)}` says: {done.stderr.strip() or done.returncode}")
    return done.stdout


def end_on_signals() -> None:
    """Makes SIGTERM and SIGHUP leave `with` blocks as Ctrl-C does, so that namespaces are removed."""

    def leave(number, frame):
        del frame
        sys.stderr.write(f"ended by signal {number}\n")
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup sets it
            signal.signal(number, leave)


def _arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rate", help="of each link in each direction, such as 1Gbit/s; no limit if left out")
    parser.add_argument("--timeout", type=float, help="seconds all of it may take")
    parser.add_argument("command", help="a Python file or another program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser.parse_args()


def main():
    arguments = _arguments()
    end_on_signals()
    python = [sys.executable] if arguments.command.endswith(".py") else []
    command = [*python, arguments.command, *arguments.arguments]
    try:
        rate = parse_rate(arguments.rate) if arguments.rate else None
        with cluster(arguments.hosts, rate) as hosts:
            results = hosts.launch(command, timeout=arguments.timeout, on_line=launcher.print_line)
    except (ValueError, CannotEmulate, launcher.LaunchTimeout) as e:
        print(f"emulated_cluster: {e}", file=sys.stderr)
        return 2
    return 1 if any(result.returncode for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
