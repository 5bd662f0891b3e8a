# SPDX-License-Identifier: Apache-2.0
"""Skip connections between layers of a sequence, which travel beside its borders.

A layer says `yield stash("name", tensor)` and a later one `tensor = yield pop("name")`. Within one
stage the tensor is kept here; between stages it is a message of its own, from the one to the other.

Source: torchgpipe; fairscale.nn.pipe.skip, 0.4.
"""
import threading
from abc import ABCMeta
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import GeneratorType
from typing import (Any, ClassVar, Dict, FrozenSet, Iterable, Iterator, List, Optional, Set, Tuple,
                    Type)
from uuid import UUID, uuid4

import torch
from torch import Tensor, nn

from ._native import failure, ffi, lib
from ._tensor import DTYPES, Views, has_gradient, shape_of

Key = Tuple[Any, str]  # namespace, name


@dataclass(frozen=True, order=True)
class Namespace(metaclass=ABCMeta):
    """Skips of the same name are apart in different ones. A copy is the same one, and None is the
    default one."""

    id: UUID = field(default_factory=uuid4)


Namespace.register(type(None))


# ---- where skips go ----


class Tracker:
    """Skips within one stage, or without a pipeline."""
    def __init__(self) -> None:
        self.values: Dict[Key, Optional[Tensor]] = {}

    def save(self, key: Key, tensor: Optional[Tensor]) -> None:
        self.values[key] = tensor

    def load(self, key: Key) -> Optional[Tensor]:
        return self.values.pop(key)


class TrialTracker(Tracker):
    """Of a stage that is run for the shapes of what it puts out. crossing: numbers of the skips
    between stages; shapes: those of earlier stages, of which this one adds its own; place: where
    it computes."""
    def __init__(self, crossing: Dict[Key, int], shapes: Dict[int, Any],
                 place: torch.device) -> None:
        super().__init__()
        self.crossing, self.shapes, self.place = crossing, shapes, place

    def save(self, key: Key, tensor: Optional[Tensor]) -> None:
        if key not in self.crossing:
            super().save(key, tensor)
        else:
            self.shapes[self.crossing[key]] = None if tensor is None else (tuple(tensor.shape),
                                                                           tensor.dtype)

    def load(self, key: Key) -> Optional[Tensor]:
        if key not in self.crossing:
            return super().load(key)
        found = self.shapes[self.crossing[key]]
        return None if found is None else torch.zeros(
            found[0], dtype=found[1], device=self.place)


class CallTracker(Tracker):
    """Of a micro-batch in a stage of a pipeline."""
    def __init__(self, crossing: Dict[Key, int], call: Any, views: Views) -> None:
        super().__init__()
        self.crossing, self.call, self.views = crossing, call, views
        self.stashed: Dict[int, Tensor] = {}
        self.popped: Dict[int, Tensor] = {}

    def save(self, key: Key, tensor: Optional[Tensor]) -> None:
        if key not in self.crossing:
            super().save(key, tensor)
            return
        place = _found(lib.dp_skip_stash, self.call, self.crossing[key])
        if tensor is None:
            place.data = ffi.NULL
            return
        shape, dtype = shape_of(place), DTYPES[place.dtype.code, place.dtype.bits]
        if tuple(tensor.shape) != shape or tensor.dtype != dtype:
            raise ValueError(f"'{key[1]}' is stashed as {tuple(tensor.shape)} of {tensor.dtype}, "
                             f"expected {shape} of {dtype}")
        self.views.of(place).copy_(tensor.detach())
        self.stashed[self.crossing[key]] = tensor

    def load(self, key: Key) -> Optional[Tensor]:
        if key not in self.crossing:
            return super().load(key)
        value = self.views.of(_found(lib.dp_skip_pop, self.call, self.crossing[key]))
        if value is None:
            return None
        if torch.is_grad_enabled() and has_gradient(value.dtype):
            self.popped[self.crossing[key]] = value.requires_grad_()
        return value.clone()  # it lasts longer than the library's, and may be changed in place

    def gradients(self, call: Any) -> Iterator[Tuple[Tensor, Tensor]]:
        """What was stashed and its gradients, in a backward."""
        for number, tensor in self.stashed.items():
            grad = self.views.of(_found(lib.dp_skip_stash_gradient, call, number))
            if grad is not None and tensor.requires_grad:
                yield tensor, grad

    def put_gradients(self, call: Any) -> None:
        """Of what was popped, after the backward."""
        for number, leaf in self.popped.items():
            place = _found(lib.dp_skip_pop_gradient, call, number)
            if leaf.grad is None:
                place.data = ffi.NULL
            else:
                self.views.of(place).copy_(leaf.grad)


def _found(function: Any, call: Any, number: int) -> Any:
    """A DLTensor * of a skip. Raises DualpipeError."""
    place = function(call, ffi.NULL, b"%d" % number)
    if place == ffi.NULL:
        raise failure(lib.DP_ESTATE)
    return place


class _Current(threading.local):
    def __init__(self) -> None:
        self.tracker = Tracker()


_current = _Current()


