# SPDX-License-Identifier: Apache-2.0
"""libdualpipe: pipeline-parallel and decentralized data-parallel training steps for PyTorch.

An existing program changes an import and keeps the rest:

    libdualpipe.compat.deepseek    DualPipe, DualPipeV of DeepSeek's dualpipe
    libdualpipe.compat.pipelining  the schedules of torch.distributed.pipelining
    libdualpipe.compat.fairscale   AsyncPipe, OffloadModel
    libdualpipe.compat.decent_dp   DecentralizedDataParallel

This library's own:

    libdualpipe.torch              Trainer, checkpoint: a list of modules over P stages x D replicas
    libdualpipe.schedule           schedules as data: checked, simulated, drawn
    libdualpipe.topology, .placement, .tuning    machines, who works where, collectives of NCCL

Ranks are those of a torch.distributed process group. An exception of a stage keeps its type and
traceback on its rank; the other ranks get a DualpipeError that names it. `python -m libdualpipe`
says what was found. torch is imported when .compat or .torch is.
"""
from ._native import DualpipeError, version

__version__ = version()
__all__ = ["DualpipeError", "version"]
