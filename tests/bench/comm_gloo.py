# SPDX-License-Identifier: Apache-2.0
#
# comm_gloo.py RANKS - all_reduce of float32 by torch.distributed with gloo, for comm.sh: "BYTES gloo US" a
# line, medians of 5 turns.
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SIZES = [8, 1 << 10, 8 << 10, 64 << 10, 512 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20]


def time_one(values, times):
    dist.barrier()
    began = time.perf_counter()
    for _ in range(times):
        dist.all_reduce(values)
    dist.barrier()
    return (time.perf_counter() - began) / times * 1e6


def run(rank, ranks, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    for size in SIZES:
        values = torch.zeros(size // 4)
        first = torch.tensor([time_one(values, 3)])
        dist.broadcast(first, 0)
        times = max(1, int(1e5 / first.item()))
        us = sorted(time_one(values, times) for _ in range(5))
        if rank == 0:
            print(size, "gloo", f"{us[2]:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(run, (int(sys.argv[1]), port), int(sys.argv[1]))