@contextmanager
def tracking(tracker: Tracker) -> Iterator[None]:
    before, _current.tracker = _current.tracker, tracker
    try:
        yield
    finally:
        _current.tracker = before


# ---- layers ----


class stash:
    """The command to stash a tensor, or None, under a name: `yield stash("name", tensor)`."""
    __slots__ = ("name", "tensor")

    def __init__(self, name: str, tensor: Optional[Tensor]) -> None:
        self.name, self.tensor = name, tensor


class pop:
    """The command to get it: `tensor = yield pop("name")`."""
    __slots__ = ("name", )

    def __init__(self, name: str) -> None:
        self.name = name


class Skippable(nn.Module):
    """A layer with skips. Subclasses are made by `skippable`."""

    module_cls: ClassVar[Type[nn.Module]]
    stashable_names: ClassVar[FrozenSet[str]]
    poppable_names: ClassVar[FrozenSet[str]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.module = self.module_cls(*args, **kwargs)
        self.namespaces: Dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"@skippable({self.module})"

    def namespaced(self, name: str) -> Key:
        return self.namespaces.get(name), name

    def stashable(self) -> Iterable[Key]:
        """What it stashes, by namespace and name."""
        return [self.namespaced(name) for name in sorted(self.stashable_names)]

    def poppable(self) -> Iterable[Key]:
        """What it pops."""
        return [self.namespaced(name) for name in sorted(self.poppable_names)]

    def isolate(self, ns: Namespace, *, only: Optional[Iterable[str]] = None) -> "Skippable":
        """Put the skips of these names, or all, in a namespace. Returns the layer itself."""
        for name in self.stashable_names | self.poppable_names if only is None else only:
            self.namespaces[name] = ns
        return self

    def forward(self, input: Any) -> Any:
        """The layer's output. Raises RuntimeError for a skip that is not there, is not declared, or
        is declared and neither stashed nor popped; TypeError for another command."""
        tracker = _current.tracker
        stashed: Dict[str, Any] = {}
        waiting: Dict[str, Any] = {}
        for key in self.poppable():
            try:
                waiting[key[1]] = tracker.load(key)
            except KeyError:
                raise RuntimeError(f"'{key[1]}' has not been stashed")
        output = self._run(self.module(input), stashed, waiting)
        for names, what in ((self.stashable_names - stashed.keys(), "stashed"),
                            (waiting.keys(), "popped")):
            if names:
                listed = ", ".join(f"'{name}'" for name in names)
                raise RuntimeError(f"{listed} must be {what} but have not")
        for key in self.stashable():
            tracker.save(key, stashed[key[1]])
        return output

    def _run(self, steps: Any, stashed: Dict[str, Any], waiting: Dict[str, Any]) -> Any:
        """Carry out the commands of a layer that has any."""
        answer: Any = None
        while isinstance(steps, GeneratorType):
            try:
                command = steps.send(answer)
            except StopIteration as stop:
                return stop.value
            answer = None
            if isinstance(command, stash):
                if command.name not in self.stashable_names:
                    raise RuntimeError(f"'{command.name}' has not been declared as stashable")
                stashed[command.name] = command.tensor
            elif isinstance(command, pop):
                if command.name not in self.poppable_names:
                    raise RuntimeError(f"'{command.name}' has not been declared as poppable")
                answer = waiting.pop(command.name)
            else:
                raise TypeError(f"{command!r} is not a command from @skippable")
        return steps


def skippable(stash: Iterable[str] = (), pop: Iterable[str] = ()) -> Any:
    """A decorator of a layer's class that stashes and pops skips of these names."""
    names = {"stashable_names": frozenset(stash), "poppable_names": frozenset(pop)}

    def extend(module_cls: Type[nn.Module]) -> Type[Skippable]:
        return type(module_cls.__name__, (Skippable, ), {"module_cls": module_cls, **names})

    return extend


def verify_skippables(module: nn.Sequential) -> None:
    """Raises TypeError with all that is wrong: a skip that is stashed and popped by one layer,
    twice in a namespace, popped before it is stashed, or never popped."""
    stashed: Set[Key] = set()
    popped: Set[Key] = set()
    wrong: List[str] = []
    for label, layer in module.named_children():
        if not isinstance(layer, Skippable):
            continue
        both = layer.stashable_names & layer.poppable_names
        wrong += [f"'{label}' declared '{name}' both as stashable and as poppable" for name in both]
        for keys, seen, what in ((layer.stashable(), stashed, "stashable"),
                                 (layer.poppable(), popped, "poppable")):
            for key in keys:
                if key[1] in both:
                    continue
                if key in seen:
                    wrong.append(f"'{label}' redeclared '{key[1]}' as {what} "
                                 "but not isolated by namespace")
                elif what == "poppable" and key not in stashed:
                    wrong.append(f"'{label}' declared '{key[1]}' as poppable "
                                 "but it was not stashed")
                else:
                    seen.add(key)
    wrong += [
        f"no module declared '{name}' as poppable but stashed" for _, name in stashed - popped
    ]
    if wrong:
        raise TypeError("one or more pairs of stash and pop do not match:\n\n" +
                        "\n".join(f"* {line}" for line in wrong))
