"""One PyTorch worker of peers.py: times a backward pass under `DistributedDataParallel` whose gradients are given.

Runs in a Python environment of its own, so that it imports nothing of this project but peer_worker. `TF_CONFIG` says
who the workers are. The same pass without exchange (`no_sync`) follows each; a variant's time is the difference.
"""

import contextlib
import datetime
import os
import time

import peer_worker

#: The pass without exchange.
ALONE = "DDP, no_sync"


def join(distributed):
    """Joins the workers that `TF_CONFIG` names."""
    rank, addresses = peer_worker.cluster()
    host, port = addresses[0]
    os.environ["GLOO_SOCKET_IFNAME"] = peer_worker.interface([address[0] for address in addresses])
    distributed.init_process_group(
        "gloo",
        init_method=f"tcp://{host}:{port}",
        rank=rank,
        world_size=len(addresses),
        timeout=datetime.timedelta(seconds=peer_worker.START_SECONDS),
    )


def make_model(torch, gradients):
    class Model(torch.nn.Module):
        """A model whose loss has the given gradients."""

        def __init__(self):
            super().__init__()
            self.weights = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros_like(g)) for g in gradients])

        def forward(self):
            return sum(torch.dot(weight, gradient) for weight, gradient in zip(self.weights, gradients))

    return torch.nn.parallel.DistributedDataParallel(Model())


def seconds(model, exchange):
    model.zero_grad(set_to_none=True)
    start = time.perf_counter()
    with contextlib.nullcontext() if exchange else model.no_sync():
        model().backward()
    return time.perf_counter() - start


def main():
    arguments = peer_worker.sizes(__doc__)
    import torch
    from torch import distributed
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    join(distributed)
    torch.manual_seed(1)
    size = arguments.elements // arguments.tensors
    gradients = [torch.randn(size) * 1e-4 for _ in range(arguments.tensors)]
    models = {"DDP float32": make_model(torch, gradients), "DDP float16 hook": make_model(torch, gradients)}
    models["DDP float16 hook"].register_comm_hook(None, default_hooks.fp16_compress_hook)
    times = {name: [] for name in (*models, ALONE)}
    for turn in range(arguments.repeats + 2):  # DDP orders its buckets anew after the first pass
        for name, model in models.items():
            whole, alone = seconds(model, exchange=True), seconds(model, exchange=False)
            if turn >= 2:
                times[name].append(whole - alone)
                times[ALONE].append(alone)
    peer_worker.report(times)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
