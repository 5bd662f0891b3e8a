# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.pipelining: its schedule classes by their names, over torch's own
PipelineStage.

    from libdualpipe.compat.pipelining import Schedule1F1B

Not here yet: lists from a CSV (_PipelineScheduleRuntime), and stages of FSDP or DDP.

Source: torch.distributed.pipelining.schedules, 2.6 to 2.15.
"""
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist
from torch.distributed.pipelining.microbatch import (TensorChunkSpec, merge_chunks,
                                                     split_args_kwargs_into_chunks)

from .._group import comm_of
from .._pipeline import Pipeline, Schedule
from .._shapes import borders_of
from .._stage import Batch

__all__ = [
    "ScheduleGPipe", "Schedule1F1B", "ScheduleInterleaved1F1B", "ScheduleInterleavedZeroBubble",
    "ScheduleZBVZeroBubble", "ScheduleDualPipeV", "TensorChunkSpec", "merge_chunks",
    "split_args_kwargs_into_chunks"
]


class _Schedule:
    """The stages of this rank under a schedule.

    stage             a PipelineStage, or a list of them in the order of their indices
    n_microbatches    of a step
    loss_fn           loss = loss_fn(output, target)
    args_chunk_spec, kwargs_chunk_spec, output_merge_spec  as split_args_kwargs_into_chunks and
                      merge_chunks take them
    scale_grads       gradients are those of the mean of the micro-batches' losses
    """

    kind = ""

    def __init__(self,
                 stage: Any,
                 n_microbatches: int,
                 loss_fn: Optional[Callable[..., torch.Tensor]] = None,
                 args_chunk_spec: Optional[Tuple[Any, ...]] = None,
                 kwargs_chunk_spec: Optional[Dict[str, Any]] = None,
                 output_merge_spec: Union[Dict[str, Any], Tuple[Any, ...], None] = None,
                 scale_grads: bool = True) -> None:
        stages = list(stage) if isinstance(stage, (list, tuple)) else [stage]
        self._stages, self._loss_fn = stages, loss_fn
        self._n_microbatches, self.scale_grads = n_microbatches, scale_grads
        self._args_spec, self._kwargs_spec = args_chunk_spec, kwargs_chunk_spec
        self._output_spec, self._has_backward = output_merge_spec, loss_fn is not None
        self._group = stages[0].group or dist.distributed_c10d._get_default_group()
        self._check(stages)
        self._pipelines: Dict[bool, Pipeline] = {}

    def _check(self, stages: Sequence[Any]) -> None:
        size, count = self._group.size(), len(stages)
        if stages[0].num_stages != size * count:
            raise ValueError(f"{stages[0].num_stages} stages on {size} ranks with {count} each, "
                             f"expected {size * count}")

    def _pipeline(self, args: Sequence[Any], kwargs: Dict[str, Any], trains: bool) -> Pipeline:
        if trains not in self._pipelines:
            modules = [stage.submod for stage in self._stages]
            virtual = len(modules) if self.kind == "interleaved" else 0
            schedule = Schedule(self.kind,
                                self._group.size(),
                                self._n_microbatches,
                                forward_only=not trains,
                                virtual_stages=virtual)
            indices = [slot.stage for slot in schedule.slots(self._group.rank())]
            if indices != [stage.stage_index for stage in self._stages]:
                raise ValueError(f"stages {[stage.stage_index for stage in self._stages]} on rank "
                                 f"{self._group.rank()}, expected {indices}")
            borders, _ = borders_of(self._group, schedule, modules, [args], kwargs)
            self._pipelines[trains] = Pipeline(comm_of(self._group),
                                               schedule,
                                               modules,
                                               borders,
                                               split="graph")
        return self._pipelines[trains]

    def step(self,
             *args: Any,
             target: Any = None,
             losses: Optional[List[torch.Tensor]] = None,
             return_outputs: bool = True,
             **kwargs: Any) -> Any:
        """Take a step. args, kwargs: the whole batch, on the first stage's rank. target, losses: on
        the last one's; losses receives those of the micro-batches. Returns the outputs there,
        unless return_outputs is off; None elsewhere. Without a loss_fn, or without gradients, it is
        an evaluation."""
        count = self._n_microbatches
        batch = Batch()
        parts: Tuple[Any, Any] = ([()] * count, [{}] * count)
        if args or kwargs:
            parts = split_args_kwargs_into_chunks(args, kwargs, count, self._args_spec,
                                                  self._kwargs_spec)
        trains = self._has_backward and torch.is_grad_enabled()
        pipeline = self._pipeline(parts[0][0], parts[1][0], trains)
        batch.inputs, batch.kwargs = parts
        if target is not None:
            batch.labels = [(part, ) for part in torch.tensor_split(target, count)]
            batch.criterion = self._loss_fn
        batch.grad_scale = 1.0 / count if self.scale_grads else 1.0
        batch.keep_outputs = return_outputs
        pipeline.step(batch)
        if losses is not None:
            losses[:] = [batch.losses[i] for i in sorted(batch.losses)]
        outputs = [batch.outputs[i] for i in sorted(batch.outputs)]
        return merge_chunks(outputs, self._output_spec) if outputs else None

    def eval(self,
             *args: Any,
             target: Any = None,
             losses: Optional[List[torch.Tensor]] = None,
             **kwargs: Any) -> Any:
        """The forwards of a step alone."""
        with torch.no_grad():
            return self.step(*args, target=target, losses=losses, **kwargs)


class ScheduleGPipe(_Schedule):
    """All forwards, then all backwards."""

    kind = "gpipe"


class Schedule1F1B(_Schedule):
    """One forward and one backward in turns."""

    kind = "1f1b"


class ScheduleInterleaved1F1B(_Schedule):
    """1F1B over several stages of each rank: r, r + P ..."""

    kind = "interleaved"


class ScheduleInterleavedZeroBubble(_Schedule):
    """Weight gradients fill what would be idle. One stage of each rank."""

    kind = "zb1p"


class ScheduleZBVZeroBubble(_Schedule):
    """The same over stages r and 2P - 1 - r."""

    kind = "zbv"


class ScheduleDualPipeV(_Schedule):
    """DualPipeV over stages r and 2P - 1 - r."""

    kind = "dualpipev"
