"""Hosts on one machine: network namespaces joined by rate-limited links, with one worker process in each.

    python benchmarks/emulated_cluster.py --hosts 4 --rate 1Gbit/s train.py --epochs 1
    python benchmarks/emulated_cluster.py --hosts 4 --rate 1Gbit/s tf-epgc bench --calibrate machine.json

Each copy of the command has its own `TF_CONFIG`. Needs root, and `ip` and `tc` of iproute2. Without, it says so and
runs the workers on loopback, whose rate it cannot limit. Namespaces have no names: each lives as long as a process that
holds it, which the kernel ends with this one, however it ends.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time

from tf_epgc import launcher
from tf_epgc.performance import parse_rate

_TOOLS = ("ip", "tc", "sysctl", "setpriv", "unshare", "nsenter")
_PORT = 20000
_NETWORK = "10.77.0"
_INTERFACE = "eth0"
#: A token bucket lets so many seconds of its rate pass at once, and at least two frames.
_BURST_SECONDS = 0.001
_LEAST_BURST_BYTES = 4096
#: The largest piece that TCP makes of what it sends, for the network to cut up.
_MOST_GSO_BYTES = 65536
#: What shares a link in turns takes so many bytes a turn.
_QUANTUM_BYTES = 20_000
#: Deep enough that all others can send to one host at once: what is lost costs the slow links a time-out.
_QUEUE_SECONDS = 0.2
_LEAST_QUEUE_BYTES = 1 << 20
#: TCP's shortest time-out; its usual 200 ms would be a fifth of a step.
_RETRANSMIT_AFTER = "20ms"
#: The same on every machine, allowed in every namespace, and without ideas of its own of what the link's rate is.
_CONGESTION_CONTROL = "reno"
_COMMAND_SECONDS = 20
_START_SECONDS = 10
_POLL_SECONDS = 0.01


class CannotEmulate(RuntimeError):
    """This machine or user cannot make network namespaces; the text says why."""


def why_not() -> str:
    """Why hosts cannot be emulated here; an empty string if they can."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} not found (Debian's packages iproute2, procps and util-linux have them)"
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    try:
        _Namespace().close()
    except CannotEmulate as e:
        return str(e)
    return ""


class _Namespace:
    """A network namespace, held by a process that sleeps."""

    def __init__(self):
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sleep", "infinity"]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        self._holder = subprocess.Popen(command, start_new_session=True, text=True, **quiet)
        try:
            self._wait()
            self.run("ip", "link", "set", "lo", "up")
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Of the process that holds it."""
        return self._holder.pid

    def run(self, *command: str) -> None:
        """Runs a command inside.

        Raises:
            CannotEmulate: If it fails.
        """
        try:
            inside = ["nsenter", "--target", str(self.pid), "--net", *command]
            done = subprocess.run(inside, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False)
        except subprocess.TimeoutExpired as e:
            raise CannotEmulate(f"`{' '.join(command)}` took more than {_COMMAND_SECONDS} s") from e
        if done.returncode:
            raise CannotEmulate(f"`{' '.join(command)}` says: {done.stderr.strip() or done.returncode}")

    def close(self) -> None:
        """Ends the holder, and with it the namespace and its interfaces once no process is left inside."""
        self._holder.kill()
        self._holder.wait()
        self._holder.stderr.close()

    def _wait(self):
        own, end = os.readlink("/proc/self/ns/net"), time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{self.pid}/ns/net") != own:
                    return
            if self._holder.poll() is not None:
                raise CannotEmulate(f"`unshare --net` says: {self._holder.stderr.read().strip()}")
            if time.monotonic() > end:
                raise CannotEmulate(f"`unshare --net` took more than {_START_SECONDS} s")
            time.sleep(_POLL_SECONDS)


class EmulatedCluster:
    """Network namespaces on a bridge, in a `with` block.

    Each host's link is limited in both directions: what the host sends at its own end, where connections to different
    hosts share it equally, as under Linux's usual queues; what it receives at the switch's, first come, first served.

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
        self._count = hosts
        self._rate = rate
        self._switch: _Namespace | None = None
        self._hosts: list[_Namespace] = []

    def __enter__(self):
        reason = why_not()
        if reason:
            raise CannotEmulate(reason)
        try:
            self._switch = _Namespace()
            self._switch.run("ip", "link", "add", "bridge", "type", "bridge")
            self._switch.run("ip", "link", "set", "bridge", "up")
            for index in range(self._count):
                self._hosts.append(_Namespace())
                self._connect(index)
            self.set_rate(self._rate)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception):
        self.close()

    def close(self) -> None:
        """Removes the namespaces and with them their interfaces. Processes in them should have ended."""
        for namespace in (*self._hosts, self._switch):
            if namespace is not None:
                namespace.close()
        self._hosts, self._switch = [], None

    def set_rate(self, rate: float | None) -> None:
        """Limits every link to `rate` bytes a second in each direction, at once; None lifts the limit."""
        self._rate = rate
        for index, host in enumerate(self._hosts):
            others = [_address(i) for i in range(self._count) if i != index]
            _remove_limit(host, _INTERFACE)
            _remove_limit(self._switch, _port_name(index))
            if rate is not None:
                _limit_host(host, rate, others)
                _limit_port(self._switch, _port_name(index), rate)

    def environment(self, index: int) -> dict[str, str]:
        """What worker `index` needs to know: its `TF_CONFIG`, and the process that holds its namespace."""
        addresses = [f"{_address(i)}:{_PORT}" for i in range(self._count)]
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        return {
            "EMULATED_HOST": str(self._hosts[index].pid),
            "TF_CONFIG": json.dumps(config),
            "no_grpc_proxy": ",".join(_address(i) for i in range(self._count)),
        }

    def launch(self, command, env=None, **options):
        """`launcher.launch` with one worker on each host; `env` may not be a function."""
        inside = ["sh", "-c", 'exec nsenter --target "$EMULATED_HOST" --net "$@"', "sh", *command]
        return launcher.launch(
            inside,
            self._count,
            env=lambda index: {**(env or {}), **self.environment(index)},
            tf_config=False,
            **options,
        )

    def _connect(self, index):
        host, port = self._hosts[index], _port_name(index)
        pair = ("type", "veth", "peer", "name", port, "netns", str(self._switch.pid))
        host.run("ip", "link", "add", _INTERFACE, *pair)
        self._switch.run("ip", "link", "set", port, "master", "bridge")
        self._switch.run("ip", "link", "set", port, "up")
        host.run("ip", "address", "add", f"{_address(index)}/24", "dev", _INTERFACE)
        host.run("ip", "link", "set", _INTERFACE, "up")
        host.run("ip", "route", "replace", f"{_NETWORK}.0/24", "dev", _INTERFACE, "rto_min", _RETRANSMIT_AFTER)
        host.run("sysctl", "-qw", f"net.ipv4.tcp_congestion_control={_CONGESTION_CONTROL}")


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


