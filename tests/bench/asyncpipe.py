# SPDX-License-Identifier: Apache-2.0
#
# asyncpipe.py RANKS MICROBATCHES FORWARD_MS BACKWARD_MS STEPS - steps of fairscale's AsyncPipe, a process
# a rank, whose layers sleep in forward and backward and pass 64 KiB on, as those of `dualpipe bench
# step` do. Prints the median time of a step in ms. For asyncpipe.sh.
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

FLOATS = 16384  # of a micro-batch


class Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, forward_s, backward_s):
        ctx.backward_s = backward_s
        time.sleep(forward_s)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.backward_s)
        return gradient.clone(), None, None


class Layer(torch.nn.Module):
    def __init__(self, forward_s, backward_s):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.times = (forward_s, backward_s)

    def forward(self, x):
        return Sleep.apply(x * self.scale, *self.times)


def open_pipe(rank, ranks, microbatches, times):
    from fairscale.nn.model_parallel import initialize_model_parallel
    from fairscale.nn.pipe import AsyncPipe

    dist.rpc.init_rpc(f"rank{rank}", rank=rank, world_size=ranks)
    initialize_model_parallel(1, ranks)
    layers = torch.nn.Sequential(*[Layer(*times) for _ in range(ranks)])
    names = {i: f"rank{i}" for i in range(ranks)}
    pipe = AsyncPipe(layers, [1] * ranks, worker_map=names, chunks=microbatches, checkpoint="never")

    def step(batch):
        out = pipe(batch)
        if pipe.final_stage:
            out.sum().backward()

    return step


def run(rank, ranks, microbatches, times, steps, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank),
                      WORLD_SIZE=str(ranks))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    step = open_pipe(rank, ranks, microbatches, times)
    took = []
    for _ in range(steps + 1):  # the first one warms up
        batch = torch.zeros(microbatches, FLOATS)
        dist.barrier()
        began = time.perf_counter()
        step(batch)
        dist.barrier()
        took.append((time.perf_counter() - began) * 1e3)
    if rank == 0:
        print(f"{sorted(took[1:])[steps // 2]:.3f}", flush=True)
    os._exit(0)  # without the shutdown of RPC, which may wait for ever


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    ranks, microbatches = int(sys.argv[1]), int(sys.argv[2])
    times = (float(sys.argv[3]) / 1e3, float(sys.argv[4]) / 1e3)
    mp.spawn(run, (ranks, microbatches, times, int(sys.argv[5]), port), ranks)
