"""Joining the cluster: what is looked at before TensorFlow waits, without a limit, for the other workers."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Sequence

#: How long workers wait for each other at start-up, in seconds.
DEFAULT_START_TIMEOUT = 600.0

#: How often the missing workers are named.
_REPORT_SECONDS = 10.0

_CONNECT_SECONDS = 2.0
_POLL_SECONDS = 0.2


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
    """Waits until every worker of the cluster can be connected to, naming the missing ones now and then.

    Until it returns, the worker listens on its own port itself, so that the others see it before TensorFlow does.

    Args:
        addresses: Name and "host:port" of every worker.
        own: Which one this is.
        timeout: Seconds.

    Raises:
        ValueError: If an address is not of the form "host:port".
        WorkersMissingError: If some cannot be connected to in time, or this worker's own port is in use.
    """
    split = [split_address(name, address) for name, address in addresses]
    missing = {i: "" for i in range(len(split)) if i != own}
    start = next_report = time.monotonic()
    with _listening(addresses[own], split[own][1], len(split)):
        while missing:
            missing = {i: reason for i in missing if (reason := _try_to_connect(split[i]))}
            waited = time.monotonic() - start
            if not missing:
                break
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


@contextlib.contextmanager
def _listening(own: tuple[str, str], port: int, connections: int):
    name, address = own
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("0.0.0.0", port))
        except OSError as e:
            raise WorkersMissingError(
                f"{name} cannot listen at its own address {address} ({(e.strerror or str(e)).lower()}); end what uses "
                "the port, or give this worker another one in every worker's list of addresses."
            ) from e
        server.listen(max(128, 2 * connections))
        yield


def _try_to_connect(address: tuple[str, int]) -> str:
    """Why an address cannot be connected to; an empty string if it can."""
    try:
        with socket.create_connection(address, timeout=_CONNECT_SECONDS):
            return ""
    except socket.gaierror:
        return "its name cannot be resolved"
    except OSError as e:
        return (e.strerror or str(e) or type(e).__name__).lower()


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
