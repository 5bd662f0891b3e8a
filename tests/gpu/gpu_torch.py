# SPDX-License-Identifier: Apache-2.0
#
# gpu_torch.py - PyTorch's side of check.sh, on a GPU:
#
#   train f32|bf16 LAYERS WIDTH HEADS CONTEXT BATCH MICROBATCHES STEPS FILE
#       tokens of a second of the model of `dualpipe train`, all steps but the first three
#   preload
#       copies of known sizes, their rates and bytes: what the preload library must have counted
#   collectives
#       an all-reduce, all-gather, reduce-scatter and an exchange between two processes on this GPU, whose
#       values are checked; what NCCL goes by is what the environment says
import os
import pathlib
import sys
import time

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))


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


def preload():
    count = 256 << 20
    pinned = torch.empty(count, dtype=torch.uint8, pin_memory=True)
    there = torch.empty_like(pinned, device="cuda")
    pageable = torch.randint(0, 256, (count,), dtype=torch.uint8)
    back = torch.empty_like(pageable)
    pairs = {"pinned up": (there, pinned), "pinned down": (pinned, there), "pageable up": (there, pageable),
             "pageable down": (back, there)}
    for name, (to, of) in pairs.items():
        to.copy_(of)
        print(f"{name} {count * 1e-9 / seconds(lambda: to.copy_(of), 4):.1f} GB/s", end="; ")
    assert torch.equal(back, pageable), "expected the bytes that went up, other bytes came down"
    graph, x = torch.cuda.CUDAGraph(), torch.zeros(1, device="cuda")
    with torch.cuda.graph(graph):
        x += 1
    graph.replay()
    torch.cuda.synchronize()
    print(f"by hand: 10 copies up ({10 * count} bytes), 10 down ({10 * count} bytes), beside a few small ones")


def check(name, got, wanted):
    if not torch.equal(got, wanted):
        at = int((got != wanted).nonzero()[0])
        sys.exit(f"{name}: expected {wanted[at]} at {at}, found {got[at]}")


def rank(index, port):
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), NCCL_HOSTID=f"gpu-{index}")
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", rank=index, world_size=2)
    done = []
    for count in (8, 65536, 4 << 20, 64 << 20):
        # Small integers: sums are the same in any order.
        both = [torch.randint(0, 1000, (count // 4,), generator=torch.Generator().manual_seed(count + r)).float().cuda()
                for r in range(2)]
        mine, other = both[index], both[1 - index]
        summed = mine.clone()
        dist.all_reduce(summed)
        check("all-reduce", summed, both[0] + both[1])
        gathered = torch.empty(2 * mine.numel(), device="cuda")
        dist.all_gather_into_tensor(gathered, mine)
        check("all-gather", gathered, torch.cat(both))
        half = torch.empty(mine.numel() // 2, device="cuda")
        dist.reduce_scatter_tensor(half, mine)
        check("reduce-scatter", half, (both[0] + both[1]).chunk(2)[index])
        came = torch.empty_like(mine)
        ops = [dist.P2POp(dist.isend, mine, 1 - index), dist.P2POp(dist.irecv, came, 1 - index)]
        for request in dist.batch_isend_irecv(ops):
            request.wait()
        check("exchange", came, other)
        done.append(count)
    dist.destroy_process_group()
    if index == 0:
        print(f"right: all-reduce, all-gather, reduce-scatter, exchange of {done} bytes")


def collectives():
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    torch.multiprocessing.spawn(rank, args=(port,), nprocs=2)


if __name__ == "__main__":
    {"train": train, "preload": preload, "collectives": collectives}[sys.argv[1]](*sys.argv[2:])
