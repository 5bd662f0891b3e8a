# SPDX-License-Identifier: Apache-2.0
"""libdualpipe: pipeline-parallel and decentralized data-parallel training steps for PyTorch.

An existing program changes an import and keeps the rest:

    libdualpipe.compat.deepseek    DualPipe, DualPipeV of DeepSeek's dualpipe
    libdualpipe.compat.pipelining  the schedules of torch.distributed.pipelining
    libdualpipe.compat.fairscale   AsyncPipe, OffloadModel
    libdualpipe.compat.decent_dp   DecentralizedDataParallel

Ranks are those of a torch.distributed process group. An exception of a stage keeps its type and
traceback on its rank; the other ranks get a DualpipeError that names it. `python -m libdualpipe`
says what was found. torch is imported when one of these modules is, not by this one.
"""
from ._native import DualpipeError, version

__version__ = version()
__all__ = ["DualpipeError", "version"]
