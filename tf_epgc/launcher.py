"""Starts the workers of a cluster on this machine, and never leaves one behind.

`launch` runs one command several times, each copy with a `TF_CONFIG` of its own on free loopback ports, and waits
for all of them. It does not import TensorFlow, so it starts fast and works for any program that reads `TF_CONFIG`.

    results = launch([sys.executable, "train.py"], workers=2, on_line=print_line)
    if any(result.returncode for result in results): ...
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence

#: Environment variables: a mapping, a function from the worker's number to one, or none.
Environment = Mapping[str, str] | Callable[[int], Mapping[str, str]] | None

HOST = "127.0.0.1"
DEFAULT_GRACE = 20.0

_KEPT_LINES = 10000
_LAST_LINES = 5
_POLL_SECONDS = 0.05
_DRAIN_SECONDS = 5.0
_PORT_ATTEMPTS = 3
_FIRST_PORT = 10000
_LAST_PORT = 65535
_IN_USE_MARKS = ("address already in use", "could not start grpc server", "failed to add port to server")

# Run by a small Python before the worker itself: the kernel then kills the worker when this process dies, however
# it dies. (A preexec_fn would do it too, but may deadlock when the calling process has threads.)
_DEATH_GUARD = """
import os, signal, sys
try:
    import ctypes
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
except (AttributeError, ImportError, OSError):
    pass
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    print(f"cannot start {sys.argv[2]!r}: {error}", file=sys.stderr)
    os._exit(127)
