# SPDX-License-Identifier: Apache-2.0
"""A pipeline of modules: one rank's share of a schedule, step by step.

The library moves tensors between stages. What the model begins with and ends in stays with Python,
which has it as it is.
"""
from typing import Any, Callable, Dict, List, Optional, Sequence

import torch

from ._cuda import HOST, Links, Stream, device_of, have_links, in_stream
from ._group import Comm
from ._native import ffi, forget, lib, new_object, owned
from ._stage import OPS, OPS_WITH_PAIRS, Batch, Stage
from ._tensor import border
from .schedule import Schedule as Schedule


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
    place         where the modules are. On a GPU all is queued in the stream of torch's that is
                  the current one now; others wait for it, and it for them, around a step

    Messages go from GPU to GPU where that can be, but for the first step, as CUDA may wait for all
    running kernels when it loads one, and NCCL's may wait for another rank; and for the first one
    after a failure, with which the links end.

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
                 rows: int = 0,
                 place: torch.device = HOST) -> None:
        self.rank = comm.rank if rank is None else rank
        slots = schedule.slots(self.rank)
        if len(slots) != len(modules):
            raise ValueError(f"{len(modules)} modules on rank {comm.rank}, expected {len(slots)}")
        all_borders = [[], *borders, []]
        self.comm, self.schedule = comm, schedule
        self.stages = [
            Stage(module, slot, len(all_borders[slot.stage]), split, place,
                  schedule.pointer.group_rank)
            for module, slot in zip(modules, slots)
        ]
        self.count = schedule.pointer.mb_per_stream
        self.is_held = False  # between forward and backward
        self._resets, self._is_warm = comm.resets, False
        self._links: Optional[Links] = None
        with comm.call():
            self._device = device_of(place)
            self._stream = torch.cuda.current_stream(place) if self._device else None
            self._config = self._configured(all_borders, pairs, own_gradients, skips, rows)
            self._step, self.close = ffi.new("struct dp_step *"), lambda: None
            self._can_link = have_links(comm, self._device)
            self._open(None)

    def _configured(self, borders: Sequence[Sequence[Dict[str, Any]]], pairs: bool,
                    own_gradients: bool, skips: Sequence[Dict[str, Any]], rows: int) -> Any:
        """The config, and in _kept what it points to."""
        stages = ffi.new("struct dp_stage[]", max(len(self.stages), 1))
        for place, stage in zip(stages, self.stages):
            place.ops, place.user = OPS_WITH_PAIRS if pairs else OPS, stage.handle
            place.no_split = stage.split is None
        declared = ffi.new("struct dp_border[]", [border(specs) for specs in borders])
        specs_of_skips = ffi.new("struct dp_tensor_spec[]", list(skips))
        config = ffi.new(
            "struct dp_pipeline_config *", {
                "schedule": self.schedule.pointer, "stages": stages, "borders": declared,
                "opaque_ends": True, "own_gradients": own_gradients, "skips": specs_of_skips,
                "max_extents": [rows]
            })
        self._kept: List[Any] = [stages, declared, specs_of_skips, config]
        self._kept += [self.stages, self.schedule, self.comm]
        if self._device is not None and self._stream is not None:
            stream = Stream(self._device, self._stream)
            config.device, config.stream = self._device.pointer, stream.pointer
            self._kept.append(stream)
        return config

    def _open(self, links: Optional[Links]) -> None:
        """Make it, in place of what is there, over links or the group's own messages."""
        self.close()
        self.pointer, self._links = ffi.NULL, links
        self._config.comm = links.pointer if links else self.comm.pointer
        with in_stream(self._stream):
            self.pointer = new_object(lib.dp_pipeline_new,
                                      "struct dp_pipeline",
                                      self._config,
                                      comm=self.comm.pointer)
        self.close = owned(self,
                           lib.dp_pipeline_free,
                           self.pointer,
                           self._kept,
                           links,
                           lock=self.comm.lock)

    def _list_peers(self, out: Any) -> int:
        return int(lib.dp_pipeline_nccl_peers(self.schedule.pointer, self.rank, out))

    def step(self, batch: Batch) -> Batch:
        """Take a step: all forwards, and the backwards unless the schedule is forward-only.
        Gradients are added to those of the parameters. Returns the batch with what ended on this
        rank: losses, outputs."""
        self._take(batch)
        try:
            self._call(lib.dp_pipeline_step)
            self._is_warm = True
        finally:
            self.clear()
        return batch

    def forward(self, batch: Batch) -> Batch:
        """All forwards of a step with own_gradients."""
        self._take(batch)
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
            for stage in self.stages:
                stage.batch.out_grads = out_grads
        try:
            self._call(lib.dp_pipeline_backward, goes_on=True)
            self._is_warm = True
        finally:
            self.clear()

    def drop(self, error: BaseException) -> None:
        """End a step on all ranks that has had no backward."""
        self.comm.abort(error)
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
                self._resets, self._is_warm = self.comm.resets, False
                if self._can_link:  # links, if there are any, ended with the failure
                    self._open(None)
                lib.dp_pipeline_seek(self.pointer, 0)
            elif self._is_warm and self._can_link and not (self._links or goes_on):
                self._open(Links(self.comm, self._device, self._list_peers))
            with in_stream(self._stream):
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