def _address(index):
    return f"{_NETWORK}.{index + 1}"


def _port_name(index):
    return f"port{index}"


def _remove_limit(namespace: _Namespace, interface: str) -> None:
    with contextlib.suppress(CannotEmulate):  # there is none yet
        namespace.run("tc", "qdisc", "delete", "dev", interface, "root")


def _burst_bytes(rate: float) -> int:
    return max(int(rate * _BURST_SECONDS), _LEAST_BURST_BYTES)


def _limit_port(switch: _Namespace, port: str, rate: float) -> None:
    """Limits what a host receives."""
    burst = _burst_bytes(rate)
    limit = burst + max(int(rate * _QUEUE_SECONDS), _LEAST_QUEUE_BYTES)
    settings = ("rate", f"{int(rate * 8)}bit", "burst", str(burst), "limit", str(limit))
    switch.run("tc", "qdisc", "add", "dev", port, "root", "tbf", *settings)


def _limit_host(host: _Namespace, rate: float, others: list[str]) -> None:
    """Limits what a host sends; a class for each other host, and one for the rest, borrow from the whole rate."""
    burst, bits = str(_burst_bytes(rate)), int(rate * 8)
    share = max(bits // (len(others) + 1), 8)
    add = ("dev", _INTERFACE, "parent")
    limits = ("ceil", f"{bits}bit", "burst", burst, "cburst", burst, "quantum", str(_QUANTUM_BYTES))
    # Pieces that do not fit a burst, headers of their frames included, are cut, which costs more than all else here.
    largest = min(_burst_bytes(rate) // 2, _MOST_GSO_BYTES)
    host.run("ip", "link", "set", "dev", _INTERFACE, "gso_max_size", str(largest))
    host.run("tc", "qdisc", "add", "dev", _INTERFACE, "root", "handle", "1:", "htb", "default", "1")
    host.run("tc", "class", "add", *add, "1:", "classid", "1:ffff", "htb", "rate", f"{bits}bit", *limits)
    for number, address in enumerate([None, *others], 1):
        name = f"1:{number:x}"
        host.run("tc", "class", "add", *add, "1:ffff", "classid", name, "htb", "rate", f"{share}bit", *limits)
        if address:
            match = ("u32", "match", "ip", "dst", f"{address}/32", "flowid", name)
            host.run("tc", "filter", "add", *add, "1:", "protocol", "ip", *match)


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
