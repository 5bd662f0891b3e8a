# SPDX-License-Identifier: Apache-2.0
"""Modules as layers of a model of the library (dualpipe/model.h): a forward and a backward of each
are torch's, and its parameters lie where the library has them."""
import sys
from collections import Counter
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from .._cuda import HOST, in_stream
from .._native import callback, check, ffi, keep_from_handler, lib
from .._stage import Live, RandomState, Stage, as_tuple
from .._tensor import DTYPES, Views, address, has_gradient, kind_of, memory_of, shape_of, spec

LONGEST_NAME = 64  # of a parameter


# Running statistics as torch and the library name them.
STATISTICS = {"running_mean": "running_mean", "running_var": "running_variance",
              "num_batches_tracked": "commits"}


def norms_of(module: torch.nn.Module) -> List[Any]:
    """Its batch norms whose running statistics the library keeps."""
    return [part for part in module.modules()
            if isinstance(part, _BatchNorm) and type(part).forward is _BatchNorm.forward
            and part.track_running_stats and part.running_mean is not None]


def norm_names(index: int, module: torch.nn.Module) -> Iterator[Tuple[str, str]]:
    """Running statistics of a layer: their names in its state dict, and in a checkpoint."""
    norms, names = norms_of(module), {part: name for name, part in module.named_modules()}
    for k, part in enumerate(norms):
        for torchs, ours in STATISTICS.items():
            which = f" norm {k}" if len(norms) > 1 else ""
            yield f"{names[part]}.{torchs}".lstrip("."), f"layer {index}{which} {ours}"


class _Ends:
    """The slot that Stage asks for: what is before and behind is the library's."""
    def __init__(self, first: bool) -> None:
        self.prev, self.next = (-1 if first else 0), 0


