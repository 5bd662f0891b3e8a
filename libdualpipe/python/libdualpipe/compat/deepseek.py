# SPDX-License-Identifier: Apache-2.0
"""DeepSeek's `dualpipe`: the same classes, functions, arguments and results.

    from libdualpipe.compat.deepseek import DualPipe, set_p2p_tensor_shapes, set_p2p_tensor_dtype

Tensors may be on the host or on a GPU. Copies of a stage (DualPipe has two of each) keep the
gradients of their own micro-batches, as there; sum them before the update.

Source: deepseek-ai/DualPipe, releases of 2025.
"""
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist
from torch import nn

from .._cuda import place_of
from .._group import comm_of
from .._pipeline import Pipeline, Schedule, of_shape
from .._stage import Batch, WeightGradStore, overlapped, run_backward
from .._tensor import spec

__all__ = [
    "DualPipe", "DualPipeV", "WeightGradStore", "run_backward", "scatter", "gather",
    "set_p2p_tensor_shapes", "set_p2p_tensor_dtype", "build_from_tensor_shapes", "append_irecv",
    "append_isend"
]

TENSOR_SHAPES: Optional[List[Tuple[int, ...]]] = None
TENSOR_DTYPE: Optional[torch.dtype] = None


def set_p2p_tensor_shapes(shapes: List[Tuple[int, ...]]) -> None:
    """The shapes of the tensors between two stages, of one micro-batch."""
    global TENSOR_SHAPES
    TENSOR_SHAPES = shapes


def set_p2p_tensor_dtype(dtype: torch.dtype) -> None:
    """Their type."""
    global TENSOR_DTYPE
    TENSOR_DTYPE = dtype


