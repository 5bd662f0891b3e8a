# SPDX-License-Identifier: Apache-2.0
"""libdualpipe.torch: this library's own classes for PyTorch.

    Trainer     any list of modules over P stages x D replicas: schedule, optimizer, checkpoints
    Result      what a step was like
"""
from ._trainer import Result, Trainer

__all__ = ["Result", "Trainer"]
