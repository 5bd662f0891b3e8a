# SPDX-License-Identifier: Apache-2.0
"""Decent-DP: the same class, topologies and optimizers, by their own names.

    from libdualpipe.compat.decent_dp import DecentralizedDataParallel

Each rank trains its own copy of the model and averages it with a few others, while the next
iteration computes. Parameters stay where they are. On the host they may be given other memory
between iterations; another layout only before the second one. On a GPU, where all is queued in the
stream of torch's that is the current one when the model is wrapped, and others wait for it, messages
go from GPU to GPU by NCCL, from where the parameters are: between iterations nothing may write them,
such as load_state_dict or a clamp, except after global_avg.

Source: decent-dp 0.2.3.
"""
import math
import os
import weakref
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, Type

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import (CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR)

from .._cuda import HOST, Links, Stream, device_of, have_links, in_stream, place_of
from .._group import comm_of
from .._native import callback, ffi, lib, new_object, owned, text_of
from .._tensor import Views, describe, describe_all

OPTIM_FN_TYPE = Callable[[List[Tuple[str, Tensor]]], Optimizer]
LR_SCHEDULER_FN_TYPE = Callable[[Optimizer], LRScheduler]
NamedTensors = List[Tuple[str, Tensor]]

# ---- topologies ----


@dataclass
class Edge:
    """Ranks that average with each other in a round; each keeps `weight` of its own value."""

    ranks: List[int]
    weight: float
    group: Optional[dist.ProcessGroup] = None


class Topology:
    """A list of rounds, each of which has every rank in one edge. A subclass gives _get_topo_edges,
    and may look at _world_size, _local_world_size and _n_nodes.

    Raises AssertionError for a number of ranks that is no multiple of local_world_size, ValueError
    for edges that are not sound."""
    def __init__(self, local_world_size: int) -> None:
        assert dist.is_available() and dist.is_initialized(), \
            "Distributed environment is not initialized"
        self._rank, self._world_size = dist.get_rank(), dist.get_world_size()
        self._local_world_size = local_world_size
        assert self._world_size % local_world_size == 0, \
            f"{self._world_size} ranks, expected a multiple of {local_world_size}"
        self._n_nodes = self._world_size // local_world_size
        rounds = self._get_topo_edges()
        for edges in rounds:
            for edge in edges:
                edge.ranks.sort()
            ranks = sorted(rank for edge in edges for rank in edge.ranks)
            if ranks != list(range(self._world_size)):
                raise ValueError(f"a round of the ranks {ranks}, expected each of "
                                 f"{self._world_size} once")
        self._rounds = rounds
        self._edges = [next(edge for edge in edges if self._rank in edge.ranks) for edges in rounds]
        self._process_groups: Dict[Tuple[int, ...], Any] = {}

    def _get_topo_edges(self) -> List[List[Edge]]:
        raise NotImplementedError()

    def get_edge(self, step: int) -> Edge:
        """This rank's edge in an iteration."""
        return self._edges[step % len(self._edges)]

    def with_group(self, edge: Edge) -> Edge:
        """An edge of this rank with a process group of its ranks, which all of them ask for."""
        if edge.group is None:
            ranks = tuple(edge.ranks)
            if ranks not in self._process_groups:
                self._process_groups[ranks] = dist.new_group(edge.ranks,
                                                             use_local_synchronization=True)
            edge.group = self._process_groups[ranks]
        return edge

    def graph(self) -> Any:
        """A struct dp_graph *, which the caller frees."""
        builder = new_object(lib.dp_graph_builder_new, "struct dp_graph_builder", b"python",
                             self._world_size, self._local_world_size)
        for edges in self._rounds:
            lib.dp_graph_add_round(builder)
            for edge in edges:
                lib.dp_graph_add_group(builder, edge.ranks, len(edge.ranks), edge.weight)
        return new_object(lib.dp_graph_builder_end, "struct dp_graph", builder)