def build_from_tensor_shapes() -> List[torch.Tensor]:
    """Tensors to receive into, of those shapes: on the GPU if there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return [
        torch.empty(shape, dtype=TENSOR_DTYPE, device=device, requires_grad=True)
        for shape in TENSOR_SHAPES or ()
    ]


def append_irecv(ops: List[dist.P2POp], src: int, group: dist.ProcessGroup) -> List[torch.Tensor]:
    """Add the receives of such tensors from a rank of the group. Returns the tensors."""
    tensors = build_from_tensor_shapes()
    rank = dist.get_global_rank(group, src)
    ops += [dist.P2POp(dist.irecv, tensor, rank) for tensor in tensors]
    return tensors


def append_isend(ops: List[dist.P2POp], tensors: Sequence[Optional[torch.Tensor]], dst: int,
                 group: dist.ProcessGroup) -> None:
    """Add the sends of tensors to a rank of the group. A None is left out."""
    rank = dist.get_global_rank(group, dst)
    ops += [dist.P2POp(dist.isend, tensor, rank) for tensor in tensors if tensor is not None]


def chunk_tensor(x: Optional[torch.Tensor], chunks: int,
                 dim: int) -> Sequence[Optional[torch.Tensor]]:
    return [None] * chunks if x is None else x.tensor_split(chunks, dim=dim)


def cat_tensor(x: Any, dim: int) -> Optional[torch.Tensor]:
    if isinstance(x, (tuple, list)):
        if len(x) == 1:
            return x[0]
        if x[0] is None:
            assert all(y is None for y in x)
            return None
    return torch.cat(x, dim=dim)


def scatter(inputs: Any, chunks: int, dim: int) -> List[Tuple[Optional[torch.Tensor], ...]]:
    """Cut tensors into micro-batches: a tuple for each. A None is None in each."""
    assert isinstance(inputs, (torch.Tensor, tuple, list))
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs, )
    assert all(x is None or isinstance(x, torch.Tensor) for x in inputs)
    return list(zip(*[chunk_tensor(x, chunks, dim) for x in inputs])) or [()] * chunks


def gather(micro_outputs: Sequence[Any], dim: int) -> Tuple[Optional[torch.Tensor], ...]:
    """Put the outputs of micro-batches together."""
    assert isinstance(micro_outputs[0], (torch.Tensor, tuple, list))
    if isinstance(micro_outputs[0], torch.Tensor):
        micro_outputs = [(x, ) for x in micro_outputs]
    return tuple(cat_tensor(x, dim=dim) for x in zip(*micro_outputs))


class _DualPipe(nn.Module):
    kind = ""

    def __init__(self,
                 modules: Tuple[nn.Module, nn.Module],
                 batch_dim: int = 0,
                 process_group: Optional[dist.ProcessGroup] = None,
                 rank_mapping: Optional[List[int]] = None) -> None:
        super().__init__()
        self.module = nn.ModuleList(modules)
        self.overlapped_forward_backward = type(modules[0]) is type(modules[1]) and \
            overlapped(type(modules[0])) is not None
        self.overlaped_forward_backward = self.overlapped_forward_backward  # as in 1.0.0
        self.batch_dim = batch_dim
        self.group = process_group or dist.distributed_c10d._get_default_group()
        self.num_ranks = self.group.size()
        self.rank_mapping = rank_mapping
        self.rank = rank_mapping[self.group.rank()] if rank_mapping else self.group.rank()
        self.is_first_rank, self.is_last_rank = self.rank == 0, self.rank == self.num_ranks - 1
        # Ranks in the group, by their place in the pipeline; None beyond its ends.
        group_rank = {place: r for r, place in enumerate(rank_mapping or range(self.num_ranks))}
        self.first_rank, self.last_rank = group_rank[0], group_rank[self.num_ranks - 1]
        self.prev_rank, self.next_rank = (group_rank.get(self.rank + by) for by in (-1, 1))
        half = self.num_ranks // 2
        self.is_in_second_half = self.rank >= half
        self.is_middle_rank = self.rank in (half - 1, half)
        self._pipelines: Dict[Any, Pipeline] = {}

    @property
    def _has_ends(self) -> bool:
        """Whether the model begins or ends on this rank."""
        raise NotImplementedError

    def _check(self, num_chunks: int) -> None:
        raise NotImplementedError

    def step(
        self,
        *inputs: Optional[torch.Tensor],
        num_chunks: int = 0,
        criterion: Optional[Callable[..., torch.Tensor]] = None,
        labels: Union[Sequence[Optional[torch.Tensor]], torch.Tensor] = (),
        return_outputs: bool = False
    ) -> Tuple[Optional[torch.Tensor], Optional[Union[torch.Tensor, Tuple[torch.Tensor, ...]]]]:
        """Take a training step, or one of evaluation under torch.no_grad().

        inputs          of the model, where it begins; each is cut along batch_dim
        num_chunks      micro-batches, of both directions together
        criterion       loss = criterion(*outputs, *labels), where the model ends
        labels          DualPipe: those on the first rank belong to the inputs of the last one, and
                        the other way round
        return_outputs  whether outputs are wanted

        Returns (loss, outputs): the losses of the micro-batches, stacked, and the outputs put
        together, where the model ends; otherwise None. Gradients are added to those of the
        parameters. Raises AssertionError for wrong arguments; what a module or criterion raises on
        this rank; DualpipeError where another rank has failed. The next step of all ranks begins
        anew.
        """
        with comm_of(self.group).call():
            assert TENSOR_SHAPES is not None and TENSOR_DTYPE is not None, \
                ("You need to call set_p2p_tensor_shapes and set_p2p_tensor_dtype "
                 "before doing a step.")
            self._check(num_chunks)
            forward_only = not torch.is_grad_enabled()
            if not forward_only and self._has_ends:
                assert criterion is not None
            pipeline = self._pipeline(num_chunks, forward_only, place_of(self.module, inputs))
            WeightGradStore.clear()
            batch = Batch()
            if self._has_ends:
                batch.inputs = scatter(inputs, pipeline.count, self.batch_dim)
                batch.labels = scatter(labels, pipeline.count, self.batch_dim)
                batch.criterion, batch.keep_outputs = criterion, return_outputs
            pipeline.step(batch)
        return self._results(batch)

    def _pipeline(self, num_chunks: int, forward_only: bool, place: torch.device) -> Pipeline:
        """The pipeline of this number of micro-batches and these shapes."""
        shapes = [tuple(shape) for shape in TENSOR_SHAPES or ()]
        key = (num_chunks, forward_only, tuple(shapes), TENSOR_DTYPE, place)

        def make() -> Pipeline:
            between = [spec(shape, TENSOR_DTYPE) for shape in shapes]
            schedule = Schedule(self.kind,
                                self.num_ranks,
                                num_chunks,
                                forward_only=forward_only,
                                rank_map=self.rank_mapping)
            return Pipeline(comm_of(self.group),
                            schedule,
                            list(self.module), [between] * (schedule.stages - 1),
                            rank=self.rank,
                            pairs=self.overlapped_forward_backward,
                            place=place)

        return of_shape(self._pipelines, key, make)

    def _results(self, batch: Batch) -> Tuple[Any, Any]:
        loss = outputs = None
        if self._has_ends and batch.criterion is not None:
            loss = torch.stack([batch.losses[i].detach() for i in sorted(batch.losses)])
        if self._has_ends and batch.keep_outputs:
            outputs = gather([batch.outputs[i] for i in sorted(batch.outputs)], self.batch_dim)
            if len(outputs) == 1:
                outputs = outputs[0]
        return loss, outputs


class DualPipe(_DualPipe):
    """Micro-batches enter at both ends of an even number of ranks; each rank has two stages.

    modules        (stage r, stage P - 1 - r) of pipeline rank r of P
    batch_dim      the dimension along which inputs and labels are cut
    process_group  the ranks, the default group if None
    rank_mapping   rank_mapping[rank in the group] = pipeline rank
    """

    kind = "dualpipe"

    @property
    def _has_ends(self) -> bool:
        return self.is_first_rank or self.is_last_rank

    def _check(self, num_chunks: int) -> None:
        num_ranks = self.num_ranks
        assert num_ranks % 2 == 0
        assert num_chunks > 0 and num_chunks % 2 == 0 and num_chunks >= num_ranks * 2, \
            f"{num_chunks=}, {num_ranks=}"


class DualPipeV(_DualPipe):
    """Micro-batches enter and leave on the first rank; each rank has two stages.

    modules        (stage r, stage 2P - 1 - r) of pipeline rank r of P; otherwise as DualPipe
    """

    kind = "dualpipev"

    @property
    def _has_ends(self) -> bool:
        return self.is_first_rank

    def _check(self, num_chunks: int) -> None:
        num_ranks = self.num_ranks
        assert num_chunks > 0 and num_chunks >= num_ranks * 2, f"{num_chunks=}, {num_ranks=}"
