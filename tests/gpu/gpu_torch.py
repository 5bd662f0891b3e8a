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
#   stages cuda|cpu WIDTH
#       steps of torch's schedules over libdualpipe beside torch's own, on two processes: the same gradients, and
#       the time of both. Status 77 where the package is not installed
import copy
import os
import pathlib
import sys
import time

try:
    import torch
except ImportError:
    print("no torch in this Python")
    sys.exit(77)

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
    odd = torch.empty(3 << 20, dtype=torch.uint8, pin_memory=True)  # 4 MiB, where torch rounds up
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
    print(f"by hand: 2 pinned ({count + odd.numel()} bytes), 10 copies up ({10 * count} bytes), "
          f"10 down ({10 * count} bytes), beside a few small ones")


def check(name, got, wanted):
    if not torch.equal(got, wanted):
        at = int((got != wanted).nonzero()[0])
        sys.exit(f"{name}: expected {wanted[at]} at {at}, found {got[at]}")


def begin(index, port, device):
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), NCCL_HOSTID=f"gpu-{index}")
    if device == "cuda":
        torch.cuda.set_device(0)
    dist.init_process_group("nccl" if device == "cuda" else "gloo", rank=index, world_size=2)
    return dist


def spawn(function, *args):
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    torch.multiprocessing.spawn(function, args=(port, *args), nprocs=2)


def rank(index, port):
    dist = begin(index, port, "cuda")
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
    spawn(rank)


COUNT, ROWS, STEPS = 8, 64, 5  # micro-batches, rows of each, steps that are timed
SCHEDULES = {"1F1B": lambda rank: [rank], "DualPipeV": lambda rank: [rank, 3 - rank]}


def steps_of(module, name, layers, indices, device):
    """The second step's gradients on this rank, in which ours sends by NCCL, and the seconds of one of those
    behind it."""
    from libdualpipe.compat.pipelining import PipelineStage

    def seeded(seed):
        return torch.randn(COUNT * ROWS, layers[0].in_features,
                           generator=torch.Generator().manual_seed(seed)).to(device)

    size = 2 * len(indices)
    stages = [PipelineStage(layer, i, size, torch.device(device)) for layer, i in zip(layers, indices)]
    schedule = getattr(module, "Schedule" + name)(stages if len(stages) > 1 else stages[0], COUNT,
                                                  loss_fn=torch.nn.functional.mse_loss)
    args = (seeded(1), ) if 0 in indices else ()
    target = {"target": seeded(2)} if size - 1 in indices else {}
    schedule.step(*args, **target)
    for layer in layers:
        layer.zero_grad()
    schedule.step(*args, **target)
    grads = [p.grad.clone() for layer in layers for p in layer.parameters()]
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    began = time.perf_counter()
    for _ in range(STEPS):
        schedule.step(*args, **target)
    wait()
    return grads, (time.perf_counter() - began) / STEPS


def stage_rank(index, port, device, width):
    from torch.distributed.pipelining import schedules as torchs

    from libdualpipe.compat import pipelining

    dist = begin(index, port, device)
    for name, of in SCHEDULES.items():
        torch.manual_seed(7 + index)
        layers = [torch.nn.Linear(width, width).to(device) for _ in of(index)]
        theirs, their_s = steps_of(torchs, name, copy.deepcopy(layers), of(index), device)
        ours, our_s = steps_of(pipelining, name, layers, of(index), device)
        for got, wanted in zip(ours, theirs):
            check(f"gradients by {name}", got.flatten(), wanted.flatten())
        if index == 0:
            print(f"right: {name}; a step {1e3 * our_s:.2f} ms, torch's {1e3 * their_s:.2f} ms")
    dist.destroy_process_group()


def stages(device, width):
    import importlib.util

    if not importlib.util.find_spec("libdualpipe"):
        print("no package libdualpipe in this Python")
        sys.exit(77)
    spawn(stage_rank, device, int(width))


if __name__ == "__main__":
    {"train": train, "preload": preload, "collectives": collectives, "stages": stages}[sys.argv[1]](*sys.argv[2:])
