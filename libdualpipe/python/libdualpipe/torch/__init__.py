# SPDX-License-Identifier: Apache-2.0
"""libdualpipe.torch: this library's own classes for PyTorch.

    Trainer     any list of modules over P stages x D replicas: schedule, optimizer, checkpoints
    Result      what a step was like
    checkpoint  state dicts to and from the library's checkpoints
    Schedule    libdualpipe.schedule's, whose "pytorch" is the CSV of torch.distributed.pipelining
"""
from ..schedule import Schedule
from . import checkpoint
from ._trainer import Result, Trainer

__all__ = ["Result", "Schedule", "Trainer", "checkpoint"]
