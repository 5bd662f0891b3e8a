# SPDX-License-Identifier: Apache-2.0
"""A model whose parameters live in the library's host memory and pass over the device shard by
shard, as one differentiable function."""
import contextlib
import os
import sys
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.func import functional_call

from ._cuda import HOST, Device, Stream, device_of, in_stream
from ._native import callback, check, ffi, lib, new_object
from ._shapes import trial
from ._stage import RandomState, as_tuple
from ._tensor import Views, border, describe, describe_all, has_gradient, spec


class Shard:
    """Modules that are on the device together: a layer of the library's model."""
    def __init__(self, module: torch.nn.Module, inputs: int, cast: "Autocast") -> None:
        self.module, self.inputs, self.cast = module, inputs, cast
        self.named = [(name, p) for name, p in module.named_parameters() if p.numel()]
        self.views, self.values = Views(), []  # type: Views, List[Tensor]
        self.places: Dict[int, int] = {}  # of their memory
        self.live: Dict[int, Tuple[List[Tensor], List[Tensor], Tuple[Any, ...]]] = {}
        self.random: Dict[int, RandomState] = {}
        self.handle = ffi.new_handle(self)

    def forward(self, call: Any, given: Any, wanted: Any) -> None:
        self._take(call)
        leaves = [
            value.detach().requires_grad_(p.requires_grad)
            for value, (_, p) in zip(self.values, self.named)
        ]
        args = [self.views.of(given[i]) for i in range(self.inputs)]
        for tensor in args:
            tensor.requires_grad_(bool(call.training and has_gradient(tensor.dtype)))
        before = RandomState()
        if call.again:
            self.random.pop(call.mb).set()
        elif call.training:
            self.random[call.mb] = before
        with torch.set_grad_enabled(bool(call.training)), self.cast.on(), \
                torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
            outs = as_tuple(functional_call(self.module,
                                            {n: v for (n, _), v in zip(self.named, leaves)},
                                            tuple(args)))
        if call.again:
            before.set()
        for i, out in enumerate(outs):
            self.views.of(wanted[i]).copy_(out.detach())
        if call.training:
            self.live[call.mb] = (leaves, args, outs)

    def backward(self, call: Any, gout: Any, gin: Any) -> None:
        self._take(call)
        leaves, args, outs = self.live.pop(call.mb)
        grads = [self.views.of(gout[i]) for i in range(len(outs))]
        begin = [(out, grad) for out, grad in zip(outs, grads)
                 if grad is not None and out.requires_grad]
        ends = [(leaf, self.views.of(call.grads[i]), True) for i, leaf in enumerate(leaves)]
        ends += [(arg, self.views.of(gin[i]), False) for i, arg in enumerate(args)]
        ends = [end for end in ends if end[0].requires_grad and end[1] is not None]
        found: Sequence[Optional[Tensor]] = [None] * len(ends)
        if begin and ends:
            found = torch.autograd.grad([out for out, _ in begin], [end[0] for end in ends],
                                        [grad for _, grad in begin], allow_unused=True)
        for (_, place, adds), grad in zip(ends, found):
            if grad is not None and adds:
                place.add_(grad)
            elif not adds:
                place.zero_() if grad is None else place.copy_(grad)

    def _take(self, call: Any) -> None:
        found = [self.views.of(call.values[i]) for i in range(len(self.named))]
        self.values = [value for value in found if value is not None]
        self.places = {
            value.untyped_storage().data_ptr(): i for i, value in enumerate(self.values)
        }

    # Autograd keeps parameters, which will be elsewhere when the backward comes: we keep which.

    def _pack(self, tensor: Tensor) -> Any:
        if not tensor.numel():
            return tensor
        i = self.places.get(tensor.untyped_storage().data_ptr())
        return tensor if i is None else (i, tensor.shape, tensor.stride(), tensor.storage_offset())

    def _unpack(self, packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        i, shape, strides, offset = packed
        return self.values[i].as_strided(shape, strides, offset)


class Autocast:
    """The types that autocast chose where a forward began, for when it is repeated."""
    def __init__(self, kind: str) -> None:
        self.state = (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        with torch.autocast(*self.state):
            yield


class Offload:
    """The library's model for one shape of inputs. Parameters are moved into its memory, which
    lasts as long as any tensor that lies there.

    modules       one for each shard
    inputs        of the whole batch
    checkpoint    keep what crosses from shard to shard alone, and compute the rest again
    microbatches  a batch is cut into, along dimension 0
    place         where it computes: the host, or a GPU, and there in the stream of torch's that is
                  the current one now; others wait for it, and it for them
    """
    def __init__(self, modules: Sequence[torch.nn.Module], inputs: Sequence[Tensor],
                 checkpoint: bool, microbatches: int, place: torch.device = HOST) -> None:
        kept: List[Any] = []
        cast, self.steps, self.place = Autocast(place.type), 0, place
        self.stream = torch.cuda.current_stream(place) if place.type == "cuda" else None
        self.shards: List[Shard] = []
        layers = ffi.new("struct dp_offload_layer[]", len(modules))
        input_border = _border_of(inputs, kept)
        for layer, module in zip(layers, modules):
            shard = Shard(module, len(inputs), cast)
            with cast.on(), in_stream(self.stream):
                inputs = trial(module, inputs, {}, _moved(module, place))
            layer.ops, layer.user, layer.parameter_count = OPS, shard.handle, len(shard.named)
            layer.parameters = _parameters(len(self.shards), shard, kept)
            layer.out = _border_of(inputs, kept)
            self.shards.append(shard)
        self.outputs = [(t.shape, t.dtype) for t in inputs]
        gpu, device, stream = device_of(place), ffi.NULL, ffi.NULL
        if gpu is None:
            device = ffi.gc(new_object(lib.dp_device_open, "struct dp_device", b"host:2"),
                            lib.dp_device_close)
        else:
            wrapped = Stream(gpu, self.stream)
            device, stream = gpu.pointer, wrapped.pointer
            kept.append(wrapped)
        first = ffi.new("int32_t[]", list(range(len(modules) + 1)))
        config = ffi.new(
            "struct dp_offload_config *", {
                "device": device, "stream": stream, "layers": layers,
                "layer_count": len(modules),
                "input": input_border, "slices": len(modules), "first": first,
                "microbatches": microbatches, "checkpoint": checkpoint
            })
        pointer = new_object(lib.dp_offload_open, "struct dp_offload", config)
        # A parameter keeps the memory: what keeps that must not lead to a parameter.
        kept = [each for each in kept if not isinstance(each, Tensor)]
        self._owner = ffi.gc(pointer, _Closes(gpu, [layers, first, config, device, *kept]))
        self._settle()

    def _settle(self) -> None:
        """Let parameters be where the library has them."""
        count = ffi.new("int32_t *")
        found = lib.dp_offload_parameters(self._owner, count)
        named = {ffi.string(found[i].name): found[i] for i in range(count[0])}
        views, self.places = Views(self._owner), {}  # type: Views, Dict[Any, Any]
        at: Dict[int, Any] = {}
        for number, shard in enumerate(self.shards):
            for name, p in shard.named:
                place = named.get(_name(number, name)) or at[p.data_ptr()]
                at.setdefault(p.data_ptr(), place)
                if p not in self.places:
                    self.places[p] = (views.of(place.value[0]),
                                      views.of(place.grad[0]) if p.requires_grad else None)
        for p, (value, _) in self.places.items():
            p.data = value

    def forward(self, inputs: Sequence[Tensor], training: bool) -> List[Tensor]:
        """The outputs of a batch."""
        for p, (value, _) in self.places.items():
            if p.data_ptr() != value.data_ptr():  # it has been given other memory
                value.copy_(p.data)
                p.data = value
        self.clear()
        self.steps += 1
        kept: List[Any] = []
        outs = [torch.empty(shape, dtype=dtype, device=self.place)  # of the caller's stream
                for shape, dtype in self.outputs]
        with in_stream(self.stream):
            step = ffi.new(
                "struct dp_offload_step *", {
                    "inputs": describe_all([t.detach().contiguous() for t in inputs], kept),
                    "outputs": describe_all(outs, kept), "training": training
                })
            check(lib.dp_offload_forward(self._owner, step))
        return outs

    def backward(self, grads: Sequence[Optional[Tensor]],
                 wanted: Sequence[Optional[Tensor]]) -> None:
        """Add to the parameters' gradients, and fill in those of the inputs that are wanted."""
        kept: List[Any] = []
        trained = [(p, grad) for p, (_, grad) in self.places.items() if grad is not None]
        adds = any(p.grad is not None for p, _ in trained)
        for p, grad in trained if adds else ():
            if p.grad is None:
                grad.zero_()
            elif p.grad.data_ptr() != grad.data_ptr():
                grad.copy_(p.grad)
        with in_stream(self.stream):
            gradients = ffi.new(
                "struct dp_offload_gradients *", {
                    "gouts": _given([None if g is None else g.contiguous() for g in grads], kept),
                    "gins": _given(wanted, kept), "accumulate": adds
                })
            try:
                check(lib.dp_offload_backward(self._owner, gradients))
                check(lib.dp_offload_finish(self._owner))
            finally:
                self.clear()
        for p, grad in trained:
            p.grad = grad

    def clear(self) -> None:
        """Forget what is left of a step."""
        for shard in self.shards:
            shard.live.clear()
            shard.random.clear()


def _moved(module: torch.nn.Module, place: torch.device) -> Dict[str, Tensor]:
    """Parameters that are elsewhere, for a trial."""
    return {
        name: p.detach().to(place) for name, p in module.named_parameters()
        if p.device.type != place.type
    }


class _Closes:
    """Closes a model in the process that opened it, but none on a GPU when the interpreter ends,
    whose allocator is gone, and then lets go of what it works on."""
    def __init__(self, gpu: Optional[Device], kept: List[Any]) -> None:
        self.gpu, self.kept, self.process = gpu, kept, os.getpid()

    def __call__(self, pointer: Any) -> None:
        if os.getpid() == self.process and not (self.gpu and sys.is_finalizing()):
            lib.dp_offload_close(pointer)


def _given(tensors: Sequence[Optional[Tensor]], kept: List[Any]) -> Any:
    """DLTensor *[], NULL where there is none."""
    array = ffi.new("DLTensor *[]",
                    [ffi.NULL if t is None else describe(t, kept) for t in tensors])
    kept.append(array)
    return array


def _border_of(tensors: Sequence[Tensor], kept: List[Any]) -> Any:
    made = ffi.new("struct dp_border *",
                   border([spec(t.shape, t.dtype, not has_gradient(t.dtype)) for t in tensors]))
    kept.append(made)
    return made


def _name(shard: int, name: str) -> bytes:
    return f"{shard}.{name}".encode()


def _parameters(number: int, shard: Shard, kept: List[Any]) -> Any:
    """struct dp_parameter[] of a shard."""
    made = ffi.new("struct dp_parameter[]", max(len(shard.named), 1))
    for place, (name, p) in zip(made, shard.named):
        text = ffi.new("char[]", _name(number, name))
        place.name, place.value = text, describe(p.data, kept)
        if p.requires_grad:
            place.grad = describe(p.data, kept)
        else:
            place.flags = lib.DP_PARAMETER_FROZEN
        kept.append(text)
    kept.append(made)
    return made


@callback("dpy_layer_forward")
def _forward(user: Any, call: Any, given: Any, wanted: Any) -> None:
    ffi.from_handle(user).forward(call, given, wanted)


@callback("dpy_layer_backward")
def _backward(user: Any, call: Any, gout: Any, gin: Any) -> None:
    ffi.from_handle(user).backward(call, gout, gin)


OPS = ffi.new("struct dp_offload_layer_ops *",
              {"forward": lib.dpy_layer_forward, "backward": lib.dpy_layer_backward})
