# SPDX-License-Identifier: Apache-2.0
"""fairscale's AsyncPipe: a sequence of layers over several ranks, driven by messages.

    from libdualpipe.compat.fairscale import AsyncPipe

On the final stage the output is the model's, and its backward() is that of all ranks; the others
call `back_helper(output)`. Not here yet: layers with skip connections, a layer used several times,
and deferred batch norm, which are refused.

Source: fairscale.nn.pipe.AsyncPipe, 0.4.
"""
import warnings
from collections import OrderedDict
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .._group import comm_of
from .._pipeline import Pipeline, Schedule
from .._shapes import borders_of
from .._stage import Batch

Tensors = Union[Tensor, Tuple[Tensor, ...]]
MODES = ("always", "except_last", "never")


class _Outputs(torch.autograd.Function):
    """The outputs of all micro-batches as the model's, whose gradient begins the backward of
    all."""
    @staticmethod
    def forward(ctx: Any, pipeline: Pipeline, _seed: Tensor, *outs: Tensor) -> Tensor:
        ctx.pipeline, ctx.rows = pipeline, [out.shape[0] for out in outs]
        return torch.cat(outs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        ctx.pipeline.backward([(part, ) for part in grads[0].split(ctx.rows)])
        return (None, None) + (None, ) * len(ctx.rows)


class AsyncPipe(nn.Module):
    """The layers of this rank, and the whole as a function.

    module      a Sequential, or a list of layers or of functions that make one
    balance     layers of each rank
    group       the ranks, the default group if None; ranks beyond the balance hold nothing
    chunks      micro-batches
    checkpoint  which of them are computed again before their backward: "always", "except_last" or
                "never"

    Raises ValueError, IndexError and TypeError for wrong arguments, as fairscale does.
    """
    def __init__(self,
                 module: Union[nn.Sequential, Sequence[Any]],
                 balance: Sequence[int],
                 *,
                 group: Optional[dist.ProcessGroup] = None,
                 worker_map: Optional[Dict[int, str]] = None,
                 input_device: Optional[Any] = None,
                 chunks: int = 1,
                 checkpoint: str = "except_last",
                 deferred_batch_norm: bool = False) -> None:
        super().__init__()
        if chunks <= 0:
            raise ValueError("number of chunks must be positive integer")
        if checkpoint not in MODES:
            raise ValueError("checkpoint is not one of 'always', 'except_last', or 'never'")
        if deferred_batch_norm:
            raise NotImplementedError("deferred batch norm, expected deferred_batch_norm=False")
        self.balance, self.chunks, self.checkpoint = list(balance), chunks, checkpoint
        self._check_balance(module)
        self.group = group or dist.distributed_c10d._get_default_group()
        size, rank = self.group.size(), self.group.rank()
        if size < len(self.balance):
            raise IndexError("too few ranks to hold given partitions "
                             f"(ranks: {size}, partitions: {len(self.balance)})")
        self.final_stage, self._is_unused = rank == len(self.balance) - 1, rank >= len(self.balance)
        if size > len(self.balance):
            warnings.warn("More ranks than partitions, some ranks unused")
            used = [dist.get_global_rank(self.group, r) for r in range(len(self.balance))]
            self.group = dist.new_group(used)
        self.partition = self._own_layers(module, rank)
        self.partitions = [] if self._is_unused else [self.partition]
        self._pipelines: Dict[Any, Pipeline] = {}
        self._last: Optional[Pipeline] = None

    def _check_balance(self, module: Any) -> None:
        if not all(callable(layer) for layer in module):
            raise TypeError("module must be a Sequential, or a list of layers")
        if len(set(map(id, module))) != len(module):
            raise ValueError("module with duplicate children is not supported")
        total = sum(self.balance)
        if len(module) != total:
            raise ValueError("module and sum of balance have different length "
                             f"(module: {len(module)}, sum of balance: {total})")
        if any(count <= 0 for count in self.balance):
            raise ValueError("all balance numbers must be positive integer "
                             f"(balance: {self.balance})")

    def _own_layers(self, module: Any, rank: int) -> nn.Sequential:
        if isinstance(module, nn.Sequential):
            named = list(module.named_children())
        else:
            named = [(str(place), layer) for place, layer in enumerate(module)]
        first = sum(self.balance[:rank])
        own = [] if self._is_unused else named[first:first + self.balance[rank]]
        return nn.Sequential(
            OrderedDict(
                (name, layer if isinstance(layer, nn.Module) else layer()) for name, layer in own))

    def __len__(self) -> int:
        return len(self.partition)

    def __getitem__(self, index: int) -> nn.Module:
        return self.partition[index]

    def __iter__(self) -> Iterator[nn.Module]:
        yield from self.partition

    def forward(self, input: Tensors) -> Tensors:  # fairscale's name
        """The output on the final stage, the input elsewhere. Every rank gives an input with as
        many rows; that of the first one is used. Raises TypeError for what is no tensor."""
        given = input if isinstance(input, tuple) else (input, )
        for tensor in given:
            if not isinstance(tensor, Tensor):
                raise TypeError(f"expected Tensor, but got {type(tensor).__name__}")
        if self._is_unused:
            return input
        chunks: List[Tuple[Tensor, ...]] = list(zip(*(t.chunk(self.chunks) for t in given)))
        is_training = torch.is_grad_enabled() and self.training
        pipeline, batch = self._pipeline(chunks, is_training), Batch()
        batch.inputs, batch.keep_outputs = chunks, True
        if not is_training:
            pipeline.step(batch)
            return self._merged(batch) if self.final_stage else input
        outputs = pipeline.forward(batch).outputs
        self._last = pipeline
        if not self.final_stage:
            return input
        seed = torch.zeros((), requires_grad=True)
        return _Outputs.apply(pipeline, seed, *[outputs[i].detach() for i in sorted(outputs)])

    @staticmethod
    def _merged(batch: Batch) -> Tensor:
        return torch.cat([batch.outputs[i] for i in sorted(batch.outputs)])

    def _pipeline(self, chunks: List[Tuple[Tensor, ...]], is_training: bool) -> Pipeline:
        key = (len(chunks), tuple(t.shape for t in chunks[0]), is_training)
        if key not in self._pipelines:
            schedule = Schedule("async",
                                len(self.balance),
                                len(chunks),
                                forward_only=not is_training,
                                recompute=self.checkpoint if is_training else "never")
            borders = borders_of(self.group, schedule, [self.partition], chunks[0], {})
            self._pipelines[key] = Pipeline(comm_of(self.group),
                                            schedule, [self.partition],
                                            borders,
                                            split=None,
                                            own_gradients=is_training)
        return self._pipelines[key]

    def back_helper(self, output: Tensors) -> None:
        """The backward of a rank that is not the final stage, together with backward() there.
        Raises ValueError on the final stage."""
        if self._is_unused:
            return
        if self.final_stage:
            raise ValueError("back_helper should only be called on non-final stages")
        assert self._last is not None, "back_helper without a forward before"
        self._last.backward()