"""


@dataclasses.dataclass(frozen=True)
class WorkerResult:
    """What became of one worker.

    Attributes:
        index: The worker's number, from 0.
        returncode: Its exit code; minus the signal's number when a signal ended it.
        output: What it wrote to stdout and stderr, in order (its last 10000 lines).
        port: The loopback port that its `TF_CONFIG` named; None when it got no `TF_CONFIG`.
        pid: The number its process, and its process group, had.
        stopped: True when the launcher ended it because another worker had failed.
    """

    index: int
    returncode: int
    output: str
    port: int | None
    pid: int
    stopped: bool = False


class LaunchTimeout(RuntimeError):
    """The workers were not done in time and have been ended.

    Attributes:
        running: Numbers of the workers that were still running.
        results: One `WorkerResult` a worker, with the output until then.
    """

    def __init__(self, timeout: float, running: Sequence[int], results: Sequence[WorkerResult]):
        self.running = tuple(running)
        self.results = list(results)
        super().__init__(_timeout_message(timeout, self.running, self.results))


def launch(
    command: Sequence[str],
    workers: int = 2,
    *,
    env: Environment = None,
    timeout: float | None = None,
    on_line: Callable[[int, str], None] | None = None,
    grace: float = DEFAULT_GRACE,
    tf_config: bool = True,
) -> list[WorkerResult]:
    """Runs `command` once a worker and waits until all of them have ended.

    Every worker is a process group of its own. When one fails, the others get `grace` seconds to notice and are then
    ended. None outlives this call, whether it returns or raises, nor this process should that be killed (in that case
    alone, processes that a worker has started itself may live on). When a port turns out to be taken, the whole cluster
    is started again on other ports.

    Args:
        command: Program and arguments, a sequence of strings.
        workers: How many copies to run, at least 1.
        env: Environment variables to add: a mapping, or a function from the worker's number to one.
        timeout: Seconds all workers together may take; None for no limit.
        on_line: Called as `on_line(index, line)` for every line a worker writes, in the calling thread; `print_line`
            shows them. None only keeps them.
        grace: Seconds the other workers may go on after one has failed.
        tf_config: Whether to set `TF_CONFIG`. Without it one worker trains alone.

    Returns:
        A list of `WorkerResult`, in the workers' order. A worker that failed is told by its `returncode` only.

    Raises:
        LaunchTimeout: The workers took longer than `timeout`.
        ValueError: A wrong argument.

    Example:
        >>> import sys
        >>> [result] = launch([sys.executable, "-c", "print('hello')"], workers=1)
        >>> result.returncode, result.output
        (0, 'hello\\n')
    """
    command = _checked_command(command)
    _check_numbers(workers, timeout, grace)
    deadline = None if timeout is None else time.monotonic() + timeout
    for attempt in range(_PORT_ATTEMPTS):
        with _reserved_ports(workers) as ports:
            environments = [_worker_environment(index, ports, env, tf_config) for index in range(workers)]
            group = _Group(command, environments, ports if tf_config else [None] * workers)
            results = group.run(timeout, deadline, on_line, grace)
        if not tf_config or attempt == _PORT_ATTEMPTS - 1 or not _port_was_taken(results):
            break
    return results


def print_line(index: int, line: str) -> None:
    """Prints a worker's line with the worker's number in front; for `launch(on_line=print_line)`.

    Args:
        index: The worker's number.
        line: The line, without its line end.
    """
    print(f"[worker {index}] {line}", flush=True)


def free_ports(count: int) -> list[int]:
    """Finds loopback ports that nobody uses at the moment.

    Ports outside the range the system gives to outgoing connections are preferred, so that no client takes one
    between this call and the moment the worker listens on it.

    Args:
        count: How many ports.

    Returns:
        A list of `count` different port numbers.

    Raises:
        RuntimeError: There are not so many free ports.
    """
    with _reserved_ports(count) as ports:
        return list(ports)


def tf_config(ports: Sequence[int], index: int) -> str:
    """The text of `TF_CONFIG` for one worker of a cluster on this machine.

    Args:
        ports: The workers' ports, in order.
        index: The worker's number.

    Returns:
        A JSON string.
    """
    addresses = [f"{HOST}:{port}" for port in ports]
    return json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}})


class _Worker:
    """One process, its output so far, and the thread that reads it."""

    def __init__(self, index, command, environment, port, lines):
        self.index = index
        self.port = port
        self.kept = collections.deque(maxlen=_KEPT_LINES)
        self.stopped = False
        guarded = [sys.executable, "-I", "-S", "-c", _DEATH_GUARD, str(os.getpid()), *command]
        self.process = subprocess.Popen(
            guarded,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, args=(lines,), daemon=True)
        self._reader.start()

    def _read(self, lines):
        with self.process.stdout as stream:
            for line in stream:
                lines.put((self.index, line.rstrip("\n")))

    def poll(self):
        """The exit code, or None while the process runs. Its process group ends with it."""
        if self.process.returncode is None and _has_exited(self.process.pid):
            self.end()
        return self.process.returncode

    def end(self):
        """Kills the whole process group. TensorFlow catches SIGTERM and trains on, so it is SIGKILL."""
        if self.process.returncode is None:
            # Not reaped yet, so the number still belongs to our process and to nobody else.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def drain(self):
        """Waits for the rest of the output; not for ever, a process that left the group may keep the pipe open."""
        self._reader.join(_DRAIN_SECONDS)

    def result(self):
        output = "".join(line + "\n" for line in self.kept)
        return WorkerResult(self.index, self.process.returncode, output, self.port, self.process.pid, self.stopped)


class _Group:
    """All workers of one start."""

    def __init__(self, command, environments, ports):
        self._command = command
        self._environments = environments
        self._ports = ports
        self._lines = queue.SimpleQueue()
        self._workers = []

    def run(self, timeout, deadline, on_line, grace):
        try:
            self._start()
            running = self._wait(deadline, on_line, grace)
        finally:
            for worker in self._workers:
                worker.end()
        self._drain(on_line)
        results = [worker.result() for worker in self._workers]
        if running:
            raise LaunchTimeout(timeout, running, results)
        return results

    def _start(self):
        for index, (environment, port) in enumerate(zip(self._environments, self._ports, strict=True)):
            self._workers.append(_Worker(index, self._command, environment, port, self._lines))

    def _wait(self, deadline, on_line, grace):
        """Returns the numbers of the workers that were still running at the deadline."""
        give_up = None
        while True:
            self._pass_on_lines(on_line, _POLL_SECONDS)
            codes = [worker.poll() for worker in self._workers]
            running = [index for index, code in enumerate(codes) if code is None]
            if not running:
                return []
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                return running
            if any(codes) and give_up is None:
                give_up = now + grace
            if give_up is not None and now >= give_up:
                self._stop(running)

    def _stop(self, running):
        for index in running:
            self._workers[index].stopped = True
            self._workers[index].end()

    def _pass_on_lines(self, on_line, wait):
        """Hands on what has been written, waiting up to `wait` seconds for a first line."""
        with contextlib.suppress(queue.Empty):
            index, line = self._lines.get(timeout=wait) if wait else self._lines.get_nowait()
            self._take(index, line, on_line)
            for _ in range(_KEPT_LINES):
                index, line = self._lines.get_nowait()
                self._take(index, line, on_line)

    def _take(self, index, line, on_line):
        self._workers[index].kept.append(line)
        if on_line is not None:
            on_line(index, line)

    def _drain(self, on_line):
        for worker in self._workers:
            worker.drain()
        while not self._lines.empty():
            self._pass_on_lines(on_line, 0)


def _has_exited(pid):
    """Whether our child has ended, without reaping it: its number stays ours until its group is killed."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _worker_environment(index, ports, extra, with_tf_config):
    environment = dict(os.environ)
    environment.pop("TF_CONFIG", None)
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    environment.setdefault("PYTHONUNBUFFERED", "1")
    # gRPC obeys http_proxy even for loopback addresses.
    environment.setdefault("no_grpc_proxy", f"{HOST},localhost")
    environment.update((extra(index) if callable(extra) else extra) or {})
    if with_tf_config:
        environment["TF_CONFIG"] = tf_config(ports, index)
    return environment


