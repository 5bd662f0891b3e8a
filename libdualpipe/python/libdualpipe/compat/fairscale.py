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
from .._native import ffi, lib, text_of
from .._offload import Autocast, Offload
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


class ModelShard(nn.Module):
    """A part of a model that is on the device as a whole. index: which one."""
    def __init__(self, cpu_model_shard: nn.Module, device: Any, offload_device: Any,
                 index: int) -> None:
        super().__init__()
        self.model_shard, self.index = cpu_model_shard, index
        self.device, self.offload_device = device, offload_device

    def forward(self, *inputs: Any) -> Any:
        """The part's output."""
        # An empty Sequential takes one value: the part of a model that has fewer than slices.
        return self.model_shard(*inputs)


class _Offloaded(torch.autograd.Function):
    """A whole model. Its gradients begin with an anchor, so that integers may go in."""
    @staticmethod
    def forward(ctx: Any, model: "OffloadModel", _anchor: Tensor, *inputs: Tensor) -> Any:
        ctx.model, ctx.engine, ctx.inputs = model, model._engine_of(inputs), inputs
        outs = ctx.engine.forward(inputs, True)
        ctx.step = ctx.engine.steps
        return outs[0] if len(outs) == 1 else tuple(outs)

    @staticmethod
    def backward(ctx: Any, *grads: Optional[Tensor]) -> Any:
        if ctx.model._checkpoint_activation and not torch.autograd._is_checkpoint_valid():
            raise RuntimeError("Checkpointing is not compatible with .grad(), please use "
                               ".backward() if possible")
        if ctx.engine is not ctx.model._engine or ctx.step != ctx.engine.steps:
            raise RuntimeError("backward() of an output that is not the last one's: a forward of "
                               "the same OffloadModel came after it")
        wanted = [
            torch.empty_like(tensor, memory_format=torch.contiguous_format) if needed else None
            for tensor, needed in zip(ctx.inputs, ctx.needs_input_grad[2:])
        ]
        ctx.engine.backward(grads, wanted)
        return (None, None, *wanted)


class OffloadModel(nn.Module):
    """A sequence of layers whose parameters are on the host, and pass over the device in slices.

    model                  a Sequential, which is cut into slices of similar size, or a list of
                           modules, which are the slices
    device                 where it computes: the host
    offload_device         where parameters, gradients and the optimizer's state are: the host
    num_slices             at most
    checkpoint_activation  keep what crosses between slices alone, and compute the rest again
    num_microbatches       a batch is cut into, within each slice

    Inputs are any number of tensors, of which all have the batch in dimension 0; what they require
    they get gradients of. Parameters are where they have been for the optimizer: the same objects,
    moved into pinned memory by the first forward.

    Raises TypeError for wrong arguments, RuntimeError for micro-batches without checkpoints, as
    fairscale does; ValueError for num_slices below 1.
    """
    def __init__(self,
                 model: Any,
                 device: Any,
                 offload_device: Any = torch.device("cpu"),
                 num_slices: int = 3,
                 checkpoint_activation: bool = False,
                 num_microbatches: int = 1) -> None:
        super().__init__()
        for name, given in (("model", model), ("device", device)):
            if not given:
                raise TypeError(f"`{name}` argument to `OffloadModel` cannot be None.")
        if not (isinstance(model, nn.Sequential) or type(model) is list):
            raise TypeError("`model` argument to `OffloadModel` must be of type `nn.Sequential`.")
        for where in (device, offload_device):
            if torch.device(where).type != "cpu":
                raise TypeError(f"a device of type {torch.device(where).type}, expected cpu")
        if not checkpoint_activation and num_microbatches > 1:
            raise RuntimeError(
                "We currently only support microbatches with activation checkpointing.")
        self.device, self.offload_device = device, offload_device
        parts = model if type(model) is list else _slices(model, num_slices)
        self.model_slices: List[nn.Module] = [
            ModelShard(part, device, offload_device, place) for place, part in enumerate(parts)
        ]
        self._model = nn.Sequential(*self.model_slices)
        self._checkpoint_activation = checkpoint_activation
        self._num_microbatches = num_microbatches
        self._engine: Optional[Offload] = None
        self._key: Any = None
        self._anchor = torch.zeros((), requires_grad=True)

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_engine": None}

    def _engine_of(self, inputs: Sequence[Tensor]) -> Offload:
        """The library's model of these shapes, types and frozen parameters."""
        key = ([(t.shape, t.dtype) for t in inputs], [p.requires_grad for p in self.parameters()],
               Autocast().state)
        if self._engine is None or key != self._key:
            self._key = key
            self._engine = Offload(self.model_slices, inputs, self._checkpoint_activation,
                                   self._num_microbatches)
        return self._engine

    def forward(self, *inputs: Tensor, **_: Any) -> Any:
        """The output, of which backward() goes through all slices, the last one first. Only that of
        the last output."""
        if torch.is_grad_enabled():
            return _Offloaded.apply(self, self._anchor, *inputs)
        outs = self._engine_of(inputs).forward(inputs, False)
        return outs[0] if len(outs) == 1 else tuple(outs)


def _slices(model: nn.Sequential, count: int) -> List[nn.Sequential]:
    """Layers by fairscale's rule: by their number of parameters."""
    layers = list(model)
    sizes = [sum(p.numel() for p in layer.parameters()) for layer in layers]
    first, found = ffi.new("int32_t[]", max(count, 0) + 1), ffi.new("int32_t *")
    if lib.dp_offload_split(lib.DP_OFFLOAD_SPLIT_COMPAT, sizes, len(sizes), count, first,
                            found) < 0:
        raise ValueError(text_of(lib.dp_last_error()))
    return [nn.Sequential(*layers[first[i]:first[i + 1]]) for i in range(found[0])]
