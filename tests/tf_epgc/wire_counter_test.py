"""Tests of tf_epgc.wire_counter."""

import contextlib
import errno
import os
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest

from tests.distributed import harness
from tf_epgc import wire_counter

MIB = 1 << 20


@contextlib.contextmanager
def connection(family=socket.AF_INET, host="127.0.0.1"):
    """A client and a server socket joined over loopback."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server((host, 0), family=family))
        client = stack.enter_context(socket.create_connection(listener.getsockname()[:2]))
        server, _ = listener.accept()
        yield client, stack.enter_context(server)


def transfer(sender, receiver, size):
    """Moves `size` bytes and returns when all have arrived."""
    thread = threading.Thread(target=sender.sendall, args=(bytes(size),))
    thread.start()
    left = size
    while left:
        left -= len(receiver.recv(min(left, MIB)))
    thread.join()


@pytest.mark.parametrize("family, host", [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_counts_exactly_what_each_end_sent(family, host):
    if family == socket.AF_INET6 and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    with connection(family, host) as (client, server):
        transfer(client, server, 12345678)
        transfer(server, client, 4321)
        port = server.getsockname()[1]
        by_end = {entry.local_port: entry for entry in wire_counter.tcp_traffic([port])}
        near, far = by_end[client.getsockname()[1]], by_end[port]
    assert (near.bytes_sent, near.bytes_received) == (12345678, 4321)
    assert (far.bytes_sent, far.bytes_received) == (4321, 12345678)
    assert (near.remote_port, far.remote_port) == (far.local_port, near.local_port)
    assert near.cookie != far.cookie


def test_a_process_counts_its_own_sockets():
    with connection() as (client, server):
        counter = wire_counter.WireCounter(ports=[server.getsockname()[1]])
        assert counter.bytes_sent() == 0
        transfer(client, server, 1000)
        assert counter.bytes_sent() == 1000
        transfer(server, client, 500)
        assert counter.bytes_sent() == 1500
        assert counter.bytes_received() == 1500


def test_without_ports_all_sockets_of_the_process_count():
    with connection() as one, connection() as two:
        counter = wire_counter.WireCounter()
        before = counter.bytes_sent()
        transfer(*one, 1000)
        transfer(*two, 234)
        assert counter.bytes_sent() - before == 1234


def test_other_ports_do_not_count():
    with connection() as (client, server), connection() as (other_client, other_server):
        counter = wire_counter.WireCounter(ports=[server.getsockname()[1]])
        transfer(other_client, other_server, 1000)
        assert counter.bytes_sent() == 0


def test_closed_sockets_keep_what_they_had():
    with connection() as (client, server):
        counter = wire_counter.WireCounter(ports=[server.getsockname()[1]])
        transfer(client, server, 1000)
        assert counter.bytes_sent() == 1000
    assert counter.bytes_sent() == 1000


SENDER = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as peer:
    peer.sendall(bytes(70000))
    sys.stdin.read()
"""


def test_processes_on_one_machine_are_told_apart():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with subprocess.Popen([sys.executable, "-c", SENDER, str(port)], stdin=subprocess.PIPE) as process:
            server, _ = listener.accept()
            with server:
                left = 70000
                while left:
                    left -= len(server.recv(left))
                theirs = wire_counter.WireCounter(pid=process.pid, ports=[port])
                ours = wire_counter.WireCounter(ports=[port])
                assert (theirs.bytes_sent(), theirs.bytes_received()) == (70000, 0)
                assert (ours.bytes_sent(), ours.bytes_received()) == (0, 70000)
                process.stdin.close()


def test_a_process_that_is_gone():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    with pytest.raises(wire_counter.WireCounterError, match=r"cannot read /proc/\d+/fd .*must be running"):
        wire_counter.WireCounter(pid=process.pid)


def test_interface_counter_sees_loopback_traffic():
    counter = wire_counter.InterfaceCounter("lo")
    before = counter.bytes_sent(), counter.bytes_received()
    with connection() as (client, server):
        transfer(client, server, 5 * MIB)
    assert counter.bytes_sent() - before[0] >= 5 * MIB
    assert counter.bytes_received() - before[1] >= 5 * MIB
    assert counter.source == "interface lo"


def test_interface_that_does_not_exist():
    with pytest.raises(wire_counter.WireCounterError, match=r"no network interface 'eth_none'; use one of .*lo"):
        wire_counter.InterfaceCounter("eth_none")


