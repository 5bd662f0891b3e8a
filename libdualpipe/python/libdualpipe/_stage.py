# SPDX-License-Identifier: Apache-2.0
"""Stages of a pipeline: modules whose backward is torch's autograd, called by the library op by
op."""
import queue
import threading
from contextlib import contextmanager, nullcontext
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import torch

from ._native import callback, ffi, keep_from_handler, lib
from ._skips import CallTracker, tracking
from ._tensor import DTYPES, Views, address, dl_of, has_gradient, shape_of

Tensors = Tuple[Any, ...]  # None for one that is not there


class WeightGradStore:
    """Weight gradients that a backward leaves for later, as in DeepSeek's dualpipe.

    A module that can compute them apart calls `put(function)` in its backward while `enabled` is
    set; the function is called in the weight part of the same micro-batch."""

    enabled: bool = False
    cache: List[Callable[[], Any]] = []
    funcs_queue: "queue.Queue[List[Callable[[], Any]]]" = queue.Queue()

    @classmethod
    def put(cls, func: Callable[[], Any]) -> None:
        cls.cache.append(func)

    @classmethod
    def take(cls) -> List[Callable[[], Any]]:
        """What has been put since the last time."""
        cls.cache, taken = [], cls.cache
        return taken

    @classmethod
    def flush(cls) -> None:
        cls.funcs_queue.put(cls.take())

    @classmethod
    def pop(cls) -> None:
        assert not cls.funcs_queue.empty(), "Pop empty queue."
        for func in cls.funcs_queue.get():
            func()

    @classmethod
    def clear(cls) -> None:
        cls.cache = []
        cls.funcs_queue = queue.Queue()


def run_backward(tensors: Sequence[torch.Tensor],
                 grad_tensors: Sequence[Optional[torch.Tensor]]) -> None:
    """Backward from several tensors at once; gradients are added to the leaves'."""
    torch.autograd.Variable._execution_engine.run_backward(tuple(tensors),
                                                           tuple(grad_tensors),
                                                           keep_graph=False,
                                                           create_graph=False,
                                                           allow_unreachable=True,
                                                           accumulate_grad=True)


def as_tuple(value: Any) -> Tuple[Any, ...]:
    return (value, ) if isinstance(value, torch.Tensor) else tuple(value)


class Batch:
    """What a step works on. Members that a rank has no use for stay empty."""
    def __init__(self) -> None:
        self.inputs: Sequence[Tensors] = ()  # of each micro-batch, where the model begins
        self.kwargs: Sequence[Dict[str, Any]] = ()  # the same, by name
        self.labels: Sequence[Tuple[Any, ...]] = ()  # of each micro-batch, where it ends
        self.criterion: Optional[Callable[..., torch.Tensor]] = None  # criterion(*outputs, *labels)
        # Gradients of the outputs, which the backward begins with instead of a loss.
        self.out_grads: Optional[Sequence[Tensors]] = None
        self.keep_outputs = False
        self.whole = False  # criterion and outputs get what the module returns as it is
        self.rows: Sequence[int] = ()  # of each micro-batch, where they differ
        self.losses: Dict[int, torch.Tensor] = {}  # results, by micro-batch
        self.outputs: Dict[int, Any] = {}


class RandomState:
    """The states of the generators of random numbers: a forward that is repeated gets the same
    ones."""
    def __init__(self) -> None:
        self.cpu = torch.get_rng_state()
        self.cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RandomState) and torch.equal(self.cpu, other.cpu) and (
            self.cuda is None or other.cuda is None or torch.equal(self.cuda, other.cuda))

    def set(self) -> None:
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda)


class _Again(threading.local):
    """Whether the forward of this thread is one that is carried out twice."""

    checkpointing = recomputing = False


_again = _Again()


def is_checkpointing() -> bool:
    """Whether a forward is under way whose results are thrown away, to be computed again."""
    return _again.checkpointing


def is_recomputing() -> bool:
    """Whether a forward is under way for another time, so that what else it does has been done."""
    return _again.recomputing


