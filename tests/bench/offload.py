# SPDX-License-Identifier: Apache-2.0
#
# offload.py adamw PARAMETERS | step LAYERS WIDTH ROWS SLICES MICROBATCHES STEPS - for offload.sh, in ms:
#
#   adamw   a step of torch's fused AdamW over so many float32 parameters in one tensor; two threads
#   step    a step of fairscale's OffloadModel with activation checkpoints over linear layers, and of AdamW
#           where its parameters live, the host; the median
#
# OffloadModel wants a CUDA device. Its streams are made to do nothing and its copies to return what they
# were given, so that it computes on the CPU and is not held up by copies.
import contextlib
import sys
import time

import torch


def median_ms(call, times):
    taken = []
    call()
    for _ in range(times):
        began = time.perf_counter()
        call()
        taken.append((time.perf_counter() - began) * 1e3)
    return sorted(taken)[len(taken) // 2]


def adamw(count):
    x = torch.nn.Parameter(torch.ones(count))
    x.grad = torch.full((count,), 1e-3)
    return median_ms(torch.optim.AdamW([x], lr=1e-4, fused=True).step, 7)


class Stream:
    def __init__(self, *args, **kwargs):
        pass

    def wait_stream(self, other):
        pass


def step(layers, width, rows, slices, microbatches, steps):
    is_available, torch.cuda.is_available = torch.cuda.is_available, lambda: True
    torch.cuda.Stream = Stream
    torch.cuda.stream = lambda stream: contextlib.nullcontext()
    torch.cuda.device = lambda device: None
    torch.Tensor.cuda = lambda self, *device, **how: self
    torch.Tensor.pin_memory = lambda self, *device: self
    from fairscale.experimental.nn.offload import OffloadModel

    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(layers)))
    offload = OffloadModel(model=model, device=torch.device("cpu"), offload_device=torch.device("cpu"),
                           num_slices=slices, checkpoint_activation=True, num_microbatches=microbatches)
    torch.cuda.is_available = is_available
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.ones(rows, width)
    g = torch.ones(rows, width)

    def once():
        optimizer.zero_grad(set_to_none=False)
        offload(x).backward(g)
        optimizer.step()

    return median_ms(once, steps)


torch.set_num_threads(2)
arguments = [int(a) for a in sys.argv[2:]]
print(f"{ {'adamw': adamw, 'step': step}[sys.argv[1]](*arguments):.3f}")
