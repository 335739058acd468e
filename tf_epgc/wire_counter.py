"""Counts the bytes that really crossed between workers, as the kernel saw them.

A figure computed from tensor shapes says what should have been sent. These counters say what was sent: payloads,
framing and everything else that went through the sockets. They read Linux' own books, need no rights and no
TensorFlow, and change nothing.

    counter = WireCounter()                  # inside a worker
    before = counter.bytes_sent()
    train(steps)
    print((counter.bytes_sent() - before) / steps, "bytes a step")

`WireCounter` asks the kernel about each TCP socket of a process, so it tells workers on one machine apart.
`InterfaceCounter` reads what a network interface has moved, headers included; it suits workers that have a machine,
or a network namespace, of their own.

References:
    sock_diag(7): https://man7.org/linux/man-pages/man7/sock_diag.7.html
"""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import socket
import struct
import sys
from collections.abc import Iterable

# linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h, linux/tcp.h
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST_DUMP = 0x301
_NLMSG_ERROR = 2
_NLMSG_DONE = 3
_INET_DIAG_INFO = 2
_TCPF_ALL = 0xFFFFFFFF
_TCP_LISTEN = 10

_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI48x")
_MESSAGE = struct.Struct("=BBBB 2s2s 16s16s I Q IIIII")
_ATTRIBUTE = struct.Struct("=HH")
_BYTES_RECEIVED_AT = 128
_BYTES_SENT_AT = 200
_BYTES_RESENT_AT = 208
_INFO_BYTES = 216

_NLM_F_DUMP_INTR = 0x10
_ANSWER_SECONDS = 5.0
_BUFFER_BYTES = 1 << 20
_DUMP_ATTEMPTS = 3


class WireCounterError(RuntimeError):
    """The kernel does not tell how many bytes were sent."""


@dataclasses.dataclass(frozen=True)
class SocketTraffic:
    """What one TCP socket has moved so far.

    Attributes:
        inode: The number under which processes hold the socket.
        cookie: The kernel's own name of the socket, never used twice.
        local_port: This end's port.
        remote_port: The other end's port.
        bytes_sent: Payload bytes sent, each counted once.
        bytes_received: Payload bytes received.
        bytes_resent: Payload bytes sent again because an answer was late.
    """

    inode: int
    cookie: int
    local_port: int
    remote_port: int
    bytes_sent: int
    bytes_received: int
    bytes_resent: int


def tcp_traffic(ports: Iterable[int] | None = None) -> list[SocketTraffic]:
    """Lists the TCP connections of this network namespace with what each has moved.

    Args:
        ports: Only connections with one of these ports at either end; None for all.

    Returns:
        A list of `SocketTraffic`. On a loopback connection each of the two ends is one entry.

    Raises:
        WireCounterError: The kernel does not answer such questions, or is older than Linux 4.19.
    """
    wanted = None if ports is None else frozenset(ports)
    found = []
    for family in (socket.AF_INET, socket.AF_INET6):
        found.extend(_dump(family))
    return [entry for entry in found if wanted is None or wanted & {entry.local_port, entry.remote_port}]


class WireCounter:
    """Counts what the TCP sockets of one process have moved.

    Sockets that were closed since the last look keep the bytes they had then; what they moved between that look and
    their end is lost, so look before and after a steady part, in which connections stay open.

    Args:
        pid: The process; None for this one. Another process must belong to the same user.
        ports: Only connections with one of these ports at either end, e.g. the workers' ports; None for all.

    Raises:
        WireCounterError: The kernel does not give these figures.

    Example:
        >>> counter = WireCounter()
        >>> before = counter.bytes_sent()
        >>> counter.bytes_sent() >= before
        True
    """

    source = "TCP sockets of the process"

    def __init__(self, pid: int | None = None, ports: Iterable[int] | None = None):
        self._pid = pid
        self._ports = None if ports is None else frozenset(ports)
        self._seen: dict[int, SocketTraffic] = {}
        self._look()

    def bytes_sent(self) -> int:
        """Payload bytes the process has sent, each counted once, from the start of each connection on.

        Returns:
            A number of bytes that never falls; take the difference of two.
        """
        self._look()
        return sum(entry.bytes_sent for entry in self._seen.values())

    def bytes_received(self) -> int:
        """Payload bytes the process has received, from the start of each connection on.

        Returns:
            A number of bytes that never falls; take the difference of two.
        """
        self._look()
        return sum(entry.bytes_received for entry in self._seen.values())

    def _look(self):
        inodes = _socket_inodes(self._pid)
        for entry in tcp_traffic(self._ports):
            if entry.inode in inodes:
                self._seen[entry.cookie] = entry


class InterfaceCounter:
    """Counts what a network interface has moved, packet headers included.

    Args:
        name: The interface, e.g. "eth0". On "lo" all of the machine's loopback traffic counts, of all processes.

    Raises:
        WireCounterError: There is no such interface, or no /proc/net/dev.
    """

    def __init__(self, name: str):
        self._name = name
        self.source = f"interface {name}"
        self._columns()

    def bytes_sent(self) -> int:
        """Bytes the interface has sent since it came up.

        Returns:
            A number of bytes; take the difference of two.
        """
        return self._columns()[8]

    def bytes_received(self) -> int:
        """Bytes the interface has received since it came up.

        Returns:
            A number of bytes; take the difference of two.
        """
        return self._columns()[0]

    def _columns(self):
        interfaces = _interfaces()
        if self._name not in interfaces:
            raise WireCounterError(
                f"there is no network interface {self._name!r}; use one of {', '.join(sorted(interfaces))}."
            )
        return interfaces[self._name]


