# SPDX-License-Identifier: Apache-2.0
"""What crosses the borders between stages, found by running each stage once."""
from typing import Any, Dict, List, Sequence, Tuple

import torch
import torch.distributed as dist

from ._pipeline import Schedule
from ._stage import RandomState, as_tuple
from ._tensor import spec

Shapes = List[Tuple[Tuple[int, ...], torch.dtype]]


def trial(module: Any, args: Sequence[Any], kwargs: Dict[str, Any]) -> Tuple[torch.Tensor, ...]:
    """The outputs; buffers and random numbers are afterwards what they were."""
    state, buffers = RandomState(), [(buffer, buffer.clone()) for buffer in module.buffers()]
    with torch.no_grad():
        outs = as_tuple(module(*args, **kwargs))
        for buffer, before in buffers:
            buffer.copy_(before)
    state.set()
    return outs


def borders_of(group: Any, schedule: Schedule, modules: Sequence[Any], args: Sequence[Any],
               kwargs: Dict[str, Any]) -> List[List[Dict[str, Any]]]:
    """[stages - 1] of Pipeline. Collective over the group. args, kwargs: of a micro-batch, where
    the model begins. Raises on all ranks what a stage raises on one, elsewhere as RuntimeError."""
    me, shapes, found = dist.get_rank(group), [], []  # type: Tuple[int, Shapes, List[Any]]
    owners = {
        slot.stage: (rank, place)
        for rank in range(dist.get_world_size(group))
        for place, slot in enumerate(schedule.slots(rank))
    }
    for stage in range(schedule.stages - 1):
        rank, place = owners[stage]
        box: List[Any] = [None]
        error = None
        if rank == me:
            given = args if stage == 0 else [
                torch.zeros(shape, dtype=dtype, device="cpu") for shape, dtype in shapes
            ]
            try:
                outs = trial(modules[place], given, kwargs if stage == 0 else {})
                box = [[(tuple(out.shape), out.dtype) for out in outs]]
            except BaseException as caught:
                box, error = [f"{type(caught).__name__}: {caught}"], caught
        dist.broadcast_object_list(box, src=dist.get_global_rank(group, rank), group=group)
        if error is not None:
            raise error
        if isinstance(box[0], str):
            raise RuntimeError(f"rank {rank}, stage {stage}: {box[0]}")
        shapes = box[0]
        found.append([spec(shape, dtype, not dtype.is_floating_point) for shape, dtype in shapes])
    return found
