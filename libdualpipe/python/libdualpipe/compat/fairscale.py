# SPDX-License-Identifier: Apache-2.0
"""fairscale's AsyncPipe, a sequence of layers over several ranks, and its OffloadModel.

    from libdualpipe.compat.fairscale import AsyncPipe, OffloadModel

On the final stage the output is the model's, and its backward() is that of all ranks. A layer with
skips (`skippable`) sends them straight to the one that pops them.

Source: fairscale.nn.pipe.AsyncPipe and fairscale.experimental.nn.offload, 0.4.
"""
import os
import sys
import threading
import warnings
from collections import OrderedDict
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .._batch_norm import DeferredBatchNorm
from .._cuda import place_of
from .._group import comm_of
from .._native import check, ffi, lib, new_object, text_of
from .._offload import Autocast, Offload
from .._pipeline import Pipeline, Schedule, of_shape
from .._shapes import borders_of
from .._skips import Namespace, Skippable, pop, skippable, stash, verify_skippables
from .._stage import Batch, is_checkpointing, is_recomputing
from .._tensor import has_gradient

__all__ = [
    "AsyncPipe", "DeferredBatchNorm", "LazyModule", "Namespace", "OffloadModel",
    "is_checkpointing", "is_recomputing", "pop", "skippable", "stash", "verify_skippables"
]

Tensors = Union[Tensor, Tuple[Tensor, ...]]
MODES = ("always", "except_last", "never")


class LazyModule:
    """A layer that is made where it lives: LazyModule(function)."""
    def __init__(self, function: Callable[[], nn.Module]) -> None:
        self.function = function

    def __call__(self) -> nn.Module:
        return self.function()


class _Group:
    """Consecutive layers of this rank: a member of AsyncPipe.partitions."""
    def __init__(self, module: Any) -> None:
        self.module = module

    def __len__(self) -> int:
        return len(self.module)

    def __iter__(self) -> Iterator[nn.Module]:
        yield from self.module


class _Part:
    """A group as a stage of the pipeline. crossing: numbers of the skips between stages.
    takes_tuple, gives_tuple: whether its input, its last output is a tuple, also of one."""
    def __init__(self, module: nn.Module, crossing: Dict[Any, int]) -> None:
        self.module, self.crossing = module, crossing
        self.takes_tuple = self.gives_tuple = False

    def parameters(self) -> Iterator[nn.Parameter]:
        return self.module.parameters()

    def buffers(self) -> Iterator[Tensor]:
        return self.module.buffers()

    def __call__(self, *args: Tensor) -> Any:
        out = self.module(args if self.takes_tuple or len(args) > 1 else args[0])
        assert type(out) is not list, "Only Tensor or Tuple of Tensor output is supported"
        self.gives_tuple = isinstance(out, tuple)
        for place, tensor in enumerate(out if self.gives_tuple else (out, )):
            if not isinstance(tensor, Tensor):
                raise TypeError(f"expected Tensor as element {place} of the output, "
                                f"but got {type(tensor).__name__}")
        return out


class _MiniBatch:
    """One between its forward and its backward. given: the model's input."""
    def __init__(self, pipeline: Pipeline, batch: Batch, given: Sequence[Tensor]) -> None:
        self.pipeline, self.batch, self.given = pipeline, batch, given
        self.grads: List[Any] = [()] * pipeline.count  # of the outputs, by micro-batch

    def backward(self, is_last: bool) -> List[Optional[Tensor]]:
        """The backward of this rank. Returns the gradients of the input, where that came in."""
        self.pipeline.backward(self.grads if is_last else None)
        found: List[Optional[Tensor]] = []
        for tensor, parts in zip(self.given, zip(*self.batch.inputs)):
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parts]
            is_wanted = tensor.requires_grad and any(p.grad is not None for p in parts)
            found.append(torch.cat(grads) if is_wanted else None)
        return found


class _Begin(torch.autograd.Function):
    """Where the graph of the outputs begins, and the backward of all ranks."""
    @staticmethod
    def forward(ctx: Any, mini_batch: _MiniBatch, _anchor: Tensor, *_given: Tensor) -> Tensor:
        ctx.mini_batch = mini_batch
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, _grad: Tensor) -> Any:
        return (None, None, *ctx.mini_batch.backward(True))


class Recompute(_Begin):
    """The same, where micro-batches are computed again."""