def best_counter(interface: str = "lo") -> WireCounter | InterfaceCounter:
    """The most exact counter this machine offers; its `source` says what it counts.

    Args:
        interface: The interface to fall back on where the kernel does not tell about single sockets.

    Returns:
        A `WireCounter` for this process, else an `InterfaceCounter`.

    Raises:
        WireCounterError: Neither works here; the text has both reasons.
    """
    try:
        return WireCounter()
    except WireCounterError as first:
        try:
            return InterfaceCounter(interface)
        except WireCounterError as second:
            raise WireCounterError(f"bytes on the wire cannot be counted here. {first} And: {second}") from second


def _socket_inodes(pid):
    folder = f"/proc/{'self' if pid is None else pid}/fd"
    try:
        numbers = os.listdir(folder)
    except OSError as error:
        raise WireCounterError(
            f"cannot read {folder} ({error.strerror}); "
            "the process must be running, on Linux, and belong to the same user."
        ) from error
    inodes = set()
    for number in numbers:
        try:
            link = os.readlink(f"{folder}/{number}")
        except OSError:  # closed since
            continue
        match = re.fullmatch(r"socket:\[(\d+)\]", link)
        if match:
            inodes.add(int(match.group(1)))
    return inodes


def _interfaces():
    """Name -> the 16 numbers of /proc/net/dev."""
    try:
        with open("/proc/net/dev", encoding="ascii") as file:
            lines = file.read().splitlines()[2:]
    except OSError as error:
        raise WireCounterError(
            f"cannot read /proc/net/dev ({error.strerror}); interface counters need Linux."
        ) from error
    pairs = (line.split(":", 1) for line in lines)
    return {name.strip(): [int(number) for number in numbers.split()] for name, numbers in pairs}


def _dump(family):
    """All TCP connections of an address family; asks again when the kernel says its list changed meanwhile."""
    for _ in range(_DUMP_ATTEMPTS):
        try:
            return _dump_once(family)
        except InterruptedError:
            continue
        except OSError as error:
            if error.errno == errno.ENOENT and family == socket.AF_INET6:
                return []  # a kernel without IPv6
            raise WireCounterError(
                f"the kernel does not list TCP sockets ({error.strerror or error}); sock_diag netlink of Linux 4.19 "
                "or later is needed. Use InterfaceCounter instead."
            ) from error
    raise WireCounterError("the kernel's list of TCP sockets kept changing; try again.")


def _dump_once(family):
    if not hasattr(socket, "AF_NETLINK"):
        raise OSError(errno.EAFNOSUPPORT, "no netlink sockets on this system")
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as netlink:
        body = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), _TCPF_ALL & ~(1 << _TCP_LISTEN))
        netlink.settimeout(_ANSWER_SECONDS)
        header = _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST_DUMP, 1, 0)
        netlink.send(header + body)
        found = []
        while True:
            messages, done = _split_messages(netlink.recv(_BUFFER_BYTES))
            found.extend(filter(None, map(_parse_message, messages)))
            if done:
                return found


def _split_messages(data):
    """Cuts what netlink delivered into message bodies, and says whether the list is complete."""
    bodies = []
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, flags, _, _ = _HEADER.unpack_from(data, at)
        body = data[at + _HEADER.size : at + length]
        if flags & _NLM_F_DUMP_INTR:
            raise InterruptedError(errno.EINTR, "the list changed while it was read")
        if kind == _NLMSG_DONE:
            return bodies, True
        if kind == _NLMSG_ERROR:
            number = -struct.unpack_from("=i", body)[0]
            raise OSError(number, os.strerror(number))
        bodies.append(body)
        at += _aligned(length)
    return bodies, False


def _parse_message(body):
    """One socket; None for one in its last state, of which the kernel keeps no figures."""
    (_, _, _, _, local, remote, _, _, _, cookie, _, _, _, _, inode) = _MESSAGE.unpack_from(body)
    info = _attribute(body, _MESSAGE.size, _INET_DIAG_INFO)
    if info is None:
        return None
    if len(info) < _INFO_BYTES:
        raise OSError(errno.ENOSYS, "this kernel does not count the bytes sent")
    sent, received, resent = (
        int.from_bytes(info[at : at + 8], sys.byteorder)
        for at in (_BYTES_SENT_AT, _BYTES_RECEIVED_AT, _BYTES_RESENT_AT)
    )
    return SocketTraffic(
        inode, cookie, int.from_bytes(local, "big"), int.from_bytes(remote, "big"), sent - resent, received, resent
    )


def _attribute(body, at, wanted):
    while at + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, at)
        if kind == wanted:
            return body[at + _ATTRIBUTE.size : at + length]
        at += _aligned(max(length, _ATTRIBUTE.size))
    return None


def _aligned(length):
    return (length + 3) & ~3
