# SPDX-License-Identifier: Apache-2.0
#
# gpu_torch.py - PyTorch's side of run.sh, on a GPU:
#
#   train f32|bf16 LAYERS WIDTH HEADS CONTEXT BATCH MICROBATCHES STEPS FILE
#       tokens of a second of the model of `dualpipe train`, all steps but the first three
#   copies BYTES
#       GB/s from pinned memory to the device, back, and both ways at once
#   collectives
#       us of an all-reduce and of a send and receive between two processes on this GPU, for some sizes; what
#       NCCL goes by is what the environment says
import os
import pathlib
import sys
import time

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bench"))


def seconds(call, times):
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(times):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / times


def train(dtype, *rest):
    from train_torch import Gpt, step

    layers, width, heads, context, batch, microbatches, steps = map(int, rest[:7])
    with open(rest[7], "rb") as file:
        text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()
    model = Gpt(layers, width, heads, context).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), fused=True)

    def once():
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype == "bf16"):
            step(model, optimizer, text, context, batch, microbatches, "cuda")

    for _ in range(3):
        once()
    print(batch * context / seconds(once, steps))


def copies(count):
    host = [torch.empty(int(count), dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    there = [torch.empty(int(count), dtype=torch.uint8, device="cuda") for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in range(2)]

    def up():
        with torch.cuda.stream(streams[0]):
            there[0].copy_(host[0], non_blocking=True)

    def down():
        with torch.cuda.stream(streams[1]):
            host[1].copy_(there[1], non_blocking=True)

    def both():
        up()
        down()

    for call, factor in ((up, 1), (down, 1), (both, 2)):
        call()
        print(f"{factor * int(count) / seconds(call, 10) * 1e-9:.1f}", end=" ")
    print()


def rank(index, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), NCCL_HOSTID=f"gpu-{index}")
    torch.cuda.set_device(0)
    torch.distributed.init_process_group("nccl", rank=index, world_size=2)
    for count in (8, 65536, 4 << 20, 64 << 20):
        x = torch.ones(count // 4, device="cuda")
        y = torch.empty_like(x)

        def exchange():
            ops = [torch.distributed.P2POp(torch.distributed.isend, x, 1 - index),
                   torch.distributed.P2POp(torch.distributed.irecv, y, 1 - index)]
            for request in torch.distributed.batch_isend_irecv(ops):
                request.wait()

        figures = []
        for call in (lambda: torch.distributed.all_reduce(x), exchange):
            for _ in range(5):
                call()
            figures.append(min(seconds(call, 20) for _ in range(5)) * 1e6)
        if index == 0:
            print(f"{count}:{figures[0]:.0f}/{figures[1]:.0f}", end=" ", flush=True)
    torch.distributed.destroy_process_group()


def collectives():
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    torch.multiprocessing.spawn(rank, args=(port,), nprocs=2)
    print()


if __name__ == "__main__":
    {"train": train, "copies": copies, "collectives": collectives}[sys.argv[1]](*sys.argv[2:])