class Place(Stage):
    """A module at a place of the list."""
    def __init__(self, model: "Model", index: int, module: Any, split: Optional[str]) -> None:
        super().__init__(module, _Ends(index == 0), 0, split, model.device)
        self.model, self.index = model, index
        self.is_random = self.takes_tuple = self.gives_tuple = self.keeps_grads = False
        self.handed: Dict[int, Sequence[torch.Tensor]] = {}  # by micro-batch, until its backward
        self.norms: List[Any] = []  # batch norms whose running statistics are at statistics_at
        self.statistics_at: Sequence[Any] = ()

    def bind(self, call: Any, with_gradients: bool) -> None:
        """The module's parameters are where this call has them."""
        model = self.model
        for i, parameter in enumerate(model.parameters_of[self.module]):
            value, grad = call.values[i], call.grads[i]
            if parameter.data_ptr() != address(value.data):
                is_new = model.views.owner is None
                model.bound.setdefault(parameter, parameter.data if is_new else None)
                parameter.data = model.views.of(value)
            if with_gradients and parameter.requires_grad and (
                    parameter.grad is None or parameter.grad.data_ptr() != address(grad.data)):
                parameter.grad = model.views.of(grad)

    def clear(self) -> None:
        super().clear()
        self.handed.clear()

    def take_statistics(self) -> None:
        for norm, part in zip(self.statistics_at, self.norms):
            _take_statistics(norm, part)

    # -- forward

    def forward(self, call: Any, given: Any, wanted: Any) -> None:
        trains = bool(call.training and not call.discarded)
        self.bind(call, False)
        args = self.inputs(call, given)
        before = self.own_numbers(call)
        with torch.set_grad_enabled(trains), self.statistics(call):
            outs = as_tuple(self.module(args if self.takes_tuple else args[0]))
        if before is not None:
            before.set()
        if trains:
            self.live[call.mb] = Live(args, outs)
        self.put_outputs(call, wanted, args, outs, trains)

    @contextmanager
    def statistics(self, call: Any) -> Iterator[None]:
        """Batch norms that train tell the library of theirs, and do not move the running ones,
        which the others get."""
        trains = [bool(part.training and call.training) for part in self.norms]
        hooks, buffers = [], [part._buffers for part in self.norms]
        self.statistics_at = [call.norms[k] for k in range(len(self.norms))]
        try:
            for k, part in enumerate(self.norms):
                if trains[k]:
                    part._buffers = {**part._buffers, **dict.fromkeys(STATISTICS)}
                    if not call.again:
                        note = partial(_note, call.norms[k], call.mb_global)
                        hooks.append(part.register_forward_pre_hook(note, with_kwargs=True))
                else:
                    _take_statistics(call.norms[k], part)
            yield
        finally:
            for part, own in zip(self.norms, buffers):
                part._buffers = own
            for hook in hooks:
                hook.remove()

    def inputs(self, call: Any, given: Any) -> Tuple[Any, ...]:
        found = self.model.inputs_of(self.index, call.mb, given)
        if call.training and not call.discarded and self.index:
            for tensor in found:
                if has_gradient(tensor.dtype):
                    tensor.requires_grad_()
        return found

    def own_numbers(self, call: Any) -> Optional[RandomState]:
        """Random numbers of this step, layer and micro-batch, whichever rank computes them. Returns
        the generators' state before."""
        if not self.is_random or not call.training:
            return None
        before = RandomState()
        torch.manual_seed((call.random.key ^ call.random.stream) & (2**63 - 1))
        return before

    def put_outputs(self, call: Any, wanted: Any, args: Sequence[Any], outs: Sequence[Any],
                    trains: bool) -> None:
        """A backward will read them, so that they are not put where the library would write what
        comes next; else they are copied there."""
        used = {arg.untyped_storage().data_ptr() for arg in args}
        handed = []
        for i, out in enumerate(outs):
            tensor, place = out.detach(), wanted[i]
            self.compare(tensor, place, f"output {i}")
            if trains:
                tensor = tensor.contiguous()
                if tensor.untyped_storage().data_ptr() in used or self.model.views.has(tensor):
                    tensor = tensor.clone()
                place.data = ffi.cast("void *", tensor.data_ptr())
                handed.append(tensor)
            else:
                self.model.view(place).copy_(tensor)
        if trains:
            self.handed[call.mb] = handed
            self.model.passed = (self.index + 1, call.mb, handed)

    def compare(self, tensor: torch.Tensor, place: Any, what: str) -> None:
        shape, dtype = shape_of(place), DTYPES[place.dtype.code, place.dtype.bits]
        if tuple(tensor.shape) != shape or tensor.dtype != dtype:
            raise ValueError(f"{what} of layer {self.index} ({type(self.module).__name__}) is "
                             f"{tuple(tensor.shape)} of {tensor.dtype}, "
                             f"expected {shape} of {dtype}")

    # -- backward: Stage's, with gradients where this call has them

    def backward(self, call: Any, gout: Any, gin: Any, mode: int) -> None:
        self.bind(call, True)
        self.handed.pop(call.mb)
        self.keeps_grads = mode == lib.DP_BACKWARD_INPUT  # the library's last as long as this call
        super().backward(call, gout, gin, mode)

    def roots(self, call: Any, gout: Any) -> Any:
        live = self.live.pop(call.mb)
        pairs = [(out, self.model.view(gout[i])) for i, out in enumerate(live.outs)
                 if out is not None and out.requires_grad and gout[i].data != ffi.NULL]
        return live, [out for out, _ in pairs], [
            grad.clone() if self.keeps_grads else grad for _, grad in pairs
        ]

    def put(self, _call: Any, wanted: Any, tensors: Sequence[Optional[torch.Tensor]],
            what: str) -> None:
        """Gradients of the inputs."""
        for i, tensor in enumerate(tensors):
            if wanted[i].data == ffi.NULL:
                continue
            view = self.model.view(wanted[i])
            if tensor is None:
                view.zero_()
            else:
                view.copy_(tensor)

    def weight(self, call: Any) -> None:
        self.bind(call, True)
        super().weight(call)