class TopologyReg:
    """Topologies by name."""

    registry: Dict[str, Type[Topology]] = {}

    @classmethod
    def register(cls, name: str) -> Callable[[Type[Topology]], Type[Topology]]:
        """A decorator that registers a subclass of Topology. Raises ValueError for a name that is
        taken and for another type."""
        def add(topology: Type[Topology]) -> Type[Topology]:
            if name in cls.registry:
                raise ValueError(f"Topology {name} already registered")
            if not issubclass(topology, Topology):
                raise ValueError(f"Topology {name} must extend class Topology")
            cls.registry[name] = topology
            return topology

        return add


class _Named(Topology):
    """One that the library has."""

    name = ""

    def _get_topo_edges(self) -> List[List[Edge]]:
        name = ffi.new("char[]", self.name.encode())
        spec = ffi.new("struct dp_graph_spec *",
                       {"name": name, "workers": self._world_size, "local": self._local_world_size})
        out = ffi.new("struct dp_graph **")
        if lib.dp_graph_new(spec, out) < 0:
            raise ValueError(text_of(lib.dp_last_error()))
        graph = ffi.gc(out[0], lib.dp_graph_free)
        return [[self._edge(graph, group) for group in self._groups(graph, number)]
                for number in range(graph.period)]

    @staticmethod
    def _groups(graph: Any, number: int) -> List[Any]:
        first = graph.rounds[number].first_group
        return [graph.groups[first + i] for i in range(graph.rounds[number].group_count)]

    @staticmethod
    def _edge(graph: Any, group: Any) -> Edge:
        return Edge([graph.members[group.first + i] for i in range(group.count)], group.self)


@TopologyReg.register("complete")
class CompleteTopology(_Named):
    """All ranks average in each round."""

    name = "complete"


@TopologyReg.register("ring")
class RingTopology(_Named):
    """Pairs of neighbours, to the one side and to the other in turns. Of an even number."""

    name = "ring"


@TopologyReg.register("one-peer-exp")
class OnePeerExpTopology(_Named):
    """Pairs at a distance of 1, 2, 4 ... Of a power of two."""

    name = "one-peer-exp"


@TopologyReg.register("alternating-exp-ring")
class AlternatingExpRingTopology(_Named):
    """The same of whole nodes, in turns with averages within each. Of a power of two of nodes."""

    name = "alternating-exp-ring"


# ---- the class ----