@contextlib.contextmanager
def _reserved_ports(count):
    """Free ports, kept from other launchers (not from other programs) until the block ends."""
    locks = []
    ports = []
    try:
        for port in _port_candidates():
            if len(ports) == count:
                break
            if _is_free(port) and _lock_port(port, locks):
                ports.append(port)
        if len(ports) < count:
            raise RuntimeError(
                f"found {len(ports)} free loopback ports, {count} are needed. "
                "End programs that listen on ports, or use fewer workers."
            )
        yield ports
    finally:
        for lock in locks:
            lock.close()


def _port_candidates():
    """All usable ports in random order, those that no outgoing connection gets by chance first."""
    low, high = _outgoing_range()
    safe = [port for port in range(_FIRST_PORT, _LAST_PORT + 1) if not low <= port <= high]
    rest = list(range(max(low, _FIRST_PORT), high + 1))
    random.SystemRandom().shuffle(safe)
    random.SystemRandom().shuffle(rest)
    return safe + rest


def _outgoing_range():
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
            low, high = map(int, file.read().split())
    except (OSError, ValueError):
        low, high = 32768, 60999
    return low, min(high, _LAST_PORT)


def _is_free(port):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _lock_port(port, locks):
    """Takes the port for this launcher. The name lives in the kernel and is gone with this process."""
    if not sys.platform.startswith("linux"):
        return True
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        lock.bind(f"\0tf_epgc-launcher-port-{port}")
    except OSError:
        lock.close()
        return False
    locks.append(lock)
    return True


def _port_was_taken(results):
    return any(result.returncode and any(mark in result.output.lower() for mark in _IN_USE_MARKS) for result in results)


def _checked_command(command):
    if isinstance(command, (str, bytes)) or not command:
        raise ValueError(
            f"command is {command!r}; it must be a sequence of strings, the program first. "
            "Write [sys.executable, 'train.py'] instead of one string."
        )
    return [os.fspath(part) for part in command]


def _check_numbers(workers, timeout, grace):
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
        raise ValueError(f"workers is {workers!r}; it must be a whole number of at least 1.")
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout is {timeout!r}; it must be a positive number of seconds, or None for no limit.")
    if not grace >= 0:
        raise ValueError(f"grace is {grace!r}; it must be a number of seconds, 0 or more.")


def _timeout_message(timeout, running, results):
    names = ", ".join(f"worker {index}" for index in running)
    parts = [
        f"not done after {timeout:g} s: {names} of {len(results)} still running; all have been ended. "
        "Raise timeout if the work needs longer."
    ]
    for index in running:
        lines = results[index].output.splitlines()[-_LAST_LINES:] or ["(nothing)"]
        parts.append(f"Last lines of worker {index}:")
        parts.extend(f"  {line}" for line in lines)
    return "\n".join(parts)