class _Ended(torch.autograd.Function):
    """The outputs of a micro-batch."""
    @staticmethod
    def forward(ctx: Any, mini_batch: _MiniBatch, mb: int, _token: Tensor, *outs: Tensor) -> Any:
        ctx.mini_batch, ctx.mb = mini_batch, mb
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*[out for out in outs if not has_gradient(out.dtype)])
        return tuple(out.view_as(out) for out in outs)

    @staticmethod
    def backward(ctx: Any, *grads: Optional[Tensor]) -> Any:
        ctx.mini_batch.grads[ctx.mb] = grads
        return (None, None, torch.zeros(()), *[None] * len(grads))


class Checkpoint(_Ended):
    """The same of one that is computed again."""


class AsyncPipe(nn.Module):
    """The layers of this rank, and the whole as a function.

    module      a Sequential, or a list of layers or of functions that make one. A layer may stand
                in several places: it is one, on the rank of the first, which all others send to
    balance     layers of each rank, each counted once
    group       the ranks, the default group if None; ranks beyond the balance hold nothing
    worker_map  as there it has to be given, unless OMPI_COMM_WORLD_RANK is set and FORCE_RPC is
                not; no names of workers are used
    input_device    accepted; it is where the layers are
    chunks      micro-batches
    checkpoint  which of them are computed again before their backward: "always", "except_last" or
                "never"
    deferred_batch_norm    running statistics of batch norms are those of the whole batch

    Raises ValueError, IndexError and TypeError for wrong arguments, as fairscale does.
    """
    def __init__(self,
                 module: Union[nn.Sequential, Sequence[Any]],
                 balance: Iterable[int],
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
        self.balance, self.chunks, self.checkpoint = list(balance), chunks, checkpoint
        self.worker_map, self.input_device = worker_map, input_device
        named: List[Any] = list(module._modules.items() if isinstance(module, nn.Sequential) else
                                ((str(place), layer) for place, layer in enumerate(module)))
        self._check_balance([layer for _, layer in named])
        self.group = group or _pipeline_group()
        size, rank, stages = self.group.size(), self.group.rank(), len(self.balance)
        if size < stages:
            raise IndexError("too few ranks to hold given partitions "
                             f"(ranks: {size}, partitions: {stages})")
        self._is_unused = rank >= stages
        self._ranks = self.group
        if size > stages:
            if self._is_unused:
                warnings.warn("More ranks than partitions, some ranks unused")
            used = [dist.get_global_rank(self.group, r) for r in range(stages)]
            self._ranks = dist.new_group(used) if used else None
        self.pipeline: Optional[Dict[Any, Pipeline]] = None if self._is_unused else {}
        uses_rpc = "OMPI_COMM_WORLD_RANK" not in os.environ or "FORCE_RPC" in os.environ
        if worker_map is None and uses_rpc and not self._is_unused:
            raise ValueError("'RpcTransport' requires 'worker_map' to be set")
        self.lock = threading.Lock()
        self._cut(named)
        # With a layer in several places the model may end on any rank.
        end = self._cuts.invocation_count - 1
        self.final_stage = end >= 0 and self._cuts.invocations[end].at.stage == rank
        self.partitions = [] if self._is_unused else self._own_groups(module, named, rank)
        for place, part in enumerate(self.partitions):
            if deferred_batch_norm:
                part.module = DeferredBatchNorm.convert_deferred_batch_norm(part.module, chunks)
            self.add_module(str(place), part.module)
        self.partition = self.partitions[0].module if self.partitions else None
        self._held: Optional[_MiniBatch] = None

    def _check_balance(self, layers: List[Any]) -> None:
        total, distinct = sum(self.balance), len(set(map(id, layers)))
        if distinct != len(layers) and distinct != total:
            raise ValueError("module with duplicate children is not supported")
        if distinct != total:
            raise ValueError("module and sum of balance have different length "
                             f"(module: {len(layers)}, sum of balance: {total})")
        if any(count <= 0 for count in self.balance):
            raise ValueError("all balance numbers must be positive integer "
                             f"(balance: {self.balance})")
        for layer in layers:
            if not callable(layer):
                raise TypeError(f"layer must be nn.Module or callable, is {type(layer)}")

    def _cut(self, named: List[Any]) -> None:
        """Make the partition, and the skips between its stages."""
        first = {id(layer): place for place, (_, layer) in reversed(list(enumerate(named)))}
        layers = ffi.new("int32_t[]", [first[id(layer)] for _, layer in named])
        balance = ffi.new("int32_t[]", self.balance)
        spec = ffi.new("struct dp_partition_spec *",
                       {"layers": layers, "layer_count": len(named), "balance": balance,
                        "stages": len(self.balance)})
        self._cuts = ffi.gc(new_object(lib.dp_partition_new, "struct dp_partition", spec),
                            lib.dp_partition_free)
        skippables = [(place, layer) for place, (_, layer) in enumerate(named)
                      if isinstance(layer, Skippable) and first[id(layer)] == place]
        self._crossing: Dict[Any, int] = {}
        self._skips: List[Any] = []
        if not skippables:
            return
        verify_skippables(nn.Sequential(*[layer for _, layer in skippables]))
        begins = {key: place for place, layer in skippables for key in layer.stashable()}
        ends = {key: place for place, layer in skippables for key in layer.poppable()}
        keys = list(begins)
        declared = ffi.new("struct dp_skip[]", [{
            "name": b"%d" % number, "from": begins[key], "to": ends[key]
        } for number, key in enumerate(keys)])
        between, count = ffi.new("struct dp_skip[]", len(keys)), ffi.new("int *")
        check(lib.dp_skips_of_layers(self._cuts, declared, len(keys), between, count))
        self._skips = list(between[0:count[0]])
        self._crossing = {keys[n]: n for n in map(_number, self._skips)}
        self._kept = between

    def _own_groups(self, module: Any, named: List[Any], rank: int) -> List[_Group]:
        """Those of this rank, with their layers made."""
        found, cuts = [], self._cuts
        for group in cuts.groups[0:cuts.group_count]:
            if group.at.stage != rank:
                continue
            layers = OrderedDict()
            for place in cuts.positions[group.first:group.first + group.count]:
                name, layer = named[place]
                layers[name] = layer if isinstance(layer, nn.Module) else layer()
                if isinstance(layers[name], Skippable) and not isinstance(module, nn.Sequential):
                    raise ValueError("Can't use Skippable layers with multi-process pipe and lazy "
                                     "construction")
            found.append(_Group(nn.Sequential(layers)))
        return found

    def __len__(self) -> int:
        return sum(map(len, self.partitions))

    def __getitem__(self, index: int) -> nn.Module:
        return list(self)[index]

    def __iter__(self) -> Iterator[nn.Module]:
        for part in self.partitions:
            yield from part

    def forward(self, input: Tensors, *, event: Any = None) -> Tensors:  # fairscale's name
        """The output on the final stage, whose backward() is that of all ranks. The others return
        their input, in training after the backward. Where a rank evaluates, all do. Every rank
        gives an input with as many rows; that of the first one is used. Raises TypeError for what is
        no tensor."""
        _check_tensors(input)
        if self.pipeline is None:
            return input
        given = input if isinstance(input, tuple) else (input, )
        with self.lock:
            return self._forward(given, isinstance(input, tuple), input)

    def _forward(self, given: Tuple[Tensor, ...], is_tuple: bool, input: Tensors) -> Tensors:
        cut = [tensor.detach().chunk(self.chunks) for tensor in given]
        if len(set(map(len, cut))) != 1:
            raise ValueError(f"tensors of {[len(tensor) for tensor in given]} rows make "
                             f"{list(map(len, cut))} micro-batches, expected as many of each")
        held, self._held = self._held, None
        if held is not None and held.pipeline.is_held:  # the other ranks still wait for it
            held.pipeline.drop(RuntimeError("a forward in training without a backward"))
        is_training = self._all_train()
        batch = Batch()
        batch.inputs, batch.keep_outputs = list(zip(*cut)), True
        pipeline = self._pipeline_of(batch, is_tuple, is_training)
        for module in self.modules() if is_training else ():
            if isinstance(module, DeferredBatchNorm):
                module.begin(pipeline.count)
        if not is_training:
            pipeline.step(batch)
            return self._merged(pipeline, batch) if self.final_stage else input
        for part in batch.inputs:
            for tensor, whole in zip(part, given):
                tensor.requires_grad_(whole.requires_grad)
        outputs = pipeline.forward(batch).outputs
        mini_batch = _MiniBatch(pipeline, batch, given)
        if self.final_stage:
            self._held = mini_batch
            return self._merged(pipeline, batch, self._graph(mini_batch, outputs))
        for tensor, grad in zip(given, mini_batch.backward(False)):
            if grad is not None:
                tensor.backward(grad)
        return input

    def _all_train(self) -> bool:
        """Whether this step trains: where one rank evaluates, all do."""
        comm, trains = comm_of(self._ranks), torch.is_grad_enabled() and self.training
        flags = ffi.new("bool[]", comm.size)
        with comm.call():
            comm.check(lib.dp_comm_allgather(comm.pointer, ffi.new("bool *", trains), flags, 1))
        return all(flags)

    def _graph(self, mini_batch: _MiniBatch, outputs: Dict[int, Any]) -> Dict[int, Any]:
        """Outputs of micro-batches with the graph that leads to the backward of all ranks."""
        count = len(outputs)
        again = {"always": count, "except_last": count - 1, "never": 0}[self.checkpoint]
        begin = Recompute if again else _Begin
        token = begin.apply(mini_batch, torch.zeros((), requires_grad=True), *mini_batch.given)
        made = {}
        for mb in sorted(outputs):
            outs = outputs[mb] if isinstance(outputs[mb], tuple) else (outputs[mb], )
            ended = Checkpoint if mb < again else _Ended
            made[mb] = ended.apply(mini_batch, mb, token, *[out.detach() for out in outs])
        return made

    @staticmethod
    def _merged(pipeline: Pipeline, batch: Batch, outputs: Any = None) -> Tensors:
        found = batch.outputs if outputs is None else outputs
        parts = [found[mb] for mb in sorted(found)]
        merged = tuple(torch.cat(some) for some in
                       zip(*[part if isinstance(part, tuple) else (part, ) for part in parts]))
        return merged if pipeline.stages[-1].module.gives_tuple else merged[0]

    def _pipeline_of(self, batch: Batch, is_tuple: bool, is_training: bool) -> Pipeline:
        """The pipeline of these shapes."""
        assert self.pipeline is not None
        rows = [part[0].shape[0] for part in batch.inputs]
        if len(set(rows)) > 1:
            batch.rows = rows
        ends = [batch.inputs[0], batch.inputs[-1]] if batch.rows else [batch.inputs[0]]
        place = place_of([part.module for part in self.partitions], batch.inputs[0])
        key = (tuple(rows), tuple((t.shape, t.dtype) for t in batch.inputs[0]), is_tuple,
               is_training, place)

        def make() -> Pipeline:
            schedule = Schedule("async",
                                len(self.balance),
                                len(rows),
                                forward_only=not is_training,
                                recompute=self.checkpoint if is_training else "never",
                                partition=self._cuts,
                                skips=self._skips)
            slots = schedule.slots(self._ranks.rank())
            parts = [_Part(self.partitions[s.location].module, self._crossing) for s in slots]
            for part, slot in zip(parts, slots):
                part.takes_tuple = is_tuple and slot.prev < 0
            borders, skips = borders_of(self._ranks, schedule, parts, ends, {})
            return Pipeline(comm_of(self._ranks),
                            schedule,
                            parts,
                            borders,
                            split=None,
                            own_gradients=is_training,
                            skips=[skips[_number(skip)] for skip in self._skips],
                            rows=rows[0],
                            place=place)

        return of_shape(self.pipeline, key, make)

    def back_helper(self, output: Tensors) -> None:
        """Nothing: forward() has waited for the backward. Raises ValueError on the final stage."""
        if self.final_stage:
            raise ValueError("back_helper should only be called on non-final stages")


def _pipeline_group() -> Any:
    """The one that a program has made by fairscale's initialize_model_parallel, or the default."""
    module = sys.modules.get("fairscale.nn.model_parallel.initialize")
    made = getattr(module, "_PIPELINE_PARALLEL_GROUP", None)
    return made or dist.distributed_c10d._get_default_group()


def _check_tensors(input: Any) -> None:
    if isinstance(input, tuple):
        for each in input:
            _check_tensors(each)
    elif not isinstance(input, Tensor):
        raise TypeError(f"expected Tensor, but got {type(input).__name__}")


def _number(skip: Any) -> int:
    return int(ffi.string(skip.name))


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
    device                 where it computes: the host, or a GPU, to which inputs are brought, and
                           where buffers are from now on
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
        for where, known in ((device, ("cpu", "cuda")), (offload_device, ("cpu", ))):
            kind = torch.device(where).type
            if kind not in known:
                raise TypeError(f"a device of type {kind}, expected {' or '.join(known)}")
        if not checkpoint_activation and num_microbatches > 1:
            raise RuntimeError(
                "We currently only support microbatches with activation checkpointing.")
        self.device, self.offload_device = device, offload_device
        parts = model if type(model) is list else _slices(model, num_slices)
        self.model_slices: List[nn.Module] = [
            ModelShard(part, device, offload_device, place) for place, part in enumerate(parts)
        ]
        self._model = nn.Sequential(*self.model_slices)
        self._place = torch.empty(0, device=device).device
        for buffer in self.buffers():
            buffer.data = buffer.data.to(self._place)
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
               Autocast(self._place.type).state)
        if self._engine is None or key != self._key:
            self._key = key
            self._engine = Offload(self.model_slices, inputs, self._checkpoint_activation,
                                   self._num_microbatches, self._place)
        return self._engine

    def forward(self, *inputs: Tensor, **_: Any) -> Any:
        """The output, of which backward() goes through all slices, the last one first. Only that of
        the last output."""
        inputs = tuple(tensor.to(self._place) for tensor in inputs)
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