class DecentralizedDataParallel(Module):
    """A model whose copies on all ranks are averaged over a topology during the backward.

    model                    moved nowhere; parameters become those of rank 0
    optim_fn                 [(name, parameter)] -> optimizer, called for each bucket
    lr_scheduler_fn          optimizer -> scheduler, which steps with each update
    topology                 a name of TopologyReg.registry
    scaler                   a GradScaler of the losses
    grad_clip_norm           limits the norm of each bucket's gradients; 0: none
    param_as_bucket_view     accepted; parameters stay where they are either way, with the same bits
    sync_buffer_in_global_avg  average buffers of float16, float32 and float64, too
    bucket_size_in_mb        of 2^20 bytes
    _local_world_size        ranks of a node; None: LOCAL_WORLD_SIZE, or 1

    On a GPU parameters are of float32 or float64 and one bucket, which is updated in the first
    iteration, too; and a group of more than two ranks adds up in another order than on the host.

    Raises AssertionError without a process group, KeyError for a topology that is not registered,
    ValueError for one that does not fit the number of ranks, RuntimeError for parameters on a GPU
    in a group without NCCL, or where a rank has none of its own, and, from the first backward
    there, for an optimizer with a pre_average_hook; DualpipeError where ranks differ.
    """

    FLOAT_DTYPES = [torch.float16, torch.float32, torch.float64]

    def __init__(self,
                 model: Module,
                 optim_fn: OPTIM_FN_TYPE,
                 lr_scheduler_fn: Optional[LR_SCHEDULER_FN_TYPE] = None,
                 topology: str = "complete",
                 scaler: Optional[Any] = None,
                 grad_clip_norm: float = 0.0,
                 param_as_bucket_view: bool = True,
                 sync_buffer_in_global_avg: bool = False,
                 bucket_size_in_mb: float = 25,
                 _local_world_size: Optional[int] = None) -> None:
        super().__init__()
        assert dist.is_available() and dist.is_initialized(), \
            "Distributed environment is not initialized"
        if _local_world_size is None:
            _local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        self._model = model
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._params: List[Tensor] = [p for _, p in named]
        self._topo = TopologyReg.registry[topology](_local_world_size)
        self._updates = _Updates(named, self._topo, optim_fn, lr_scheduler_fn, scaler,
                                 grad_clip_norm)
        self._comm = comm_of()
        self._is_grad_accum_enable = False
        self._has_backup = False
        self._count = _Count()
        buffers = [b for b in model.buffers() if b.dtype in self.FLOAT_DTYPES]
        self._buffers_of_all = buffers if sync_buffer_in_global_avg else []
        self._stream: Any = None  # of torch's, on a GPU
        self._open(named, bucket_size_in_mb)
        this = weakref.ref(self)
        for number, (_, parameter) in enumerate(named):
            parameter.register_post_accumulate_grad_hook(_hook(this, number))

    def _open(self, named: NamedTensors, bucket_size: float) -> None:
        place = place_of((), self._params)
        with self._comm.call():
            can_link = have_links(self._comm, device_of(place))
            if place != HOST and not can_link:
                raise RuntimeError(
                    f"parameters on {place} in a process group of {dist.get_backend()}, expected one "
                    "with NCCL and two ranks or more, an NCCL that can be loaded and, on each rank, "
                    "parameters on a GPU of its own")
            self._make(named, bucket_size, place)
            if place != HOST:
                self._begin_equal()

    def _begin_equal(self) -> None:
        """Parameters on a GPU become those of rank 0."""
        for p in self._params:
            value = p.data.cpu()
            self._comm.check(lib.dp_comm_broadcast(
                self._comm.pointer, ffi.cast("void *", value.data_ptr()),
                value.numel() * value.element_size(), 0))
            p.data.copy_(value)

    def _make(self, named: NamedTensors, bucket_size: float, where: torch.device) -> None:
        buffers = self._buffers_of_all if where == HOST else []
        self._values = [p.data for _, p in named]  # what the mixer works in
        self._addresses = [value.data_ptr() for value in self._values]
        kept: List[Any] = [self._updates, self._comm, self._values]
        parameters = ffi.new("struct dp_parameter[]", max(len(named), 1))
        for place, (name, parameter) in zip(parameters, named):
            text = ffi.new("char[]", name.encode())
            place.name, place.value = text, describe(parameter.data, kept)
            # Where the gradient is, is said when it is ready: the update that reads it is ours.
            place.grad = describe(parameter.data, kept)
            kept.append(text)
        kept = [each for each in kept if not isinstance(each, Tensor)]  # parameters may move
        graph = ffi.gc(self._topo.graph(), lib.dp_graph_free)
        config = ffi.new(
            "struct dp_mixer_config *", {
                "parameters": parameters, "count": len(named), "graph": graph,
                "comm": self._comm.pointer, "bucket_bytes": bucket_size * 2**20, "separate": True,
                "compat": True, "update": lib.dpy_update, "pre_average": lib.dpy_pre_average,
                "user": self._updates.handle, "rate": 1.0,
                "buffers": describe_all(buffers, kept) if buffers else ffi.NULL,
                "buffer_count": len(buffers), "average_buffers": bool(buffers)
            })
        config.optimizer = lib.dp_optimizer_defaults(lib.DP_OPTIMIZER_SGD)
        kept += [parameters, graph, config]
        if where != HOST:
            self._set_device(config, graph, where, kept)
        self._mixer = new_object(lib.dp_mixer_new, "struct dp_mixer", config,
                                 comm=self._comm.pointer)
        self._parameters_of_mixer, self._updates.mixer = parameters, self._mixer
        self._close = owned(self, lib.dp_mixer_free, self._mixer, kept,
                            lock=self._comm.lock)

    def _set_device(self, config: Any, graph: Any, place: torch.device, kept: List[Any]) -> None:
        device = device_of(place)
        assert device is not None
        self._stream = torch.cuda.current_stream(place)
        stream = Stream(device, self._stream)
        links = Links(self._comm, device,
                      lambda out: int(lib.dp_mixer_nccl_peers(graph, self._comm.rank, out)))
        config.device, config.stream, config.comm = device.pointer, stream.pointer, links.pointer
        config.pre_average = ffi.NULL
        kept += [stream, links]

    # -- an iteration

    def _ready(self, number: int) -> None:
        """The gradient of a parameter is complete."""
        if self._is_grad_accum_enable:
            return
        grad = None if self._stream is None else self._params[number].grad
        if grad is not None:  # of another stream's memory, maybe
            for part in (grad._indices(), grad._values()) if grad.is_sparse else (grad, ):
                part.record_stream(self._stream)
        self._count.came += 1
        if not self._count.is_begun:
            self._count.is_begun = True
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_is_over)
        with self._comm.lock, in_stream(self._stream):
            err = lib.dp_mixer_ready(self._mixer, number)
            if err < 0:
                raise self._comm.failure(err)

    def _do(self, function: Any, *args: Any) -> None:
        with self._comm.lock, in_stream(self._stream):
            self._comm.check(function(self._mixer, *args))

    def _find_moved(self) -> None:
        """Parameters on the host may have other memory than before. Raises RuntimeError for another
        type or shape, once there are buckets for another layout, and on a GPU, there for all ranks."""
        for number, p in enumerate(self._params):
            if p.data_ptr() == self._addresses[number]:
                continue
            was = self._values[number]
            of = (p.dtype, p.device, p.shape, p.stride())
            if was.is_cuda:
                error = RuntimeError(
                    f"parameter {self._updates.named[number][0]!r} has other memory, expected that "
                    "which it had when the model was wrapped")
                self._comm.abort(error)  # whose stream waits for it
                raise error
            strides = was.stride() if self._updates.optimizers else torch.empty_like(p).stride()
            expected = (was.dtype, was.device, was.shape, strides)
            if of != expected:
                raise RuntimeError(f"parameter {self._updates.named[number][0]!r} has become {of}, "
                                   f"expected {expected}")
            place = self._parameters_of_mixer[number]
            for tensor in (place.value, place.grad):
                tensor.data = ffi.cast("void *", p.data_ptr())
                for i, stride in enumerate(p.stride()):
                    tensor.strides[i] = stride
            self._values[number], self._addresses[number] = p.data, p.data_ptr()

    def _backward_is_over(self) -> None:
        """Or that of a reentrant checkpoint in it, which autograd does not tell apart: an iteration
        of fewer gradients than the first one had ends with what comes next."""
        self._count.is_begun = False
        if 0 < self._count.expected <= self._count.came:
            self._end_iteration()

    def _end_iteration(self) -> None:
        came, self._count.came = self._count.came, 0
        if came:
            self._count.expected = self._count.expected or came
            self._do(lib.dp_mixer_step)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's output. The first call after the first backward makes the buckets and updates
        them with its gradients, all ranks together. An exception of the model's in training is one
        for all ranks, which end together: this wrapper takes no step after it, caught or not."""
        self._count.is_begun = False
        self._find_moved()
        self._end_iteration()
        self._do(lib.dp_mixer_forward, self._model.training)
        try:
            return self._model(*args, **kwargs)
        except BaseException as error:
            if self._model.training and torch.is_grad_enabled():  # the others wait for it
                self._comm.abort(error)
            raise

    def set_accumulate_grad(self, enable: bool = True) -> None:
        """Gradients of the backwards from now on are added up and not used yet. Switch it off
        before the forward of the last one."""
        self._end_iteration()
        self._is_grad_accum_enable = enable
        self._do(lib.dp_mixer_accumulate, enable)

    def set_adaptive_factor(self, factor: float) -> None:
        """From the next mix on parameters become (1 - factor) of themselves and factor of their
        average; above 0, up to 1. The same on all ranks."""
        self._end_iteration()
        self._do(lib.dp_mixer_set_factor, factor)

    def get_lr(self) -> float:
        """The learning rate of the first bucket; 0 before there is one. Raises AssertionError
        without a scheduler."""
        return self._updates.rate()

    # -- the average of all

    @torch.no_grad()
    def global_avg(self, will_revert: bool = True, return_d2c: bool = False) -> Optional[float]:
        """Parameters become the average of all ranks', which take part together; with will_revert
        until revert_global_avg. Returns the distance of this rank's to it if return_d2c is set."""
        self._find_moved()
        self._end_iteration()
        on_host = self._stream is None
        what = ffi.new("struct dp_mixer_average *",
                       {"revert": will_revert, "distance": return_d2c})
        with in_stream(self._stream):
            before = [p.clone() for p in self._params] if return_d2c and not on_host else []
            self._do(lib.dp_mixer_average, what)
            for buffer in self._buffers_of_all if not on_host else ():
                dist.all_reduce(buffer.mul_(1 / dist.get_world_size()))
            if before:
                what.l2 = math.sqrt(sum(float(((p - was) * (p - was)).sum())
                                        for p, was in zip(self._params, before)))
        self._has_backup = self._has_backup or will_revert or return_d2c
        return what.l2 if return_d2c else None

    @torch.no_grad()
    def revert_global_avg(self) -> None:
        """Parameters become what they were before the last global_avg with one of its arguments;
        again, if they have changed since. Raises RuntimeError without one."""
        if not self._has_backup:
            raise RuntimeError("No backup found for reverting global average")
        self._find_moved()
        self._do(lib.dp_mixer_revert)

    # -- the model's

    def train(self, mode: bool = True) -> "DecentralizedDataParallel":
        """Set the model's mode."""
        self._model.train(mode)
        return self

    def eval(self) -> "DecentralizedDataParallel":
        """Set the model's mode."""
        self._model.eval()
        return self

    def parameters(self, recurse: bool = True) -> Iterator[torch.nn.Parameter]:
        """The model's."""
        yield from self._model.parameters(recurse)

    @property
    def _optims(self) -> List[Optimizer]:
        return [self._updates.optimizers[i] for i in sorted(self._updates.optimizers)]

    @property
    def _lr_schedulers(self) -> List[Optional[LRScheduler]]:
        return [self._updates.schedulers[i] for i in sorted(self._updates.schedulers)]


