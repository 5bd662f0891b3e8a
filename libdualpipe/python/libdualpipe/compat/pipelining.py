# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.pipelining: its schedule classes by their names, over torch's own
PipelineStage.

    from libdualpipe.compat.pipelining import PipelineStage, Schedule1F1B

A class is torch's with steps that the library takes: orders, arguments, checks, how batches are cut
and merged, and scaled gradients are torch's, also those of a subclass with an order of its own or
of _PipelineScheduleRuntime with a CSV file. What is not here is torch's own. So are steps of stages
that torch has traced, that have a weight part of their own (dw_builder) or a context around
their forwards, or that FSDP or DDP has wrapped, steps of a schedule with custom functions, and
those of a process group that connects no ranks (backend "fake").

Source: torch.distributed.pipelining.schedules, 2.6 to 2.15.
"""
from typing import Any, Callable, Dict, List, Optional, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage, microbatch, schedules
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map_only

from .._cuda import place_of
from .._group import comm_of, is_fake
from .._pipeline import Pipeline, Schedule
from .._shapes import borders_of
from .._stage import Batch

__all__ = [
    "PipelineScheduleMulti", "PipelineScheduleSingle", "PipelineStage", "Schedule1F1B",
    "ScheduleDualPipeV", "ScheduleGPipe", "ScheduleInterleaved1F1B",
    "ScheduleInterleavedZeroBubble", "ScheduleLoopedBFS", "ScheduleZBVZeroBubble",
    "TensorChunkSpec", "get_schedule_class", "merge_chunks", "split_args_kwargs_into_chunks"
]

COMPUTES = ("FORWARD", "FULL_BACKWARD", "BACKWARD_INPUT", "BACKWARD_WEIGHT", "OVERLAP_F_B")
ARGUMENTS = ("arg_mbs", "kwarg_mbs", "target_mbs", "losses", "return_outputs", "loss_kwargs")


def __getattr__(name: str) -> Any:
    for module in (schedules, microbatch, pipelining):
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _is_plain(stage: Any) -> bool:
    """Whether a module is all that a stage is."""
    return (isinstance(stage, PipelineStage) and getattr(stage, "dw_builder", None) is None
            and not getattr(stage, "_forward_contexts", None)
            and not isinstance(stage.submod, DistributedDataParallel)
            and not type(stage.submod).__name__.startswith("FSDP"))


class _Runs:
    """Before a class of torch's: its steps are the library's. An exception of a stage or of the
    loss keeps its type on its rank; DualpipeError elsewhere."""

    kind = ""  # of the library's, where torch has no list of operations
    _pipelines: Dict[bool, Pipeline]

    def eval(self: Any, *args: Any, **kwargs: Any) -> Any:
        """The forwards of a step alone."""
        had_backward, self._has_backward = self._has_backward, False
        try:
            return self.step(*args, **kwargs)
        finally:
            self._has_backward = had_backward

    def _step_microbatches(self: Any, *args: Any, **kwargs: Any) -> None:
        stages = self._stages if hasattr(self, "_stages") else [self._stage]
        group = stages[0].group or dist.distributed_c10d._get_default_group()
        if getattr(self, "_comp_type_to_function_map", None) or is_fake(group) or \
                not all(map(_is_plain, stages)):
            super()._step_microbatches(*args, **kwargs)  # type: ignore[misc]
            return
        given = {**dict(zip(ARGUMENTS, args)), **kwargs}
        if self.kind == "forward" and (given["target_mbs"], given["losses"]) != (None, None):
            raise RuntimeError("Forward-only schedule does not support loss computation")
        with comm_of(group).call():
            self._take(group, stages, **given)

    def _take(self: Any,
              group: Any,
              stages: Sequence[Any],
              arg_mbs: Optional[List[Any]] = None,
              kwarg_mbs: Optional[List[Any]] = None,
              target_mbs: Optional[List[Any]] = None,
              losses: Optional[List[Any]] = None,
              return_outputs: bool = True,
              loss_kwargs: Optional[Dict[str, Any]] = None) -> None:
        trains = self._has_backward and self.kind != "forward"
        batch, last = Batch(), next((stage for stage in stages if stage.is_last), None)
        batch.inputs, batch.kwargs = self._check_inputs(arg_mbs, kwarg_mbs, target_mbs, losses)
        batch.keep_outputs, batch.whole = return_outputs, True
        pipeline = self._pipeline_of(group, stages, batch, trains)
        if last is not None and self._loss_fn is not None:
            if target_mbs is not None:
                batch.labels = [(target, ) for target in target_mbs]
                batch.criterion = self._criterion(loss_kwargs)
            elif trains:
                raise TypeError("target is None, expected that of the batch")
        pipeline.step(batch)
        if last is not None:
            chunks = [batch.outputs[mb] for mb in sorted(batch.outputs)]
            # As torch, which lets go of the graph where it has sent a gradient on.
            last.output_chunks = tree_map_only(torch.Tensor, torch.Tensor.detach, chunks) \
                if trains and not last.is_first else chunks
            self._internal_losses = [batch.losses[mb] for mb in sorted(batch.losses)]
            self._update_losses(stages, losses)
        for stage in stages if trains and getattr(self, "scale_grads", False) else ():  # since 2.7
            stage.scale_grads(self._n_microbatches)

    def _criterion(self: Any, loss_kwargs: Optional[Dict[str, Any]]) -> Callable[..., Any]:
        """Of the stage's output and a target."""
        more = (loss_kwargs, ) if loss_kwargs else ()

        return lambda output, target: self._compute_loss(output, target, *more)

    def _pipeline_of(self: Any, group: Any, stages: Sequence[Any], batch: Batch,
                     trains: bool) -> Pipeline:
        """The pipeline, made by the first step of its kind."""
        pipelines = self.__dict__.setdefault("_pipelines", {})
        order = None
        if not self.kind:
            order = getattr(self, "pipeline_order_with_comms", None) or self.pipeline_order
        if pipelines.get("order") is not order:  # another list has been loaded
            pipelines.clear()
            pipelines["order"] = order
        if trains not in pipelines:
            if order is None:
                kind = "gpipe" if self.kind == "forward" else self.kind
                schedule = Schedule(kind, group.size(), self._n_microbatches,
                                    forward_only=not trains)
            else:
                schedule = Schedule.read("\n".join(map(_row, order.values())), "pytorch")
                schedule = schedule if trains else schedule.forward()
            by_index = {stage.stage_index: stage.submod for stage in stages}
            indices = [slot.stage for slot in schedule.slots(group.rank())]
            if sorted(indices) != sorted(by_index):
                raise ValueError(f"stages {sorted(by_index)} on rank {group.rank()}, "
                                 f"expected {sorted(indices)}")
            modules: List[nn.Module] = [by_index[index] for index in indices]
            borders, _ = borders_of(group, schedule, modules, [batch.inputs[0]], batch.kwargs[0])
            pipelines[trains] = Pipeline(comm_of(group), schedule, modules, borders, split="graph",
                                         place=place_of(modules, batch.inputs[0]))
        return pipelines[trains]


