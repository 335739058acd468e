"""What a worker of link.py or peers.py needs in any Python environment: nothing of this project is imported here."""

import argparse
import json
import os
import socket
import time

START_SECONDS = 60.0


def sizes(description):
    """The command line that peers.py gives to each library's worker."""
    parser = argparse.ArgumentParser(description=description)
    for name in ("elements", "tensors", "repeats"):
        parser.add_argument(f"--{name}", type=int, required=True)
    return parser.parse_args()


def cluster():
    """This worker's number, and the pairs of host and port of all workers, as `TF_CONFIG` has them."""
    config = json.loads(os.environ["TF_CONFIG"])
    addresses = [address.split(":") for address in config["cluster"]["worker"]]
    return config["task"]["index"], [(host, int(port)) for host, port in addresses]


def interface(hosts):
    """The network interface: loopback, or that of an emulated host."""
    return "lo" if len(set(hosts)) == 1 else "eth0"


def connect(host, port):
    """A connection to what may not listen yet."""
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            return socket.create_connection((host, port), timeout=START_SECONDS)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def report(times):
    """Prints the seconds of all repeats by variant, for peers.py to read."""
    print("RESULT " + json.dumps(times), flush=True)