class _Count:
    """Gradients that came in this backward, and as many as came in the first one."""
    def __init__(self) -> None:
        self.came = self.expected = 0
        self.is_begun = False


def _hook(this: Any, number: int) -> Callable[[Tensor], None]:
    """Of a parameter. It does not keep the wrapper, whose model it is part of."""
    def ready(_parameter: Tensor) -> None:
        wrapper = this()
        if wrapper is not None:
            wrapper._ready(number)

    return ready


class _Updates:
    """The optimizers and schedulers of the buckets: what the mixer calls."""
    def __init__(self, named: NamedTensors, topology: Topology, optim_fn: OPTIM_FN_TYPE,
                 scheduler_fn: Optional[LR_SCHEDULER_FN_TYPE], scaler: Any, clip: float) -> None:
        self.named, self.topology, self.optim_fn = named, topology, optim_fn
        self.scheduler_fn, self.scaler, self.clip = scheduler_fn, scaler, clip
        self.optimizers: Dict[int, Optimizer] = {}
        self.fusible: Dict[int, bool] = {}
        self.sent: Dict[int, int] = {}  # the round of the first exchange, mixed as the next
        self.schedulers: Dict[int, Optional[LRScheduler]] = {}
        self.mixer: Any = None
        self.handle = ffi.new_handle(self)

    def rate(self) -> float:
        if not self.optimizers:
            return 0.0
        scheduler = self.schedulers[0]
        assert scheduler is not None, "No learning rate scheduler is defined"
        return scheduler.get_last_lr()[0]

    def _open(self, info: Any) -> Optimizer:
        bucket = [self.named[info.parameters[i]] for i in range(info.count)]
        optimizer = self.optimizers[info.bucket] = self.optim_fn(bucket)
        self.schedulers[info.bucket] = self.scheduler_fn(optimizer) if self.scheduler_fn else None
        self.fusible[info.bucket] = _is_fusible(optimizer)
        if hasattr(optimizer, "pre_average_hook"):  # before the first update, too
            if bucket[0][1].is_cuda:
                raise RuntimeError(f"{type(optimizer).__name__} has a pre_average_hook, expected one "
                                   "without, or parameters on the host")
            for _, p in bucket:
                setattr(p, "comm_buffer", p.detach().clone())
            self._call_hook(optimizer, 1)
            self.sent[info.bucket] = 1
        return optimizer

    @torch.no_grad()
    def update(self, info: Any) -> None:
        """Carry the update of a bucket out."""
        optimizer = self.optimizers.get(info.bucket) or self._open(info)
        if not info.skip:
            self._step(optimizer, [self.named[info.parameters[i]][1] for i in range(info.count)],
                       info.bucket)
        optimizer.zero_grad()
        scheduler = self.schedulers[info.bucket]
        if scheduler is not None:
            scheduler.step()

    def _step(self, optimizer: Optimizer, parameters: List[Tensor], bucket: int) -> None:
        scaler = self.scaler
        if scaler is not None and self.clip > 0:
            scaler.unscale_(optimizer)
        if self.clip > 0:
            torch.nn.utils.clip_grad_norm_(parameters, self.clip)
        with _fused(optimizer, parameters if self.fusible[bucket] else []):
            if scaler is None:
                optimizer.step()
                return
            scaler.step(optimizer)
        report = ffi.new("struct dp_mixer_report *")
        lib.dp_mixer_report(self.mixer, report)
        if bucket + 1 == report.buckets:
            scaler.update()

    def _call_hook(self, optimizer: Any, iteration: int) -> None:
        edge = self.topology.with_group(self.topology.get_edge(iteration))
        optimizer.pre_average_hook(edge, edge.weight)

    @torch.no_grad()
    def pre_average(self, info: Any) -> None:
        """An optimizer may look at what is going to be mixed, as Decent-DP has it: the sum of all
        ranks' shares. Of a pair the library has the other one's alone."""
        optimizer = self.optimizers.get(info.bucket)
        if not hasattr(optimizer, "pre_average_hook"):
            return
        edge, beside = self.topology.get_edge(self.sent.pop(info.bucket, info.round)), []
        share = 1 - edge.weight if len(edge.ranks) == 2 else 0.0
        for i in range(info.count):
            p: Any = self.named[info.parameters[i]][1]
            kept: List[Any] = []
            described = describe(p.data, kept)
            described.data = info.received[i]
            received = Views().of(described)
            torch.add(received, p, alpha=share, out=p.comm_buffer)
            beside.append((received, p))
        self._call_hook(optimizer, info.round)
        for received, p in beside:
            torch.sub(p.comm_buffer, p, alpha=share, out=received)


