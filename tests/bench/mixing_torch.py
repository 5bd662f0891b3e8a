# SPDX-License-Identifier: Apache-2.0
#
# mixing_torch.py RANKS PARAMETERS - iterations of decentralized training without a model, as those of
# `dp-bench mixing`: 64 tensors of float32 whose gradients cost no more than a copy, AdamW, one
# thread a process, gloo. For mixing.sh: "WHAT MS" a line, medians of 5 turns.
#
#   decent-dp   DecentralizedDataParallel, one peer exponential; left out where it is not installed
#   torch-ddp   DistributedDataParallel, gradients as views of its buckets
#   backward    neither: the same gradients, which are made in both of the above
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

try:
    from decent_dp.ddp import DecentralizedDataParallel
except ImportError:
    DecentralizedDataParallel = None

TENSORS, STEPS, TURNS = 64, 3, 5


class Gradient(torch.autograd.Function):
    """A loss of 0 whose gradient is what it was told."""

    @staticmethod
    def forward(ctx, parameter, gradient):
        ctx.gradient = gradient
        return parameter.new_zeros(())

    @staticmethod
    def backward(ctx, _):
        return ctx.gradient, None


class Model(torch.nn.Module):
    def __init__(self, parameters):
        super().__init__()
        each = (parameters + TENSORS - 1) // TENSORS
        self.tensors = torch.nn.ParameterList(torch.zeros(each) for _ in range(TENSORS))
        self.gradient = torch.full((each,), 1e-3)

    def forward(self):
        return sum(Gradient.apply(p, self.gradient) for p in self.tensors)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-4, fused=True)


def decent(parameters):
    model = DecentralizedDataParallel(
        Model(parameters), lambda named: adamw([p for _, p in named]), topology="one-peer-exp",
        _local_world_size=1)
    model.train()
    return lambda: model().backward()


def ddp(parameters):
    model = torch.nn.parallel.DistributedDataParallel(Model(parameters), gradient_as_bucket_view=True)
    optimizer = adamw(model.parameters())

    def step():
        model().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def backward(parameters):
    model = Model(parameters)

    def step():
        model().backward()
        model.zero_grad()

    return step


def time_one(step):
    dist.barrier()
    began = time.perf_counter()
    for _ in range(STEPS):
        step()
    dist.barrier()
    return (time.perf_counter() - began) / STEPS * 1e3


def run(rank, ranks, port, parameters):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), LOCAL_WORLD_SIZE=str(ranks))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    steps = {"torch-ddp": ddp(parameters), "backward": backward(parameters)}
    if DecentralizedDataParallel:
        steps = {"decent-dp": decent(parameters), **steps}
    for step in steps.values():  # buckets are made in the first two
        for _ in range(3):
            step()
    turns = [{name: time_one(step) for name, step in steps.items()} for _ in range(TURNS)]
    for name in steps:
        if rank == 0:
            print(name, f"{sorted(turn[name] for turn in turns)[TURNS // 2]:.1f}", flush=True)
    dist.barrier()
    os._exit(0)  # exchanges that are in flight do not end


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(run, (int(sys.argv[1]), port, int(sys.argv[2])), int(sys.argv[1]))
