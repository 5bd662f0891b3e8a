# SPDX-License-Identifier: Apache-2.0
"""A pipeline of modules: one rank's share of a schedule, step by step."""
from typing import Any, Callable, Dict, List, Optional, Sequence

import torch

from ._group import Comm
from ._native import ffi, forget, lib, new_object, owned
from ._stage import LOSS, OPS, OPS_WITH_PAIRS, Batch, Stage
from ._tensor import border, describe, spec
from .schedule import Schedule as Schedule

# The library moves tensors between stages. What the model begins with and ends in stays with
# Python, which has it as it is: the first and the last border have a tensor that nobody looks at.
UNUSED_INPUT, UNUSED_OUTPUT = spec((1, ), torch.float32, True), spec((1, ), torch.float32)


class Pipeline:
    """This rank's stages of a pipeline over a communicator.

    comm          of all its ranks; made together by all of them
    schedule      a Schedule
    modules       this rank's, in the order of its slots
    borders       [stages - 1]: for each border between two stages a list of its tensors' specs
    rank          this rank's number in the pipeline
    split         as of Stage
    pairs         overlapped pairs are one call of the modules' type
    own_gradients each step is taken in two calls, with gradients of the outputs that are given
    skips         specs of the schedule's skips
    rows          of the largest micro-batch, where they differ

    Raises DualpipeError on all ranks if they disagree on schedule or borders.
    """
    def __init__(self,
                 comm: Comm,
                 schedule: Schedule,
                 modules: Sequence[Any],
                 borders: Sequence[Sequence[Dict[str, Any]]],
                 *,
                 rank: Optional[int] = None,
                 split: Optional[str] = "store",
                 pairs: bool = False,
                 own_gradients: bool = False,
                 skips: Sequence[Dict[str, Any]] = (),
                 rows: int = 0) -> None:
        slots = schedule.slots(comm.rank if rank is None else rank)
        if len(slots) != len(modules):
            raise ValueError(f"{len(modules)} modules on rank {comm.rank}, expected {len(slots)}")
        all_borders = [[UNUSED_INPUT], *borders, [UNUSED_OUTPUT]]
        self.comm, self.schedule = comm, schedule
        self.stages = [
            Stage(module, slot, len(all_borders[slot.stage]), split)
            for module, slot in zip(modules, slots)
        ]
        self.count = schedule.pointer.mb_per_stream
        self.is_held = False  # between forward and backward
        self._resets = comm.resets
        with comm.call():
            self._make(all_borders, pairs, own_gradients, skips, rows)

    def _make(self, borders: Sequence[Sequence[Dict[str, Any]]], pairs: bool,
              own_gradients: bool, skips: Sequence[Dict[str, Any]], rows: int) -> None:
        stages = ffi.new("struct dp_stage[]", max(len(self.stages), 1))
        for place, stage in zip(stages, self.stages):
            place.ops, place.user = OPS_WITH_PAIRS if pairs else OPS, stage.handle
            place.no_split = stage.split is None
        declared = ffi.new("struct dp_border[]", [border(specs) for specs in borders])
        specs_of_skips = ffi.new("struct dp_tensor_spec[]", list(skips))
        config = ffi.new(
            "struct dp_pipeline_config *", {
                "schedule": self.schedule.pointer, "comm": self.comm.pointer, "stages": stages,
                "borders": declared, "loss": LOSS, "own_gradients": own_gradients,
                "skips": specs_of_skips, "max_extents": [rows]
            })
        kept: List[Any] = [stages, declared, specs_of_skips, config]
        kept += [self.stages, self.schedule, self.comm]
        self.pointer = new_object(lib.dp_pipeline_new,
                                  "struct dp_pipeline",
                                  config,
                                  comm=self.comm.pointer)
        self._step = ffi.new("struct dp_step *")
        if any(stage.first for stage in self.stages):
            self._step.inputs = _unused_batch(self.count, kept)
        if own_gradients and any(stage.last for stage in self.stages):
            self._output_grads = _unused_batch(self.count, kept)
        self._kept = kept
        self.close = owned(self, lib.dp_pipeline_free, self.pointer, kept, lock=self.comm.lock)

    def step(self, batch: Batch) -> Batch:
        """Take a step: all forwards, and the backwards unless the schedule is forward-only.
        Gradients are added to those of the parameters. Returns the batch with what ended on this
        rank: losses, outputs."""
        self._take(batch)
        try:
            self._call(lib.dp_pipeline_step)
        finally:
            self.clear()
        return batch

    def forward(self, batch: Batch) -> Batch:
        """All forwards of a step with own_gradients."""
        self._take(batch)
        self._step.output_grads = ffi.NULL
        self.is_held = True
        try:
            self._call(lib.dp_pipeline_forward)
        except BaseException:
            self.clear()
            raise
        return batch

    def backward(self, out_grads: Optional[Sequence[Any]] = None) -> None:
        """All backwards of that step. out_grads: of each micro-batch, where the model ends."""
        if out_grads is not None:
            self._step.output_grads = self._output_grads
            for stage in self.stages:
                stage.batch.out_grads = out_grads
        try:
            self._call(lib.dp_pipeline_backward, goes_on=True)
        finally:
            self.clear()

    def drop(self, error: BaseException) -> None:
        """End a step on all ranks that has had no backward."""
        self.comm.abort(error)
        self._step.output_grads = self._output_grads
        lib.dp_pipeline_backward(self.pointer, self._step)
        forget()
        self.clear()

    def _take(self, batch: Batch) -> None:
        for stage in self.stages:
            stage.batch = batch
        if batch.rows:
            self._extents = ffi.new("int64_t[][4]", [[rows] for rows in batch.rows])
            self._step.extents = self._extents

    def _call(self, function: Callable[[Any, Any], int], goes_on: bool = False) -> None:
        with self.comm.call(goes_on):
            if self._resets != self.comm.resets:
                # Some ranks may have finished the step in which another one failed.
                self._resets = self.comm.resets
                lib.dp_pipeline_seek(self.pointer, 0)
            self.comm.check(function(self.pointer, self._step))

    def clear(self) -> None:
        self.is_held = False
        for stage in self.stages:
            stage.clear()


MOST_SHAPES = 8


def of_shape(pipelines: Dict[Any, Pipeline], key: Any, make: Callable[[], Pipeline]) -> Pipeline:
    """The pipeline of a key, made when it is first needed. Those of the last MOST_SHAPES keys are
    kept; the others end when nothing uses them."""
    pipeline = pipelines.pop(key, None) or make()
    pipelines[key] = pipeline
    if len(pipelines) > MOST_SHAPES:
        del pipelines[next(iter(pipelines))]
    return pipeline


def _unused_batch(count: int, kept: List[Any]) -> Any:
    """struct dp_microbatches * of one tensor each."""
    tensor = describe(torch.zeros(1, device="cpu"), kept)
    leaf = ffi.new("struct dp_tree *", {"kind": lib.DP_TREE_TENSOR, "tensor": tensor})
    args = ffi.new("struct dp_tree[]",
                   [{"kind": lib.DP_TREE_TUPLE, "count": 1, "items": leaf}] * count)
    batch = ffi.new("struct dp_microbatches *", {"count": count, "args": args})
    kept += [leaf, args, batch]
    return batch