def _is_fusible(optimizer: Optimizer) -> bool:
    """Whether it is torch's Adam, of which nothing is asked that torch's fused update of tensors on
    the host has not: it takes their memory for dense."""
    return type(optimizer) in (torch.optim.Adam, torch.optim.AdamW) and all(
        group["fused"] is None and group["foreach"] is None and not group["capturable"]
        and not group["differentiable"] and not isinstance(group["lr"], Tensor) and all(
            p.device.type == "cpu" and p.dtype in (torch.float32, torch.float64)
            and p.stride() == torch.empty_like(p).stride() for p in group["params"])
        for group in optimizer.param_groups)


@contextmanager
def _fused(optimizer: Optimizer, parameters: List[Any]) -> Iterator[None]:
    """Where these are those of a fusible one, and gradients and moments lie as they do, its step is
    the fused one. Its state says nothing of it."""
    fits = bool(parameters)
    for p in parameters:
        grad, lies, state = p.grad, (p.dtype, p.stride()), optimizer.state.get(p, {}).values()
        moments = [x for x in state if isinstance(x, Tensor) and x.dim()]
        for x in moments if grad is None else (grad, *moments):
            fits = fits and x.layout == torch.strided and (x.dtype, x.stride()) == lies
    for group in optimizer.param_groups if fits else ():
        group["fused"] = True
    try:
        yield
    finally:
        for group in optimizer.param_groups if fits else ():
            group["fused"] = None


