# SPDX-License-Identifier: Apache-2.0
#
# python.py RANKS [WORDS] - steps of peers' classes and of ours by turns, some at a time, in the same
# processes; for python.sh. A row: the case, medians of a step of both in ms, the median of the ratios
# of neighbours with its quartiles, and the same of the time that all ranks' processors took.
import copy
import os
import socket
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

SIZES = {"small": (16, 64, 21), "medium": (64, 256, 9), "large": (512, 256, 3)}  # rows, width, turns
TURN = {"small": 8, "medium": 4, "large": 2}  # steps
TORCHS = ("GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")


class Stage(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


def turns(steps, count, each):
    """Seconds of a step in each turn, by the clock and of all ranks' processors; the first two turns
    warm up. A turn is several steps: what a mixer leaves in flight is waited for by its own next one."""
    wall, used = ({name: [] for name in steps} for _ in range(2))
    for i in range(count + 2):
        for name in list(steps) if i % 2 else reversed(list(steps)):
            dist.barrier()
            took, began = time.process_time(), time.perf_counter()
            for _ in range(each):
                steps[name]()
            dist.barrier()
            began = (time.perf_counter() - began) / each
            all_of_it = torch.tensor([(time.process_time() - took) / each], dtype=torch.float64)
            dist.all_reduce(all_of_it)
            if i > 1:
                wall[name].append(began)
                used[name].append(float(all_of_it))
    return wall, used


def row(case, steps, count, each):
    wall, used = turns(steps, count, each)
    if dist.get_rank():
        return
    text = f"{case:36}"
    for took in (wall, used):
        peer, ours = took["peer"], took["ours"]
        low, middle, high = statistics.quantiles([b / a for a, b in zip(peer, ours)], n=4)
        text += (f" {statistics.median(peer) * 1e3:9.2f} {statistics.median(ours) * 1e3:9.2f} "
                 f"{middle:5.2f} ({low:.2f}-{high:.2f})")
    print(text, flush=True)


def microbatches(ranks):
    return max(20, 2 * ranks)


def deepseek(rank, ranks, size, _name):
    import dualpipe
    import dualpipe.comm as comm

    from libdualpipe.compat import deepseek as ours
    torch.cuda.current_device = lambda: "cpu"
    comm.build_from_tensor_shapes = lambda: [
        torch.empty(shape, dtype=comm.TENSOR_DTYPE, requires_grad=True)
        for shape in comm.TENSOR_SHAPES]
    rows, width, count = SIZES[size]
    for module in (dualpipe, ours):
        module.set_p2p_tensor_shapes([(rows, width)])
        module.set_p2p_tensor_dtype(torch.float32)
    m = microbatches(ranks)
    stages = [Stage(width) for _ in range(2)]
    pipes = {"peer": dualpipe.DualPipe(copy.deepcopy(stages)), "ours": ours.DualPipe(stages)}
    x = y = None
    if rank in (0, ranks - 1):
        x, y = torch.randn(m // 2 * rows, width), torch.randn(m // 2 * rows, width)

    def step(pipe):
        return lambda: pipe.step(x, num_chunks=m, criterion=F.mse_loss, labels=(y, ))

    return {name: step(pipe) for name, pipe in pipes.items()}, count


def torchs(rank, ranks, size, name):
    from torch.distributed.pipelining import PipelineStage, schedules

    from libdualpipe.compat import pipelining as ours
    rows, width, count = SIZES[size]
    m = microbatches(ranks)
    indices = [rank] if name in ("GPipe", "1F1B", "InterleavedZeroBubble") else \
        [rank, rank + ranks] if name.startswith("Inter") else [rank, 2 * ranks - 1 - rank]
    total = ranks * len(indices)
    layers = [Stage(width) for _ in indices]

    def step(module, own):
        stages = [PipelineStage(layer, i, total, torch.device("cpu"))
                  for layer, i in zip(own, indices)]
        single = name in ("GPipe", "1F1B")
        made = getattr(module, "Schedule" + name)(stages[0] if single else stages, m,
                                                  loss_fn=F.mse_loss)
        x, y = torch.randn(m * rows, width), torch.randn(m * rows, width)
        args = (x, ) if 0 in indices else ()
        target = {"target": y, "losses": []} if total - 1 in indices else {}
        return lambda: made.step(*args, **target)

    return {"peer": step(schedules, copy.deepcopy(layers)), "ours": step(ours, layers)}, count


def decent(rank, ranks, size, name):
    from decent_dp.ddp import DecentralizedDataParallel as Peer
    from loguru import logger

    from libdualpipe.compat.decent_dp import DecentralizedDataParallel, optim_fn_adamw
    logger.remove()
    rows, width, count = SIZES[size]
    layers = nn.Sequential(*(Stage(width) for _ in range(4)))
    x, y = torch.randn(rows, width), torch.randn(rows, width)
    if name == "DDP":
        peer = nn.parallel.DistributedDataParallel(copy.deepcopy(layers))
        optimizer = optim_fn_adamw(list(peer.named_parameters()))
    else:
        peer, optimizer = Peer(copy.deepcopy(layers), optim_fn_adamw, topology="ring"), None
    ours = DecentralizedDataParallel(layers, optim_fn_adamw, topology="ring")

    def step_peer():
        F.mse_loss(peer(x), y).backward()
        if optimizer:
            optimizer.step()
            optimizer.zero_grad()

    return {"peer": step_peer, "ours": lambda: F.mse_loss(ours(x), y).backward()}, 2 * count


def asyncpipe(rank, ranks, size, _name):
    from fairscale.nn.model_parallel import initialize_model_parallel
    from fairscale.nn.pipe import AsyncPipe as Peer

    from libdualpipe.compat.fairscale import AsyncPipe
    if not dist.rpc._is_current_rpc_agent_set():
        dist.rpc.init_rpc(f"rank{rank}", rank=rank, world_size=ranks)
        initialize_model_parallel(1, ranks)
    rows, width, count = SIZES[size]
    layers = nn.Sequential(*(Stage(width) for _ in range(ranks)))
    names = {i: f"rank{i}" for i in range(ranks)}
    how = {"chunks": 8, "checkpoint": "never", "worker_map": names}
    pipes = {"peer": Peer(copy.deepcopy(layers), [1] * ranks, **how),
             "ours": AsyncPipe(layers, [1] * ranks, **how)}
    x, y = torch.randn(8 * rows, width), torch.randn(8 * rows, width)

    def step(pipe, backs):
        def run():
            out = pipe(x)
            if pipe.final_stage:
                F.mse_loss(out, y).backward()
            elif backs:
                pipe.back_helper(out)

        return run

    return {name: step(pipe, name == "ours" or ranks > 1) for name, pipe in pipes.items()}, count


CASES = {"DeepSeek DualPipe": (deepseek, ""),
         **{f"torch {name}": (torchs, name) for name in TORCHS}, "Decent-DP ring": (decent, ""),
         "DDP, ours mixes on a ring": (decent, "DDP"), "fairscale AsyncPipe": (asyncpipe, "")}


def run(rank, ranks, words, store, port):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))  # of fairscale's RPC
    dist.init_process_group("gloo", store=dist.FileStore(store, ranks), rank=rank, world_size=ranks)
    if rank == 0:
        print(f"{f'{ranks} ranks':36} {'peer ms':>9} {'ours ms':>9} ratio             "
              f"{'peer cpu':>9} {'ours cpu':>9} ratio")
    for case, (make, name) in CASES.items():
        if words and not any(word in case for word in words):
            continue
        for size in SIZES:
            torch.manual_seed(rank)
            try:
                steps, count = make(rank, ranks, size, name)
                row(f"{case}, {size}", steps, count, TURN[size])
            except Exception as error:  # of the peer: all ranks get it, or the process group ends
                if rank == 0:
                    print(f"{case}, {size}: {type(error).__name__}: {str(error)[:200]}", flush=True)
                break
    os._exit(0)  # without the shutdown of RPC, which may wait for ever


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(
            run, (int(sys.argv[1]), sys.argv[2:], folder + "/store", port), int(sys.argv[1]))
