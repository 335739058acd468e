"""Joining the cluster: what is looked at before TensorFlow waits, without a limit, for the other workers."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Sequence

#: How long workers wait for each other at start-up, in seconds.
DEFAULT_START_TIMEOUT = 600.0

#: How often the missing workers are named.
_REPORT_SECONDS = 10.0

_CONNECT_SECONDS = 2.0
#: Longer: two workers of which only one knows that they have met would part.
_ANSWER_SECONDS = 10.0
_POLL_SECONDS = 0.2
_GREETING_BYTES = 64

#: What TensorFlow's errors say when another worker has gone, or does not come to a collective. (Device names tell
#: nothing: every error of an op has one.)
_LOST = re.compile(r"collective ops is aborted|heartbeat|socket closed|failed to connect", re.IGNORECASE)

#: What `_greet` returns for an answer that is no worker's of this start: a TensorFlow server greets first, otherwise.
_STRANGER = "not waiting"


class WorkersMissingError(RuntimeError):
    """Some workers of the cluster could not be reached within the time limit."""


def report(line: str) -> None:
    """Writes one line where a user sees it, whatever the level of logging."""
    print(f"tf_epgc: {line}", file=sys.stderr, flush=True)


def split_address(name: str, address: str) -> tuple[str, int]:
    """Host and port of one worker's address.

    Args:
        name: Of the worker, for the message.
        address: "host:port".

    Raises:
        ValueError: If it is not of that form.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(
            f"The cluster gives {name} the address {address!r}; use 'host:port' with a port from 1 to 65535."
        )
    return host.strip("[]"), int(port)


def wait_for_workers(addresses: Sequence[tuple[str, str]], own: int, timeout: float) -> None:
    """Waits until every worker of the cluster has been greeted, naming the missing ones now and then.

    Until it returns, the worker listens on its own port itself. Of two workers that greet each other both know it, so
    that none leaves before all have seen it, and what answers otherwise is no worker of this start.

    Args:
        addresses: Name and "host:port" of every worker.
        own: Which one this is.
        timeout: Seconds.

    Raises:
        ValueError: If an address is not of the form "host:port".
        WorkersMissingError: If some do not answer in time, one is running already, or this worker's own port is in use.
    """
    split = [split_address(name, address) for name, address in addresses]
    missing = {i: "" for i in range(len(split)) if i != own}
    start = next_report = time.monotonic()
    with _Greeter(addresses, own, split[own][1]) as greeter:
        while missing:
            answers = {i: _greet(split[i], _greeting(i), _greeting(own)) for i in missing if i not in greeter.seen}
            missing = {i: reason for i, reason in answers.items() if reason and i not in greeter.seen}
            if not missing:
                break
            _refuse_strangers([addresses[i] for i, reason in missing.items() if reason == _STRANGER])
            waited = time.monotonic() - start
            listed = ", ".join(f"{addresses[i][0]} at {addresses[i][1]} ({reason})" for i, reason in missing.items())
            if waited > timeout:
                raise WorkersMissingError(
                    f"{addresses[own][0]} waited {waited:.0f} s for {listed}; start every worker of the cluster with "
                    "the same list of addresses, which must be reachable from all of them, or raise start_timeout."
                )
            if time.monotonic() - next_report > _REPORT_SECONDS:
                next_report = time.monotonic()
                report(f"{addresses[own][0]} waits for {listed}: {waited:.0f} of {timeout:.0f} s")
            time.sleep(_POLL_SECONDS)
    _explain_lost_workers()


def _refuse_strangers(strangers: Sequence[tuple[str, str]]) -> None:
    for name, address in strangers:
        raise WorkersMissingError(
            f"{name} at {address} is already running since an earlier start, or another program uses its port; end all "
            "workers and start all of them again."
        )


class _Greeter:
    """Listens on a worker's own port, and answers the workers that greet it.

    Args:
        addresses: Name and "host:port" of every worker.
        own: Which one this is.
        port: Its own port.

    Attributes:
        seen: Numbers of the workers that have greeted it.
    """

    def __init__(self, addresses: Sequence[tuple[str, str]], own: int, port: int):
        self.seen: set[int] = set()
        self._own = own
        self._numbers = {_greeting(i): i for i in range(len(addresses))}
        self._server = _listening_socket(*addresses[own], port, backlog=max(128, 2 * len(addresses)))
        self._thread = threading.Thread(target=self._answer_all, daemon=True)
        self._ends = False

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exception):
        self._ends = True
        self._thread.join()  # a worker that is counted as seen must get its answer
        self._server.close()

    def _answer_all(self):
        self._server.settimeout(_POLL_SECONDS)
        while not self._ends:
            with contextlib.suppress(OSError):  # whoever did not get an answer tries again
                connection, _ = self._server.accept()
                with connection:
                    connection.settimeout(_CONNECT_SECONDS)
                    number = self._numbers.get(_read_line(connection))
                    if number is not None:
                        self.seen.add(number)
                        connection.sendall(_greeting(self._own))


def _greeting(number: int) -> bytes:
    return f"tf_epgc worker {number}\n".encode()


def _read_line(connection) -> bytes:
    """What comes until the end of a line, or of the connection; a reset ends it too, if something came before."""
    line = b""
    while not line.endswith(b"\n") and len(line) < _GREETING_BYTES:
        try:
            part = connection.recv(_GREETING_BYTES)
        except ConnectionError:
            if not line:
                raise
            break
        if not part:
            break
        line += part
    return line


def _listening_socket(name: str, address: str, port: int, backlog: int) -> socket.socket:
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("0.0.0.0", port))
        server.listen(backlog)
    except OSError as e:
        server.close()
        raise WorkersMissingError(
            f"{name} cannot listen at its own address {address} ({(e.strerror or str(e)).lower()}); end what uses "
            "the port, or give this worker another one in every worker's list of addresses."
        ) from e
    return server


def _greet(address: tuple[str, int], expected: bytes, own: bytes) -> str:
    """Why the worker at an address has not answered a greeting; an empty string if it has."""
    try:
        with socket.create_connection(address, timeout=_CONNECT_SECONDS) as connection:
            connection.settimeout(_ANSWER_SECONDS)
            with contextlib.suppress(ConnectionError):  # what speaks first and closes at once is heard all the same
                connection.sendall(own)
            answer = _read_line(connection)
    except socket.gaierror:
        return "its name cannot be resolved"
    except TimeoutError:
        return "timed out"
    except OSError as e:
        return (e.strerror or str(e) or type(e).__name__).lower()
    if not answer:
        return "connection closed"
    return "" if answer == expected else _STRANGER


def _explain_lost_workers() -> None:
    """Lets this process say what to do, when it ends with TensorFlow's error because another worker has gone."""
    before = sys.excepthook

    def explain(kind, error, traceback):
        before(kind, error, traceback)
        if kind.__module__.startswith("tensorflow.") and _LOST.search(str(error)):
            report(
                "another worker has gone, is stuck or does something else: end all workers and start all of them again."
            )

    sys.excepthook = explain


class ClusterWatch:
    """Notices, once, that `TF_CONFIG` is no longer what the strategy was made with.

    Args:
        workers: How many workers the strategy has.
    """

    def __init__(self, workers: int):
        self._workers = workers
        self._config = os.environ.get("TF_CONFIG")

    def check(self) -> None:
        config = os.environ.get("TF_CONFIG")
        if config == self._config:
            return
        self._config = config
        report(
            f"warning: TF_CONFIG has changed since the strategy was created, which has {self._workers} worker(s) and "
            "goes on with them; set TF_CONFIG before creating the strategy."
        )