@callback("dpy_update")
def _update(user: Any, info: Any) -> None:
    ffi.from_handle(user).update(info)


@callback("dpy_pre_average")
def _pre_average(user: Any, info: Any) -> None:
    ffi.from_handle(user).pre_average(info)


# ---- optimizers and a schedule ----


def accum_adam_foreach(params: List[Tensor], grads: List[Tensor], exp_avgs: List[Tensor],
                       exp_avg_sqs: List[Tensor], accum_grads: List[Tensor],
                       state_steps: List[Tensor], beta1: float, beta2: float, lr: float,
                       weight_decay: float, eps: float, accum_iter: int) -> None:
    """An update of AccumAdam: of parameters and what it keeps of each, in one order."""
    torch._foreach_add_(state_steps, 1)
    if weight_decay != 0:
        torch._foreach_add_(grads, params, alpha=weight_decay)
    torch._foreach_add_(accum_grads, grads, alpha=1.0 / accum_iter)
    step = int(state_steps[0].item())
    epoch = (step + accum_iter - 1) // accum_iter
    numerator = torch._foreach_add(exp_avgs, grads, alpha=1 - beta1)
    denominator = torch._foreach_addcmul(exp_avg_sqs, grads, grads, value=1 - beta2)
    torch._foreach_sqrt_(denominator)
    torch._foreach_div_(denominator, math.sqrt(1 - beta2**epoch))
    torch._foreach_add_(denominator, eps)
    torch._foreach_addcdiv_(params, numerator, denominator, value=-(lr / (1 - beta1**epoch)))
    if step % accum_iter == 0:
        torch._foreach_add_(exp_avgs, accum_grads, alpha=1 - beta1)
        torch._foreach_mul_(exp_avgs, beta1)
        torch._foreach_addcmul_(exp_avg_sqs, accum_grads, accum_grads, value=1 - beta2)
        torch._foreach_mul_(exp_avg_sqs, beta2)
        torch._foreach_zero_(accum_grads)


