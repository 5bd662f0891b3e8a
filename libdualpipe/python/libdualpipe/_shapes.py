# SPDX-License-Identifier: Apache-2.0
"""What crosses the borders between stages, found by running each stage once."""
import pickle
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch.func import functional_call

from ._cuda import place_of
from ._group import Comm, comm_of
from ._native import DualpipeError, ffi, lib
from ._pipeline import Schedule
from ._skips import TrialTracker, tracking
from ._stage import RandomState, again, as_tuple
from ._tensor import has_gradient, spec

Shapes = List[Tuple[Tuple[int, ...], torch.dtype]]


def trial(module: Any, args: Sequence[Any], kwargs: Dict[str, Any],
          values: Optional[Dict[str, torch.Tensor]] = None) -> Tuple[torch.Tensor, ...]:
    """The outputs; buffers and random numbers are afterwards what they were. values: in the place
    of parameters."""
    state, buffers = RandomState(), [(buffer, buffer.clone()) for buffer in module.buffers()]
    with torch.no_grad(), again(True, True):
        outs = as_tuple(functional_call(module, values, tuple(args), kwargs) if values else
                        module(*args, **kwargs))
        for buffer, before in buffers:
            buffer.copy_(before)
    state.set()
    return outs


def _shapes_of(module: Any, args: Sequence[Any], kwargs: Dict[str, Any],
               skips: Dict[int, Any], at: torch.device) -> Shapes:
    """Of a stage's outputs; those of what it stashes for other stages are added to skips."""
    with tracking(TrialTracker(getattr(module, "crossing", {}), skips, at)):
        outs = trial(module, args, kwargs)
    return [(tuple(out.shape), out.dtype) for out in outs]


def _spec_of(sizes: Sequence[Any]) -> Dict[str, Any]:
    """Of a tensor, from its shape and type in each of the trials: dimensions that differ follow the
    rows of a micro-batch."""
    (shape, dtype), (other, _) = sizes[0], sizes[-1]
    return spec(shape, dtype, not has_gradient(dtype), [a != b for a, b in zip(shape, other)])


def _broadcast(comm: Comm, value: Any, root: int) -> Any:
    """A rank's value, on all of them. It ends where a rank fails, unlike torch's."""
    text = pickle.dumps(value) if comm.rank == root else b""
    count = ffi.new("uint64_t *", len(text))
    comm.check(lib.dp_comm_broadcast(comm.pointer, count, ffi.sizeof("uint64_t"), root))
    room = ffi.new("char[]", count[0])
    ffi.memmove(room, text, len(text))
    comm.check(lib.dp_comm_broadcast(comm.pointer, room, count[0], root))
    return pickle.loads(ffi.buffer(room))


def borders_of(group: Any, schedule: Schedule, modules: Sequence[Any], trials: Sequence[Any],
               kwargs: Dict[str, Any]) -> Tuple[List[List[Dict[str, Any]]], Dict[int, Any]]:
    """[stages - 1] of Pipeline, and the specs of skips by their number. Collective over the group.
    trials: arguments of a micro-batch, where the model begins; of the largest one and, if they are
    of two sizes, of the smallest one. kwargs: those of this rank's stages, by name. Raises on all
    ranks what a stage raises on one, elsewhere as DualpipeError."""
    comm = comm_of(group)
    with comm.call():
        return _borders_of(comm, schedule, modules, trials, kwargs)


def _borders_of(comm: Comm, schedule: Schedule, modules: Sequence[Any], trials: Sequence[Any],
                kwargs: Dict[str, Any]) -> Tuple[List[List[Dict[str, Any]]], Dict[int, Any]]:
    shapes: List[Shapes] = [[] for _ in trials]
    skips: List[Dict[int, Any]] = [{} for _ in trials]
    found = []
    owners = {
        slot.stage: (rank, place)
        for rank in range(comm.size)
        for place, slot in enumerate(schedule.slots(rank))
    }
    for stage in range(schedule.stages - 1):
        rank, place = owners[stage]
        box, error = None, None  # type: Any, Optional[BaseException]
        if rank == comm.rank:
            at = place_of([modules[place]])
            given = trials if stage == 0 else [[
                torch.zeros(shape, dtype=dtype, device=at) for shape, dtype in some
            ] for some in shapes]
            try:
                shapes = [
                    _shapes_of(modules[place], args, kwargs, known, at)
                    for args, known in zip(given, skips)
                ]
                box = (shapes, skips)
            except BaseException as caught:
                box, error = f"{type(caught).__name__}: {caught}", caught
        box = _broadcast(comm, box, rank)
        if error is not None:
            raise error
        if isinstance(box, str):
            raise DualpipeError(
                lib.DP_EABORTED,
                f"rank {rank}: forward of micro-batch 0 in stage {stage}: {box}", rank)
        shapes, skips = box
        found.append([_spec_of(sizes) for sizes in zip(*shapes)])
    # A skip that was nothing in the trial stays nothing.
    nothing = ((1, ), torch.int8)
    return found, {n: _spec_of([known[n] or nothing for known in skips]) for n in skips[0]}