def _note(norm: Any, mb: int, _part: Any, args: Any, named: Any) -> None:
    """The input of a batch norm, for the running statistics of the step. From a GPU it is copied,
    for which the host waits."""
    x = (args or (named["input"],))[0].detach()
    rows = torch.empty(x.numel() // x.shape[1], x.shape[1], dtype=torch.float32)
    rows.view(x.movedim(1, -1).shape).copy_(x.movedim(1, -1))
    at = ffi.cast("float *", rows.data_ptr())
    check(lib.dp_batch_norm_forward(norm, lib.DP_BATCH_NORM_TRAIN, mb, len(rows), at, ffi.NULL,
                                    ffi.NULL, at, ffi.NULL, ffi.NULL))


@torch.no_grad()
def _take_statistics(norm: Any, part: Any) -> None:
    """The running statistics of the library, as buffers."""
    for buffer, values in ((part.running_mean, lib.dp_batch_norm_running_mean(norm)),
                           (part.running_var, lib.dp_batch_norm_running_variance(norm))):
        found = torch.frombuffer(ffi.buffer(values, 4 * part.num_features), dtype=torch.float32)
        if not torch.equal(buffer.cpu(), found.to(buffer.dtype)):  # else graphs may have saved it
            buffer.copy_(found)
    if part.num_batches_tracked is not None:
        part.num_batches_tracked.fill_(lib.dp_batch_norm_commits(norm)[0])


class Loss:
    """The loss of micro-batches, with its graph from forward to backward."""
    def __init__(self, model: "Model", function: Callable[..., torch.Tensor], labels: Any) -> None:
        self.model, self.function = model, function
        self.label_count = 0 if labels is None else len(as_tuple(labels))
        self.labels_are_tuple = not isinstance(labels, torch.Tensor)
        self.live: Dict[int, Tuple[Tuple[Any, ...], torch.Tensor]] = {}

    def take(self, call: Any, out: Any, labels: Any) -> Tuple[Tuple[Any, ...], torch.Tensor]:
        outs = tuple(
            tensor.detach()
            for tensor in self.model.inputs_of(len(self.model.places), call.mb, out))
        for tensor in outs:
            if call.training and has_gradient(tensor.dtype):
                tensor.requires_grad_()
        args: List[Any] = [outs if self.model.places[-1].gives_tuple else outs[0]]
        if self.label_count:
            told = tuple(self.model.view(labels[i]) for i in range(self.label_count))
            args.append(told if self.labels_are_tuple else told[0])
        with torch.set_grad_enabled(bool(call.training)):
            loss = self.function(*args)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise ValueError(f"the loss is {loss!r}, expected a tensor of one value")
        return outs, loss

    def forward(self, call: Any, out: Any, labels: Any, value: Any) -> None:
        """value: double *, where the layers are."""
        outs, loss = self.take(call, out, labels)
        if call.training:
            self.live[call.mb_global] = outs, loss
        memory_of(address(value), 1, torch.float64, self.model.device).copy_(loss.detach().view(1))

    def backward(self, call: Any, scale: float, gout: Any) -> None:
        outs, loss = self.live.pop(call.mb_global)
        loss.backward(torch.full_like(loss, scale))
        for i, tensor in enumerate(outs):
            if gout[i].data != ffi.NULL:
                view = self.model.view(gout[i])
                view.zero_() if tensor.grad is None else view.copy_(tensor.grad)


class Model:
    """What the library's callbacks work on. It must not refer to the trainer.

    layers      name and module, each called with what the one before returns
    example     the inputs of the first: a tensor or a tuple of them, rows in dimension 0
    device      where all of them are; stream: of torch's, where that is a GPU
    """
    def __init__(self, layers: Sequence[Tuple[str, Any]], loss: Callable[..., torch.Tensor],
                 example: Any, labels: Any, split: Optional[str], device: torch.device = HOST,
                 stream: Any = None) -> None:
        self.views, self.device, self.stream = Views(), device, stream
        # Those that lie in the library's memory, and, before there is a trainer, what they had.
        self.bound: Dict[torch.nn.Parameter, Any] = {}
        self.passed: Tuple[int, int, Sequence[torch.Tensor]] = (-1, -1, ())
        self.kept: List[Any] = []  # what the library has pointers to
        self.names = [name for name, _ in layers]
        self.parameters_of: Dict[Any, List[torch.nn.Parameter]] = {}
        self.first_names: Dict[torch.nn.Parameter, str] = {}
        self.places = [Place(self, i, layer, split) for i, (_, layer) in enumerate(layers)]
        self.loss = Loss(self, loss, labels)
        self.pointer = self._describe(example, labels, split)

    def clear(self) -> None:
        """Forget what is left of a step."""
        for place in self.places:
            place.clear()
        self.loss.live.clear()
        self.passed = (-1, -1, ())

    def release(self, owner: Any = None) -> None:
        """The parameters move to memory of their own: the library's goes. owner: of memory to
        come."""
        with in_stream(self.stream):
            self.settle()
            for parameter in self.bound:
                self.bound[parameter] = parameter.data.clone()
        self.unbind(owner)

    def unbind(self, owner: Any = None) -> None:
        """The parameters have what they had before."""
        self.clear()
        for parameter, value in self.bound.items():
            parameter.data, parameter.grad = value, None
        self.bound.clear()
        for place in self.places:
            place.statistics_at = ()
        self.views = Views(owner)

    def settle(self) -> None:
        """The running statistics are those that the library has."""
        for place in self.places:
            place.take_statistics()

    def view(self, described: Any) -> Any:
        """A tensor that is not remembered: what passes by need not be the library's."""
        kind = described.dtype.code, described.dtype.bits
        return self.views._new(described, address(described.data), kind,
                               shape_of(described)).detach()

    def inputs_of(self, index: int, mb: int, given: Any) -> Tuple[Any, ...]:
        """What the layer before has handed over, where that is what is given."""
        to, of, tensors = self.passed
        self.passed = (-1, -1, ())
        if (to, of) == (index, mb) and all(
                address(given[i].data) == tensor.data_ptr() for i, tensor in enumerate(tensors)):
            return tuple(tensors)
        return tuple(self.view(given[i]) for i in range(self.widths[index]))

    def state(self) -> Iterator[Tuple[str, str, Any]]:
        """Of a state dict: a name, that in a checkpoint, "" for what is not trained, and its value
        here."""
        for place, prefix in zip(self.places, self.names):
            stored = dict(norm_names(place.index, place.module))
            for name, parameter in place.module.named_parameters(remove_duplicate=False):
                stored[name] = self.first_names[parameter]
            for name, value in place.module.state_dict().items():
                yield f"{prefix}.{name}", stored.get(name, ""), value

    # -- the description

    def _describe(self, example: Any, labels: Any, split: Optional[str]) -> Any:
        tensors = [(place, f"{prefix}.{name}", tensor)
                   for place, prefix in zip(self.places, self.names) for name, tensor in
                   chain(place.module.named_parameters(), place.module.named_buffers())]
        given: Any
        there = next((f", where {name} is" for _, name, tensor in tensors
                      if tensor.device == self.device), "")
        for place, name, tensor in tensors:
            if tensor.device != self.device:
                raise ValueError(f"layer {place.index} ({type(place.module).__name__}): {name} is on "
                                 f"{tensor.device}, expected {self.device}{there}")
        for what, given in (("an input", example), ("a label", labels)):
            for tensor in () if given is None else as_tuple(given):
                self.check_place(what, tensor)
        self.widths = [len(as_tuple(example))]
        given = (_rows(example, 2, self.device), _rows(example, 3, self.device))
        borders = [self._border([_of_row(tensor) for tensor in as_tuple(example)])]
        for place in self.places:
            place.takes_tuple = not isinstance(given[0], torch.Tensor)
            given = self._probe(place, given)
            place.gives_tuple = not isinstance(given[0], torch.Tensor)
            two, three = as_tuple(given[0]), as_tuple(given[1])
            self.widths.append(len(two))
            borders.append(
                self._border(
                    [self._output(place, i, *pair) for i, pair in enumerate(zip(two, three))]))
        ops = self._new("struct dp_layer_ops *", {
            "forward": lib.dpy_model_forward, "backward": lib.dpy_model_backward,
            "weight": lib.dpy_model_weight if split else ffi.NULL})
        made: Dict[Any, Any] = {}
        for place, border in zip(self.places, borders[1:]):
            self._layer(place, ops, border, made)
        return self._new("struct dp_model *", {
            "layers": self._new("const struct dp_layer *[]", [made[p.module] for p in self.places]),
            "layer_count": len(self.places), "input": borders[0],
            "labels": ffi.NULL if labels is None else self._border(
                [_of_row(tensor) for tensor in as_tuple(labels)]),
            "loss": self._new("struct dp_loss_ops *", {
                "loss": lib.dpy_model_loss, "loss_backward": lib.dpy_model_loss_backward}),
            "loss_user": self._handle(self.loss), "leave": lib.dpy_model_leave})

    def check_place(self, what: str, tensor: torch.Tensor) -> None:
        """Of a batch, which the library copies to a GPU."""
        if tensor.device not in (HOST, self.device):
            either = "the host" if self.device == HOST else f"{self.device} or the host"
            raise ValueError(f"{what} is on {tensor.device}, expected {either}")

    def _new(self, kind: str, value: Any) -> Any:
        self.kept.append(ffi.new(kind, value))
        return self.kept[-1]

    def _handle(self, target: Any) -> Any:
        self.kept.append(ffi.new_handle(target))
        return self.kept[-1]

    def _border(self, specs: List[Dict[str, Any]]) -> Any:
        return self._new("struct dp_border *", {"count": len(specs), "tensors": specs})

    def _probe(self, place: Place, given: Any) -> Any:
        """Run it with two and with three rows; buffers and random numbers are afterwards what they
        were."""
        module, state, calls = place.module, RandomState(), Counter[Any]()
        before: Dict[Tuple[Any, str], Tuple[torch.Tensor, torch.Tensor]] = {}
        hooks = [part.register_forward_pre_hook(lambda part, _args: calls.update([part]))
                 for part in norms_of(module)]
        outs = []
        try:
            for some in given:
                for part in module.modules():
                    for key, buffer in part._buffers.items():
                        if buffer is not None and (part, key) not in before:
                            before[part, key] = buffer, buffer.clone()
                with torch.no_grad():
                    outs.append(module(some))
        finally:
            for hook in hooks:
                hook.remove()
        place.norms = norms_of(module)
        names, saved = {part: name for name, part in module.named_modules()}, module.state_dict()
        changed = []
        for (part, key), (buffer, value) in before.items():
            name, now = f"{names.get(part)}.{key}".lstrip("."), part._buffers.get(key)
            if name in saved and not calls[part] and not _same(now, value):
                changed.append(name)
            part._buffers[key] = buffer
            with torch.no_grad():
                buffer.copy_(value)
        if changed:
            raise ValueError(
                f"layer {place.index} ({type(module).__name__}) changes its buffer {changed[0]!r} "
                "in a forward, which each rank would keep for itself: expected only running "
                "statistics of torch's batch norms to change, each called as a module")
        for part in place.norms:
            if part.training and calls[part] > len(given):
                raise ValueError(
                    f"layer {place.index} ({type(module).__name__}) calls its batch norm "
                    f"{names[part]!r} more than once in a forward: expected once, or "
                    "track_running_stats=False")
        place.is_random = state != RandomState()
        state.set()
        return tuple(outs)

    def _output(self, place: Place, i: int, two: torch.Tensor,
                three: torch.Tensor) -> Dict[str, Any]:
        """One row of it: dimensions that follow the rows are those that grow with them."""
        grows = [a != b for a, b in zip(two.shape, three.shape)]
        shape = [a // 2 if grow else a for a, grow in zip(two.shape, grows)]
        if [a * 3 if grow else a for a, grow in zip(shape, grows)] != list(three.shape):
            raise ValueError(
                f"output {i} of layer {place.index} is {tuple(two.shape)} of two rows and "
                f"{tuple(three.shape)} of three, expected dimensions that stay, or grow with the "
                "rows")
        return _spec(shape, grows, two.dtype)

    def _layer(self, place: Place, ops: Any, border: Any, made: Dict[Any, Any]) -> None:
        module, prefix = place.module, self.names[place.index]
        listed = [(f"{prefix}.{name}", parameter) for name, parameter in module.named_parameters()]
        for name, parameter in listed:
            if len(name) > LONGEST_NAME:
                raise ValueError(f"parameter {name}: expected a name of {LONGEST_NAME} characters "
                                 "or less")
        if module in made:
            if place.norms:
                raise ValueError(
                    f"layer {place.index} is an earlier one again, and has a batch norm with "
                    "running statistics: expected track_running_stats=False")
            return
        self.parameters_of[module] = [parameter for _, parameter in listed]
        specs = self._new("struct dp_parameter_spec[]",
                          [self._parameter(name, parameter) for name, parameter in listed])
        for name, parameter in listed:
            self.first_names.setdefault(parameter, name)
        made[module] = self._new("struct dp_layer *", {
            "ops": ops, "user": self._handle((self, module)), "name": self._text(""),
            "parameters": specs, "parameter_count": len(listed), "out": border,
            "norms": self._new("struct dp_batch_norm_config[]", list(map(self._norm, place.norms))),
            "norm_count": len(place.norms), "drops_input": True})

    def _norm(self, part: Any) -> Dict[str, Any]:
        for buffer in (part.running_mean, part.running_var):
            self.kept.append(buffer.to(torch.float32).cpu().contiguous())
        mean, variance = (ffi.cast("float *", tensor.data_ptr()) for tensor in self.kept[-2:])
        # A share of 0 is the default there.
        return {"channels": part.num_features, "momentum": part.momentum or sys.float_info.min,
                "cumulative": part.momentum is None, "unbiased": True, "mean": mean,
                "variance": variance, "commits": int(part.num_batches_tracked or 0)}

    def _parameter(self, name: str, parameter: torch.nn.Parameter) -> Dict[str, Any]:
        tied = self.first_names.get(parameter)
        return {"name": self._text(name), "tied": self._text(tied) if tied else ffi.NULL,
                "flags": 0 if parameter.requires_grad else lib.DP_PARAMETER_FROZEN,
                "dtype": kind_of(parameter.dtype), "ndim": parameter.dim(),
                "shape": list(parameter.shape), "fill": lib.dpy_model_fill}

    def _text(self, text: str) -> Any:
        return self._new("char[]", text.encode())


def _spec(shape: Sequence[int], grows: Sequence[bool], dtype: torch.dtype) -> Dict[str, Any]:
    return spec(shape, dtype, not has_gradient(dtype), grows)


def _of_row(tensor: torch.Tensor) -> Dict[str, Any]:
    """One row of a batch."""
    return _spec([1, *tensor.shape[1:]], [True] + [False] * (tensor.dim() - 1), tensor.dtype)


def _same(now: Optional[torch.Tensor], before: torch.Tensor) -> bool:
    return (now is not None and now.dtype == before.dtype and
            torch.equal(now.cpu().nan_to_num(), before.cpu().nan_to_num()))


def _rows(example: Any, count: int, device: torch.device) -> Any:
    """So many times the first row of an example."""
    if not isinstance(example, torch.Tensor):
        return tuple(_rows(tensor, count, device) for tensor in example)
    return example[:1].detach().expand(count, *example.shape[1:]).clone().to(device)


# ---- called by the library ----


@callback("dpy_model_fill")
def _fill(user: Any, index: int, _seed: int, value: Any) -> None:
    model, module = ffi.from_handle(user)
    model.view(value).copy_(model.parameters_of[module][index].detach())


@ffi.def_extern(name="dpy_model_leave", onerror=keep_from_handler)
def _leave(user: Any) -> None:
    model = ffi.from_handle(user).model
    model.release(model.views.owner)


def _place(user: Any, call: Any) -> Place:
    place: Place = ffi.from_handle(user)[0].places[call.layer]
    return place


@callback("dpy_model_forward")
def _forward(user: Any, call: Any, given: Any, wanted: Any) -> None:
    _place(user, call).forward(call, given, wanted)


@callback("dpy_model_backward")
def _backward(user: Any, call: Any, gout: Any, gin: Any, mode: int) -> None:
    _place(user, call).backward(call, gout, gin, mode)


@callback("dpy_model_weight")
def _weight(user: Any, call: Any) -> None:
    _place(user, call).weight(call)


@callback("dpy_model_loss")
def _loss(user: Any, call: Any, out: Any, labels: Any, values: Any, _most: int, count: Any) -> None:
    ffi.from_handle(user).forward(call, out, labels, values)
    count[0] = 1


@callback("dpy_model_loss_backward")
def _loss_backward(user: Any, call: Any, _out: Any, _labels: Any, scale: float, gout: Any) -> None:
    ffi.from_handle(user).backward(call, scale, gout)