def accum_adamw_foreach(params: List[Tensor], grads: List[Tensor], exp_avgs: List[Tensor],
                        exp_avg_sqs: List[Tensor], accum_grads: List[Tensor],
                        state_steps: List[Tensor], beta1: float, beta2: float, lr: float,
                        weight_decay: float, eps: float, accum_iter: int) -> None:
    """An update of AccumAdamW, likewise."""
    if weight_decay != 0:
        torch._foreach_mul_(params, 1 - lr * weight_decay)
    accum_adam_foreach(params, grads, exp_avgs, exp_avg_sqs, accum_grads, state_steps, beta1, beta2,
                       lr, 0, eps, accum_iter)


class AccumAdam(Optimizer):
    """Adam whose moments move once in accum_iter steps, by the mean of their gradients; every step
    updates, with its own gradient added for the time being."""

    _foreach: Any = staticmethod(accum_adam_foreach)

    def __init__(self,
                 params: Any,
                 lr: float = 1e-3,
                 betas: Tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8,
                 weight_decay: float = 0,
                 accum_iter: int = 4) -> None:
        super().__init__(
            params, {
                "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
                "accum_iter": accum_iter
            })

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """One update; parameters without a gradient are left out."""
        assert closure is None
        for group in self.param_groups:
            found = [p for p in group["params"] if p.grad is not None]
            if found:
                self._update(group, found)

    def _update(self, group: Dict[str, Any], found: List[Tensor]) -> None:
        for p in found:
            if not self.state[p]:
                self.state[p]["step"] = torch.tensor(0, dtype=torch.int64)
                for name in ("exp_avg", "exp_avg_sq", "accum_grad"):
                    self.state[p][name] = torch.zeros_like(p, memory_format=torch.preserve_format)
        kept = ([self.state[p][name] for p in found]
                for name in ("exp_avg", "exp_avg_sq", "accum_grad", "step"))
        rates = (group[name] for name in ("lr", "weight_decay", "eps", "accum_iter"))
        self._foreach(found, [p.grad for p in found], *kept, *group["betas"], *rates)


