"""One Horovod worker of peers.py: times the all-reduce of gradients as `DistributedOptimizer` makes it.

Runs in a Python environment of its own, so that it imports nothing of this project but peer_worker. `TF_CONFIG` says
who the workers are; worker 0 serves the rendezvous on its port.
"""

import ctypes
import os
import socket
import threading
import time

import peer_worker

_CLONE_NEWUTS = 0x04000000


def start_horovod():
    """Joins the workers that `TF_CONFIG` names; returns the module."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.gloo_run import create_slot_env_vars
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    rank, addresses = peer_worker.cluster()
    hosts, ports = zip(*addresses)
    counts = {host: hosts.count(host) for host in hosts}
    if len(counts) > 1:
        name_host(hosts[rank])
    slots = get_host_assignments(parse_hosts(",".join(f"{host}:{n}" for host, n in counts.items())), len(hosts))
    if rank == 0:
        server = RendezvousHTTPServer(addresses[0], RendezvousHandler, 0)
        server.init(slots)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    peer_worker.connect(*addresses[0]).close()
    os.environ.update(
        create_slot_env_vars(next(slot for slot in slots if slot.rank == rank)),
        HOROVOD_GLOO_RENDEZVOUS_ADDR=hosts[0],
        HOROVOD_GLOO_RENDEZVOUS_PORT=str(ports[0]),
        HOROVOD_GLOO_TIMEOUT_SECONDS=str(int(peer_worker.START_SECONDS)),
        HOROVOD_CONTROLLER="gloo",
        HOROVOD_CPU_OPERATIONS="gloo",
        HOROVOD_GLOO_IFACE=peer_worker.interface(hosts),
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


def make_step(tf, hvd, gradients, compression):
    def step():
        # As gradients come out of backpropagation: fresh buffers that nobody else holds.
        values = [gradient * 1.0 for gradient in gradients]
        return [tf.reduce_max(hvd.allreduce(v, op=hvd.Sum, compression=compression)) for v in values]

    return tf.function(step)


def main():
    arguments = peer_worker.sizes(__doc__)
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
    peer_worker.report(times)
    hvd.shutdown()


if __name__ == "__main__":
    main()
