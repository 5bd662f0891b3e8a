# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of the library, which are safetensors files, and torch's state dicts, both ways.

    save("model.safetensors", module.state_dict(), {"epoch": 3})
    module.load_state_dict(load("model.safetensors"))

    load_training("run1", module, optimizer)        # of a Trainer: the newest in the folder
    save_training("run2", module, optimizer, 500)   # for Trainer(..., folder="run2", resume=True)

Tensors are on the host. Raises DualpipeError for files that are not there, malformed or damaged.
Source: dualpipe/checkpoint.h.
"""
import json
import os
import re
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

import torch

from .._native import check, ffi, lib, new_object, owned, text_of
from .._tensor import DTYPES, describe
from ._model import STATISTICS, norm_names

# What the library's optimizers and torch's call the same.
STATE = {"step": "step", "mean": "exp_avg", "square": "exp_avg_sq", "momentum": "momentum_buffer"}


class Checkpoint:
    """An open one: a file, an index, or a folder with one, or with step-N, of which the newest.

    about     what its writer said beside the tensors, as "step"
    """
    def __init__(self, path: Any) -> None:
        self.path = _file_of(str(path))
        self._pointer = new_object(lib.dp_checkpoint_open, "struct dp_checkpoint",
                                   self.path.encode())
        owned(self, lib.dp_checkpoint_close, self._pointer)
        self.about: Dict[str, Any] = json.loads(text_of(lib.dp_checkpoint_json(self._pointer)))
        self._found: Dict[str, Tuple[Tuple[int, ...], torch.dtype]] = {}
        for i in range(lib.dp_checkpoint_count(self._pointer)):
            tensor = lib.dp_checkpoint_at(self._pointer, i)
            kind = tensor.dtype.code, tensor.dtype.bits
            if kind not in DTYPES:
                raise TypeError(f"{self.path}: {text_of(tensor.name)} is of type code {kind[0]} "
                                f"with {kind[1]} bits, which torch has not")
            self._found[text_of(tensor.name)] = (tuple(
                tensor.shape[k] for k in range(tensor.ndim)), DTYPES[kind])

    def names(self) -> List[str]:
        """Of all tensors; those of a trainer's optimizer are NAME/mean and others."""
        return list(self._found)

    def read(self, name: str, like: Optional[torch.Tensor] = None) -> torch.Tensor:
        """A tensor, and its checksum is compared. like: of its shape and type, also put together of
        what several ranks have each had a part of."""
        if like is not None:
            out = torch.empty(like.shape, dtype=like.dtype, device="cpu")
        elif name in self._found:
            out = torch.empty(self._found[name][0], dtype=self._found[name][1], device="cpu")
        else:
            raise KeyError(f"{self.path}: no tensor {name!r}")
        kept: List[Any] = []
        text = ffi.new("char[]", name.encode())
        wanted = ffi.new("struct dp_named_tensor *",
                         {"name": text, "tensor": describe(out, kept)[0]})
        check(lib.dp_checkpoint_read_pieces(self._pointer, wanted))
        return out

    def state_of(self, name: str) -> List[str]:
        """Which states the optimizer has of a parameter: "mean" ..., also where they are in
        pieces."""
        found = re.compile(re.escape(name) + r"(?:\[\d+:\d+\])?/([a-z]+)$")
        return sorted({match[1] for match in map(found.match, self._found) if match})


def _file_of(path: str) -> str:
    if not os.path.isdir(path):
        return path
    steps = [entry for entry in os.listdir(path) if re.fullmatch(r"step-\d+", entry)]
    steps.sort(key=lambda entry: int(entry[5:]))
    folders = [path, *(os.path.join(path, step) for step in reversed(steps))]
    for folder in folders:
        if os.path.exists(os.path.join(folder, "index.json")):
            return os.path.join(folder, "index.json")
    return os.path.join(path, "index.json")


def save(path: Any, tensors: Mapping[str, torch.Tensor],
         about: Optional[Mapping[str, Any]] = None) -> None:
    """Write one file."""
    kept: List[Any] = []
    array = ffi.new("struct dp_named_tensor[]", max(len(tensors), 1))
    for place, (name, tensor) in zip(array, tensors.items()):
        kept.append(ffi.new("char[]", name.encode()))
        place.name = kept[-1]
        place.tensor = describe(tensor.detach().cpu(), kept)[0]
    check(
        lib.dp_checkpoint_write(
            str(path).encode(), array, len(tensors),
            json.dumps(dict(about)).encode() if about else ffi.NULL))


