"""Times an all-to-all over plain TCP sockets: what a link and the kernel need for it, without TensorFlow.

    python benchmarks/emulated_cluster.py --hosts 4 --rate 1Gbit/s benchmarks/link.py --rate 1Gbit/s --bytes 1600000

Every worker sends so many bytes to each other worker over connections that stay open, while it receives as many.
"limit" is the time over what the link needs for them; the slowest worker of each turn counts, and of turns the median.
"""

import argparse
import os
import socket
import statistics
import sys
import threading
import time

if __package__ in (None, ""):  # run as a script
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks import peer_worker
from tf_epgc.performance import parse_rate

_TOKEN_BYTES = 8


class Peers:
    """A connection to and from each other worker that `TF_CONFIG` names."""

    def __init__(self):
        self.index, addresses = peer_worker.cluster()
        self.count = len(addresses)
        server = socket.create_server(("0.0.0.0", addresses[self.index][1]), backlog=self.count)
        server.settimeout(peer_worker.START_SECONDS)
        self._to = [peer_worker.connect(*address) for i, address in enumerate(addresses) if i != self.index]
        self._from = [server.accept()[0] for _ in self._to]
        for connection in self._to + self._from:
            connection.settimeout(peer_worker.START_SECONDS)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def exchange(self, data: bytes) -> list[bytearray]:
        """Sends `data` to all others and returns what they sent, which is as long."""
        received = [bytearray(len(data)) for _ in self._from]
        threads = [threading.Thread(target=to.sendall, args=(data,)) for to in self._to]
        threads += [threading.Thread(target=_receive, args=pair) for pair in zip(self._from, received, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return received

    def slowest(self, seconds: float) -> float:
        """The largest of the workers' values."""
        own = round(seconds * 1e9)
        others = self.exchange(own.to_bytes(_TOKEN_BYTES, "big"))
        return max(own, *(int.from_bytes(other, "big") for other in others)) / 1e9


def _receive(connection, buffer):
    view = memoryview(buffer)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise ConnectionError("another worker has gone")
        view = view[count:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=parse_rate, required=True, help="of the links, such as 1Gbit/s")
    parser.add_argument("--bytes", type=int, nargs="+", default=[400_000, 1_600_000, 3_200_000], help="to each other")
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    peers = Peers()
    for size in arguments.bytes:
        data, times = bytes(size), []
        for _ in range(arguments.repeats):
            peers.slowest(0.0)  # all begin together
            start = time.perf_counter()
            peers.exchange(data)
            times.append(peers.slowest(time.perf_counter() - start))
        if peers.index == 0:
            seconds, least = statistics.median(times), size * (peers.count - 1) / arguments.rate
            print(
                f"{size / 1e6:.2f} MB to each of {peers.count - 1}: {seconds * 1e3:.1f} ms, limit {seconds / least:.2f}"
            )


if __name__ == "__main__":
    main()
