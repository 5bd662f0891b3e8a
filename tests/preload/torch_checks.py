# SPDX-License-Identifier: Apache-2.0
"""What PyTorch does on a CPU, for tests/preload/torch.sh: prints the same with and without the preload
library. Under torchrun its ranks reduce over gloo."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, TensorDataset


def double(queue):
    queue.put(float(torch.arange(10).sum()) * 2)


def check_gradients():
    layer = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2)).double()
    x = torch.randn(3, 4, dtype=torch.double, requires_grad=True)
    print("gradcheck", torch.autograd.gradcheck(layer, x))


def check_training():
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(64, 16), torch.randn(64, 1))
    for x, y in DataLoader(data, batch_size=16, num_workers=2):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    print("loss", float(torch.nn.functional.mse_loss(model(data.tensors[0]), data.tensors[1])))


def check_processes():
    for method in ("fork", "spawn"):
        context = mp.get_context(method)
        queue = context.SimpleQueue()
        process = context.Process(target=double, args=(queue,))
        process.start()
        print(method, queue.get())
        process.join()
        print("exit code", process.exitcode)


def check_cuda():
    print("cuda", torch.cuda.is_available(), torch.cuda.device_count())
    try:
        torch.zeros(1).pin_memory()
        print("pinned")
    except RuntimeError as error:
        print("pin_memory:", str(error).splitlines()[0])


def check_ranks():
    dist.init_process_group("gloo")
    x = torch.full((1 << 20,), float(dist.get_rank() + 1))
    dist.all_reduce(x)
    print("sum", float(x[0]), float(x[-1]))
    dist.destroy_process_group()


def main():
    torch.manual_seed(7)
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        check_ranks()
        return
    check_gradients()
    check_training()
    check_processes()
    check_cuda()


if __name__ == "__main__":
    sys.exit(main())
