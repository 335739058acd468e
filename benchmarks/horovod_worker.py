"""One Horovod worker of peers.py: times the all-reduce of gradients as `DistributedOptimizer` makes it.

Runs in a Python environment of its own, so that it imports nothing of this project. `TF_CONFIG` says who the workers
are; worker 0 serves the rendezvous on its port.
"""

import argparse
import ctypes
import json
import os
import socket
import threading
import time

START_SECONDS = 60.0
_CLONE_NEWUTS = 0x04000000


def start_horovod():
    """Joins the workers that `TF_CONFIG` names; returns the module."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.gloo_run import create_slot_env_vars
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    config = json.loads(os.environ["TF_CONFIG"])
    rank = config["task"]["index"]
    hosts, ports = zip(*(address.split(":") for address in config["cluster"]["worker"]))
    counts = {host: hosts.count(host) for host in hosts}
    if len(counts) > 1:
        name_host(hosts[rank])
    slots = get_host_assignments(parse_hosts(",".join(f"{host}:{n}" for host, n in counts.items())), len(hosts))
    if rank == 0:
        server = RendezvousHTTPServer((hosts[0], int(ports[0])), RendezvousHandler, 0)
        server.init(slots)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    wait_for(hosts[0], int(ports[0]))
    os.environ.update(
        create_slot_env_vars(next(slot for slot in slots if slot.rank == rank)),
        HOROVOD_GLOO_RENDEZVOUS_ADDR=hosts[0],
        HOROVOD_GLOO_RENDEZVOUS_PORT=ports[0],
        HOROVOD_GLOO_TIMEOUT_SECONDS=str(int(START_SECONDS)),
        HOROVOD_CONTROLLER="gloo",
        HOROVOD_CPU_OPERATIONS="gloo",
        HOROVOD_GLOO_IFACE="lo" if len(counts) == 1 else "eth0",
    )
    import horovod.tensorflow as hvd

    hvd.init()
    return hvd


def name_host(address):
    """Gives this process, and what it starts, a host name of its own that is its address.

    Horovod's process sets find their interface by the host's name, whatever HOROVOD_GLOO_IFACE says.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWUTS):
        raise OSError(ctypes.get_errno(), "cannot have a host name of its own, for which a worker must be root")
    socket.sethostname(address)


def wait_for(host, port):
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection((host, port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def make_step(tf, hvd, gradients, compression):
    def step():
        # As gradients come out of backpropagation: fresh buffers that nobody else holds.
        values = [gradient * 1.0 for gradient in gradients]
        return [tf.reduce_max(hvd.allreduce(v, op=hvd.Sum, compression=compression)) for v in values]

    return tf.function(step)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, required=True)
    parser.add_argument("--tensors", type=int, required=True)
    parser.add_argument("--repeats", type=int, required=True)
    arguments = parser.parse_args()
    hvd = start_horovod()
    import tensorflow as tf

    size = arguments.elements // arguments.tensors
    gradients = [tf.random.stateless_normal([size], [i, 1]) * 1e-4 for i in range(arguments.tensors)]
    kinds = {"Horovod float32": hvd.Compression.none, "Horovod float16": hvd.Compression.fp16}
    steps = {name: make_step(tf, hvd, gradients, compression) for name, compression in kinds.items()}
    for step in steps.values():
        step()
    times = {name: [] for name in steps}
    for _ in range(arguments.repeats):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    print("RESULT " + json.dumps(times), flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