@contextmanager
def again(checkpointing: bool, recomputing: bool) -> Iterator[None]:
    before = _again.checkpointing, _again.recomputing
    _again.checkpointing, _again.recomputing = checkpointing, recomputing
    try:
        yield
    finally:
        _again.checkpointing, _again.recomputing = before


class Live:
    """A micro-batch between its forward and its backward."""
    def __init__(self, args: Tensors, outs: Tensors, skips: Optional[CallTracker] = None) -> None:
        self.args, self.outs, self.skips = args, outs, skips


class Stage:
    """A module in a slot of this rank. split: how the weight part of a backward is left for later:
    "store" (WeightGradStore), "graph" (torch's autograd graph is cut at the parameters), or
    None. place: of a module without parameters."""
    def __init__(self,
                 module: Any,
                 slot: Any,
                 input_count: int,
                 split: Optional[str],
                 place: torch.device = torch.device("cpu"),
                 group_rank: Any = None) -> None:
        self.group_rank = group_rank  # of a pipeline rank
        self.module, self.split, self.input_count = module, split, input_count
        self.slot, self.first, self.last = slot, slot.prev < 0, slot.next < 0
        self.views, self.batch = Views(), Batch()
        self.live: Dict[int, Live] = {}
        self.later: Dict[int, List[Callable[[], Any]]] = {}
        self.random: Dict[int, RandomState] = {}
        # By their place: they must stay as they are until given back, or the end of the step.
        self.handed_over: Dict[int, List[torch.Tensor]] = {}
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        # Skips that begin or end in other stages, of a module that has any.
        self.crossing: Optional[Dict[Any, int]] = getattr(module, "crossing", None)
        self.device = next((p.device for p in module.parameters()), place)
        self.handle = ffi.new_handle(self)

    def clear(self) -> None:
        """Forget what is left of a step."""
        self.live.clear()
        self.later.clear()
        self.random.clear()
        self.handed_over.clear()
        self.batch = Batch()

    # -- forward

    def forward(self, call: Any, given: Any, wanted: Any) -> None:
        args = self.inputs(call, given)
        before = None
        if call.discarded:
            self.random[call.mb] = RandomState()
        elif call.recomputing:
            before = RandomState()
            self.random.pop(call.mb).set()
        skips = None if self.crossing is None else CallTracker(self.crossing, call, self.views)
        with torch.set_grad_enabled(bool(call.training and not call.discarded)), \
                again(bool(call.discarded), bool(call.recomputing)), \
                tracking(skips) if skips else nullcontext():
            out = self.module(*args, **self.kwargs_of(call))
            outs = as_tuple(out)
            if self.last and not call.recomputing:
                self.ended(call, out, None)
        if before is not None:
            before.set()
        elif not self.last:
            self.put(call, wanted, outs, "output")
        if call.training and not call.discarded:
            self.live[call.mb] = Live(args, outs, skips)

    def inputs(self, call: Any, given: Any) -> Tensors:
        if self.first:
            return tuple(self.batch.inputs[call.mb])
        found = [self.here(self.views.of(given[i])) for i in range(self.input_count)]
        if call.training and not call.discarded:
            for tensor in found:
                if tensor is not None and has_gradient(tensor.dtype):
                    tensor.requires_grad_()
        return tuple(found)

    def here(self, tensor: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
        """What came from another rank, where the module is."""
        return tensor if tensor is None or tensor.device == self.device else tensor.to(self.device)

    def kwargs_of(self, call: Any) -> Dict[str, Any]:
        return self.batch.kwargs[call.mb] if self.batch.kwargs else {}

    def ended(self, call: Any, out: Any, loss: Optional[torch.Tensor]) -> None:
        """The model's output of a micro-batch is there."""
        batch = self.batch
        outs = (out, ) if batch.whole else as_tuple(out)
        if loss is None and batch.criterion is not None:
            loss = batch.criterion(*outs, *(batch.labels[call.mb] if batch.labels else ()))
            if loss is None:
                raise TypeError("the criterion returned None, expected a tensor of one value")
        if loss is not None:
            batch.losses[call.mb] = loss
        if batch.keep_outputs:
            batch.outputs[call.mb] = outs[0] if len(outs) == 1 else outs

    def put(self, call: Any, wanted: Any, tensors: Sequence[Optional[torch.Tensor]],
            what: str) -> None:
        """Hand outputs or gradients to the library: the tensor's own memory where that stays as it
        is, a copy where it is strided, or belongs to the library, which will use it for something
        else."""
        for i, tensor in enumerate(tensors):
            place = wanted[i]
            if place.data == ffi.NULL:
                continue
            if tensor is None:
                place.data = ffi.NULL
                continue
            tensor = tensor.detach()
            shape, dtype = shape_of(place), DTYPES[place.dtype.code, place.dtype.bits]
            if tuple(tensor.shape) != shape or tensor.dtype != dtype:
                to = self.slot.prev if what.startswith("gradient") else self.slot.next
                raise ValueError(
                    f"{what} {i} of micro-batch {call.mb} in stage {self.slot.stage} "
                    f"({type(self.module).__name__}) is {tuple(tensor.shape)} of {tensor.dtype}, "
                    f"expected {shape} of {dtype}, which rank {self.group_rank[to]} takes")
            near = (place.device.device_type, place.device.device_id)
            if dl_of(tensor.device) == near and tensor.is_contiguous() and not self.views.has(tensor):
                place.data = ffi.cast("void *", tensor.data_ptr())
                self.handed_over.setdefault(tensor.data_ptr(), []).append(tensor)
            else:
                view = self.views.of(place)
                if view is not None:
                    view.copy_(tensor)

    def take_back(self, place: int) -> None:
        """One of what lies there is not read any more."""
        tensors = self.handed_over[place]
        tensors.pop()
        if not tensors:
            del self.handed_over[place]

    # -- backward

    def backward(self, call: Any, gout: Any, gin: Any, mode: int) -> None:
        is_split = mode == lib.DP_BACKWARD_INPUT
        live, roots, grads = self.roots(call, gout)
        if is_split and self.split == "graph":
            self.backward_to_inputs(call, live, roots, grads, gin)
        else:
            WeightGradStore.enabled = is_split
            try:
                self.run(roots, grads)
            finally:
                WeightGradStore.enabled = False
            if is_split:
                self.later[call.mb] = WeightGradStore.take()
            self.put_input_grads(call, live, gin)
            if live.skips:
                live.skips.put_gradients(call)
        if self.last and self.batch.out_grads is None:
            self.batch.losses[call.mb] = roots[0].detach()  # it may be a view

    def roots(self, call: Any,
              gout: Any) -> Tuple[Live, List[torch.Tensor], List[Optional[torch.Tensor]]]:
        """Where a backward begins."""
        live, batch = self.live.pop(call.mb), self.batch
        if self.last and batch.out_grads is None:
            return live, [batch.losses[call.mb]], [None]
        given = batch.out_grads[call.mb] if self.last and batch.out_grads is not None else \
            [self.here(self.views.of(gout[i])) for i in range(len(live.outs))]
        pairs = [(out, grad) for out, grad in zip(live.outs, given)
                 if out is not None and grad is not None and out.requires_grad]
        if live.skips:
            pairs += live.skips.gradients(call)
        return live, [out for out, _ in pairs], [grad for _, grad in pairs]

    def run(self, roots: List[torch.Tensor], grads: List[Optional[torch.Tensor]]) -> None:
        if grads == [None]:
            roots[0].backward()
        elif roots:
            run_backward(roots, grads)

    def put_input_grads(self, call: Any, live: Live, gin: Any) -> None:
        if not self.first:
            self.put(call, gin, [None if arg is None else arg.grad for arg in live.args],
                     "gradient of input")

    def backward_to_inputs(self, call: Any, live: Live, roots: List[torch.Tensor],
                           grads: List[Optional[torch.Tensor]], gin: Any) -> None:
        """Gradients of the inputs alone, by torch's split of the graph; those of weights are for
        later."""
        from torch.distributed.pipelining._backward import (stage_backward_input,
                                                            stage_backward_weight)
        if self.first:
            self.later[call.mb] = [lambda: self.run(roots, grads)]
            return
        if not self.parameters:
            self.later[call.mb] = []
            self.run(roots, grads)
            self.put_input_grads(call, live, gin)
            return
        # torch detaches them in place, which views do not allow.
        roots = [root.clone() if root._is_view() else root for root in roots]
        leaves = [arg for arg in live.args if arg is not None and arg.requires_grad]
        begin = [
            torch.ones_like(root) if grad is None else grad for root, grad in zip(roots, grads)
        ]
        found, groups = stage_backward_input(list(roots), begin, leaves, iter(self.parameters))
        by_leaf = {id(leaf): grad for leaf, grad in zip(leaves, found)}
        self.put(call, gin, [by_leaf.get(id(arg)) for arg in live.args], "gradient of input")
        self.later[call.mb] = [lambda: stage_backward_weight(iter(self.parameters), groups)]

    def weight(self, call: Any) -> None:
        for function in self.later.pop(call.mb):
            function()


def forward_and_backward(pair: Any, ahead: Stage, behind: Stage) -> None:
    """An overlapped pair, by the modules' own function: the forward of one micro-batch, the
    backward of another."""
    call, batch = pair.forward.call, ahead.batch
    args = ahead.inputs(call, getattr(pair.forward, "in"))
    criterion = batch.criterion if ahead.last else None
    labels = batch.labels[call.mb] if criterion is not None and batch.labels else []
    live, roots, grads = behind.roots(pair.backward.call, pair.backward.gout)
    with torch.enable_grad():
        outs, loss = overlapped(type(ahead.module))(ahead.module, list(args), criterion, labels,
                                                    behind.module,
                                                    roots[0] if behind.last else None,
                                                    () if behind.last else tuple(roots),
                                                    () if behind.last else tuple(grads))
    outs = as_tuple(outs)
    if ahead.last:
        ahead.ended(call, outs, loss)
    else:
        ahead.put(call, pair.forward.out, outs, "output")
    ahead.live[call.mb] = Live(args, outs)
    behind.put_input_grads(pair.backward.call, live, pair.backward.gin)


def overlapped(module_type: type) -> Any:
    """A type's function for overlapped pairs, None if it has none. The release of 2025-02 spells it
    with one p."""
    return getattr(module_type, "overlapped_forward_backward", None) or \
        getattr(module_type, "overlaped_forward_backward", None)


# ---- called by the library ----


@callback("dpy_forward")
def _forward(user: Any, call: Any, given: Any, wanted: Any) -> None:
    ffi.from_handle(user).forward(call, given, wanted)


@callback("dpy_backward")
def _backward(user: Any, call: Any, gout: Any, gin: Any, mode: int) -> None:
    ffi.from_handle(user).backward(call, gout, gin, mode)


@callback("dpy_weight")
def _weight(user: Any, call: Any) -> None:
    ffi.from_handle(user).weight(call)


@ffi.def_extern(onerror=keep_from_handler)
def dpy_given_back(user: Any, data: Any) -> None:
    ffi.from_handle(user).take_back(address(data))


@callback("dpy_pair")
def _pair(pair: Any) -> None:
    forward_and_backward(pair, ffi.from_handle(pair.forward.user),
                         ffi.from_handle(pair.backward.user))


_OPS = {"forward": lib.dpy_forward, "backward": lib.dpy_backward, "weight": lib.dpy_weight,
        "given_back": lib.dpy_given_back}
OPS = ffi.new("struct dp_stage_ops *", _OPS)
OPS_WITH_PAIRS = ffi.new("struct dp_stage_ops *", {**_OPS, "fwd_bwd": lib.dpy_pair})