class AccumAdamW(AccumAdam):
    """AccumAdam with weight decay apart from the gradient."""

    _foreach = staticmethod(accum_adamw_foreach)


def _groups(params: NamedTensors, weight_decay: float) -> List[Dict[str, Any]]:
    """As Decent-DP groups them: biases and batch norms decay, all others do not."""
    decays = [("bn" in name) or ("bias" in name) for name, _ in params]
    return [{
        "params": [p for (_, p), chosen in zip(params, decays)
                   if chosen == wanted], "weight_decay": weight_decay if wanted else 0.0
    } for wanted in (False, True)]


def optim_fn_adam(params: NamedTensors,
                  lr: float = 1e-3,
                  beta1: float = 0.9,
                  beta2: float = 0.999,
                  weight_decay: float = 1.0 / 32768,
                  eps: float = 1e-8) -> Optimizer:
    """Adam of a bucket."""
    return torch.optim.Adam(_groups(params, weight_decay), lr=lr, betas=(beta1, beta2), eps=eps)


def optim_fn_adamw(params: NamedTensors,
                   lr: float = 1e-3,
                   beta1: float = 0.9,
                   beta2: float = 0.999,
                   weight_decay: float = 0.1,
                   eps: float = 1e-8) -> Optimizer:
    """AdamW of a bucket."""
    return torch.optim.AdamW(_groups(params, weight_decay), lr=lr, betas=(beta1, beta2), eps=eps)


def optim_fn_accum_adam(params: NamedTensors,
                        lr: float = 1e-3,
                        beta1: float = 0.9,
                        beta2: float = 0.999,
                        eps: float = 1e-8,
                        weight_decay: float = 1.0 / 32768,
                        accum_iter: int = 4) -> Optimizer:
    """AccumAdam of a bucket."""
    return AccumAdam(_groups(params, weight_decay), lr, (beta1, beta2), eps, accum_iter=accum_iter)


def optim_fn_accum_adamw(params: NamedTensors,
                         lr: float = 1e-3,
                         beta1: float = 0.9,
                         beta2: float = 0.999,
                         eps: float = 1e-8,
                         weight_decay: float = 0.1,
                         accum_iter: int = 4) -> Optimizer:
    """AccumAdamW of a bucket."""
    return AccumAdamW(_groups(params, weight_decay), lr, (beta1, beta2), eps, accum_iter=accum_iter)


def lr_scheduler_fn_cosine_with_warmup(optimizer: Optimizer,
                                       t_max: int,
                                       t_warmup: int,
                                       cosine_eta_min: float = 1e-6,
                                       warmup_decay: float = 0.01) -> LRScheduler:
    """A rate that rises for t_warmup steps and then falls for t_max along a cosine."""
    fall = CosineAnnealingLR(optimizer, T_max=t_max, eta_min=cosine_eta_min)
    rise = LinearLR(optimizer, start_factor=warmup_decay, total_iters=t_warmup)
    return SequentialLR(optimizer, schedulers=[rise, fall], milestones=[t_warmup])


def initialize_dist() -> Tuple[int, int]:
    """Make the process group by torchrun's variables: nccl where CUDA_VISIBLE_DEVICES lists a GPU
    for each process of the host, of which this one keeps its own; otherwise gloo. Returns rank and
    number of ranks. Raises ValueError for another number of GPUs."""
    local, count = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if gpus:
        listed = gpus.split(",")
        if len(listed) != count:
            raise ValueError(
                f"CUDA_VISIBLE_DEVICES lists {len(listed)}, LOCAL_WORLD_SIZE is {count}")
        os.environ["CUDA_VISIBLE_DEVICES"] = listed[local]
    dist.init_process_group(backend="nccl" if gpus else "gloo")
    return dist.get_rank(), dist.get_world_size()
