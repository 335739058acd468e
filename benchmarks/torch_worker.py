"""One PyTorch worker of peers.py: times a backward pass under `DistributedDataParallel` whose gradients are given.

Runs in a Python environment of its own, so that it imports nothing of this project. `TF_CONFIG` says who the workers
are. The same pass without exchange (`no_sync`) follows each; the time of a variant is the difference.
"""

import argparse
import contextlib
import datetime
import json
import os
import time

START_SECONDS = 60.0
#: The pass without exchange.
ALONE = "DDP, no_sync"


def join(distributed):
    """Joins the workers that `TF_CONFIG` names."""
    config = json.loads(os.environ["TF_CONFIG"])
    addresses = config["cluster"]["worker"]
    hosts = {address.split(":")[0] for address in addresses}
    os.environ["GLOO_SOCKET_IFNAME"] = "lo" if len(hosts) == 1 else "eth0"
    distributed.init_process_group(
        "gloo",
        init_method=f"tcp://{addresses[0]}",
        rank=config["task"]["index"],
        world_size=len(addresses),
        timeout=datetime.timedelta(seconds=START_SECONDS),
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, required=True)
    parser.add_argument("--tensors", type=int, required=True)
    parser.add_argument("--repeats", type=int, required=True)
    arguments = parser.parse_args()
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
    print("RESULT " + json.dumps(times), flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