def refuse(*_):
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def test_the_best_counter_asks_about_sockets():
    assert isinstance(wire_counter.best_counter(), wire_counter.WireCounter)


def test_the_best_counter_falls_back_on_the_interface(monkeypatch):
    monkeypatch.setattr(wire_counter, "_dump_once", refuse)
    counter = wire_counter.best_counter("lo")
    assert counter.source == "interface lo"
    assert counter.bytes_sent() >= 0


def test_when_nothing_works_both_reasons_are_told(monkeypatch):
    monkeypatch.setattr(wire_counter, "_dump_once", refuse)
    with pytest.raises(
        wire_counter.WireCounterError,
        match=r"cannot be counted here.*Permission denied.*And: there is no network interface 'none'",
    ):
        wire_counter.best_counter("none")


def test_a_list_that_changes_while_it_is_read_is_read_again(monkeypatch):
    whole = wire_counter._dump_once
    answers = [InterruptedError(), InterruptedError()]

    def sometimes(family):
        if answers:
            raise answers.pop()
        return whole(family)

    monkeypatch.setattr(wire_counter, "_dump_once", sometimes)
    with connection() as (_, server):
        assert len(wire_counter.tcp_traffic([server.getsockname()[1]])) == 2


def test_a_list_that_never_stops_changing_is_an_error(monkeypatch):
    def never(_):
        raise InterruptedError

    monkeypatch.setattr(wire_counter, "_dump_once", never)
    with pytest.raises(wire_counter.WireCounterError, match="kept changing"):
        wire_counter.tcp_traffic()


def test_a_kernel_without_ipv6_has_no_such_sockets(monkeypatch):
    def no_ipv6(family):
        if family == socket.AF_INET6:
            raise OSError(errno.ENOENT, "none")
        return []

    monkeypatch.setattr(wire_counter, "_dump_once", no_ipv6)
    assert wire_counter.tcp_traffic() == []


def netlink(kind, body, flags=0):
    return struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body


def test_an_error_message_of_the_kernel_is_raised():
    with pytest.raises(OSError, match="Operation not permitted"):
        wire_counter._split_messages(netlink(2, struct.pack("=i", -errno.EPERM)))


def test_messages_are_cut_at_their_padded_length():
    data = netlink(20, b"abcdefgh") + netlink(20, b"12345") + b"\0\0\0" + netlink(3, b"\0\0\0\0")
    assert wire_counter._split_messages(data) == ([b"abcdefgh", b"12345"], True)
    assert wire_counter._split_messages(netlink(20, b"abcd")) == ([b"abcd"], False)


def test_an_interrupted_list_is_noticed():
    with pytest.raises(InterruptedError):
        wire_counter._split_messages(netlink(20, b"abcd", flags=0x10))


def test_a_kernel_too_old_to_count_is_an_error():
    body = bytes(72) + struct.pack("=HH", 4 + 104, 2) + bytes(104)
    with pytest.raises(OSError, match="does not count the bytes sent"):
        wire_counter._parse_message(body)


def test_a_socket_without_figures_is_left_out():
    assert wire_counter._parse_message(bytes(72) + struct.pack("=HH", 5, 9) + b"x\0\0\0") is None


def count_all_reduce(elements, steps):
    """Runs in a worker: bytes it sent a step, by its sockets, for a float32 all-reduce of stock TensorFlow."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    @tf.function
    def step():
        return strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.ones([elements])))

    step()
    counter = wire_counter.WireCounter()
    before = settled(counter)
    for _ in range(steps):
        step()
    sent, received = settled(counter)
    return (sent - before[0]) / steps, (received - before[1]) / steps


def settled(counter):
    """Bytes sent and received once nothing moves: a step ends when a worker has all, not when it has sent all."""
    last, end = None, time.monotonic() + 10
    while time.monotonic() < end:
        now = counter.bytes_sent(), counter.bytes_received()
        if last is not None and max(now[0] - last[0], now[1] - last[1]) < 10_000:
            return now
        last = now
        time.sleep(0.3)
    return last


def test_counts_an_all_reduce_of_tensorflow():
    elements = 1000000
    results = harness.run_workers(
        "tests.tf_epgc.wire_counter_test:count_all_reduce", workers=2, kwargs=dict(elements=elements, steps=20)
    )
    # A ring of two sends half of the float32 values twice.
    for sent, received in results:
        assert 4 * elements <= sent < 4.04 * elements
        assert 3.9 * elements <= received < 4.1 * elements