def load(path: Any) -> Dict[str, torch.Tensor]:
    """All tensors of a checkpoint, as they are stored."""
    found = Checkpoint(path)
    return {name: found.read(name) for name in found.names()}


def _parameters(module: Any) -> Iterable[Tuple[str, torch.Tensor]]:
    """Shared ones once, and the buffers that a state dict has."""
    state = module.state_dict()
    yield from module.named_parameters()
    yield from ((name, buffer) for name, buffer in module.named_buffers() if name in state)


def _stored_names(module: Any) -> Dict[str, str]:
    """Of running statistics, as the Trainer has them."""
    return {f"{child}.{name}": stored for i, (child, layer) in enumerate(module._modules.items())
            if layer is not None for name, stored in norm_names(i, layer)}


def load_training(path: Any, module: Any, optimizer: Any = None) -> Dict[str, Any]:
    """Read parameters, buffers that are there, and the optimizer's state into a module and an
    optimizer of torch over its parameters, whichever layout has written them. Names are those of
    the module; that of a Trainer's layers is nn.Sequential(*layers). Returns what is said beside:
    {"step": 500}.

    Raises DualpipeError for a parameter that is not there, or is of another shape, and KeyError for
    running statistics that are not there where a Trainer has written some."""
    found = Checkpoint(path)
    has_statistics = any(
        re.fullmatch(rf"layer \d+ (norm \d+ )?({'|'.join(STATISTICS.values())})", name)
        for name in found.names())
    parameters, stored = dict(module.named_parameters()), _stored_names(module)
    with torch.no_grad():
        for name, tensor in _parameters(module):
            if name in parameters or name in found.names():
                tensor.copy_(found.read(name, tensor))
            elif name in stored and has_statistics:
                tensor.copy_(found.read(stored[name]))
    if optimizer is not None:
        state = optimizer.state_dict()
        names = {id(parameter): name for name, parameter in parameters.items()}
        listed = [names.get(id(p)) for group in optimizer.param_groups for p in group["params"]]
        state["state"] = {
            i: _state_of(found, name, parameters[name])
            for i, name in enumerate(listed) if name is not None and found.state_of(name)}
        optimizer.load_state_dict(state)
    return found.about


def _state_of(found: Checkpoint, name: str, parameter: torch.Tensor) -> Dict[str, torch.Tensor]:
    state = {}
    for ours in found.state_of(name):
        if ours == "step":
            step = found.read(f"{name}/step") if f"{name}/step" in found.names() else found.read(
                next(n for n in found.names() if n.startswith(f"{name}[") and n.endswith("/step")))
            state["step"] = step.to(torch.float32)
        else:
            state[STATE.get(ours, ours)] = found.read(f"{name}/{ours}", parameter)
    return state


def save_training(folder: Any, module: Any, optimizer: Any = None, step: int = 0,
                  about: Optional[Mapping[str, Any]] = None) -> str:
    """Write folder/step-N as a Trainer does, which may go on from it. Returns its path."""
    tensors, stored = {}, _stored_names(module)
    for name, tensor in _parameters(module):
        is_single = name in stored and tensor.is_floating_point()
        tensors[stored.get(name, name)] = tensor.to(torch.float32) if is_single else tensor
    ours = {torchs: name for name, torchs in STATE.items()}
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    for group in optimizer.param_groups if optimizer is not None else ():
        for parameter in group["params"]:
            # torch's SGD does not count its steps, the library's do.
            for key, value in {"step": step, **optimizer.state.get(parameter, {})}.items():
                if key in ours and value is not None and parameter.requires_grad:
                    value = torch.as_tensor(value)
                    tensors[f"{names[id(parameter)]}/{ours[key]}"] = value.to(
                        torch.int64) if key == "step" else value
    path = os.path.join(str(folder), f"step-{step:06}")
    os.makedirs(path, exist_ok=True)
    save(os.path.join(path, "rank-0.0.safetensors"), tensors)
    kept = ffi.new("char[]", b"rank-0.0.safetensors")
    index = os.path.join(path, "index.json").encode()
    check(
        lib.dp_checkpoint_write_index(index, ffi.new("const char *[]", [kept]), 1,
                                      json.dumps({**(about or {}), "step": step}).encode()))
    return path