def _row(actions: Sequence[Any]) -> str:
    """A rank's computes as torch writes them."""
    return ",".join(
        str(action) for action in actions
        if action is not None and action.computation_type.name in COMPUTES)


def _actions(cell: str) -> List[str]:
    """An overlapped pair is one, where torch has such."""
    is_pair = cell.startswith("(") and not hasattr(schedules._ComputationType, "OVERLAP_F_B")
    return cell[1:cell.index(")")].split(";") if is_pair else [cell]


def _own(name: str, kind: str = "") -> Any:
    """Torch's class of that name over the library; where torch has none, the library's kind."""
    base = getattr(schedules, name, None)
    if base is not None:
        single = issubclass(base, schedules.PipelineScheduleSingle)
        members = {"kind": kind} if single else {}
        members.update(__doc__=base.__doc__, __module__=__name__)
        return type(name, (_Runs, base), members)

    def __init__(self: Any, stages: List[Any], n_microbatches: int, *args: Any, **kw: Any) -> None:
        schedules.PipelineScheduleMulti.__init__(self, stages, n_microbatches, *args, **kw)
        rows = Schedule(kind, self.pp_group_size, n_microbatches).write("pytorch").splitlines()
        self.pipeline_order = {
            rank: [schedules._Action.from_str(action) for cell in row.split(",")
                   for action in _actions(cell)]
            for rank, row in enumerate(rows)
        }
        if hasattr(self, "_validate_and_set_stage_mapping"):  # since 2.7
            self._validate_and_set_stage_mapping(self.pipeline_order)

    return type(name, (_Runs, schedules.PipelineScheduleMulti), {"__init__": __init__})


PipelineScheduleSingle = schedules.PipelineScheduleSingle
PipelineScheduleMulti = _own("PipelineScheduleMulti")
_PipelineScheduleRuntime = _own("_PipelineScheduleRuntime")
_ScheduleForwardOnly = _own("_ScheduleForwardOnly", "forward")
ScheduleGPipe = _own("ScheduleGPipe", "gpipe")
Schedule1F1B = _own("Schedule1F1B", "1f1b")
ScheduleLoopedBFS = _own("ScheduleLoopedBFS")
ScheduleInterleaved1F1B = _own("ScheduleInterleaved1F1B", "interleaved")
ScheduleInterleavedZeroBubble = _own("ScheduleInterleavedZeroBubble", "zb1p")
ScheduleZBVZeroBubble = _own("ScheduleZBVZeroBubble", "zbv")
ScheduleDualPipeV = _own("ScheduleDualPipeV", "dualpipev")

# Each is over torch's, so that the bases have to be told.
for _base in (PipelineScheduleMulti, _PipelineScheduleRuntime):
    for _made in (_PipelineScheduleRuntime, ScheduleLoopedBFS, ScheduleInterleaved1F1B,
                  ScheduleInterleavedZeroBubble, ScheduleZBVZeroBubble, ScheduleDualPipeV):
        if issubclass(_made, _base.__bases__[1]):
            _base.register(_made)

TensorChunkSpec = microbatch.TensorChunkSpec
merge_chunks = microbatch.merge_chunks
split_args_kwargs_into_chunks = microbatch.split_args_kwargs_into_chunks


def get_schedule_class(schedule_name: str) -> Any:
    """The class of that name, in any case. Raises ValueError for another one."""
    return globals()[schedules.get_schedule_class(schedule_name).__name__]
