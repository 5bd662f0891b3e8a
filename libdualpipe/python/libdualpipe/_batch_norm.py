# SPDX-License-Identifier: Apache-2.0
"""Batch normalisation whose running statistics are those of the mini-batch.

Source: torchgpipe; fairscale.nn.pipe.batchnorm, 0.4.
"""
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ._stage import is_recomputing


class DeferredBatchNorm(_BatchNorm):
    """Each micro-batch is normalised by itself. The running statistics move once in `chunks` of
    them, by the mean and the (biased) variance of all. AsyncPipe sets chunks to what a batch has
    been cut into."""

    sum: Tensor
    sum_squares: Tensor

    def __init__(self,
                 num_features: int,
                 eps: float = 1e-5,
                 momentum: Optional[float] = 0.1,
                 affine: bool = True,
                 chunks: int = 1) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats=True)
        self.register_buffer("sum", torch.zeros_like(self.running_mean))
        self.register_buffer("sum_squares", torch.zeros_like(self.running_var))
        self.counter = self.tracked = 0
        self.chunks = chunks

    def _check_input_dim(self, input: Tensor) -> None:
        """Rows of channels are accepted, too."""

    def begin(self, chunks: int) -> None:
        """A batch of so many micro-batches comes; what is left of one that failed is forgotten."""
        self.chunks, self.counter, self.tracked = chunks, 0, 0
        self.sum.zero_()
        self.sum_squares.zero_()

    @torch.no_grad()
    def _track(self, input: Tensor) -> None:
        others = [0, *range(2, input.dim())]
        self.sum += input.sum(others)
        self.sum_squares += (input**2).sum(others)
        self.counter += input.numel() // input.size(1)
        self.tracked += 1
        if self.tracked == self.chunks:
            self._commit()

    def _commit(self) -> None:
        self.num_batches_tracked += 1
        share = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        mean = self.sum / self.counter
        self.running_mean.mul_(1 - share).add_(mean * share)
        self.running_var.mul_(1 - share).add_((self.sum_squares / self.counter - mean**2) * share)
        self.begin(self.chunks)

    def forward(self, input: Tensor) -> Tensor:
        """[rows, channels, ...] normalised."""
        if not self.training:
            return F.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias,
                                False, 0.0, self.eps)
        if not is_recomputing():
            self._track(input)
        return F.batch_norm(input, None, None, self.weight, self.bias, True, 0.0, self.eps)

    @classmethod
    def convert_deferred_batch_norm(cls, module: nn.Module, chunks: int = 1) -> Any:
        """The module with these in place of its batch norms that have running statistics, over the
        same parameters and buffers."""
        if isinstance(module, DeferredBatchNorm) and module.chunks == chunks:
            return module
        made = module
        if isinstance(module, _BatchNorm) and module.track_running_stats:
            made = DeferredBatchNorm(module.num_features, module.eps, module.momentum,
                                     module.affine, chunks)
            if module.affine:
                made.weight, made.bias = module.weight, module.bias
            for name in ("running_mean", "running_var", "num_batches_tracked"):
                setattr(made, name, getattr(module, name))
            made.train(module.training)
        for name, child in module.named_children():
            made.add_module(name, cls.convert_deferred_batch_norm(child, chunks))
        return made
