# SPDX-License-Identifier: Apache-2.0
"""Train a list of modules over P stages x D replicas (dualpipe/trainer.h)."""
import json
from contextlib import ExitStack, contextmanager
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence
from typing import Tuple, Union

import torch
import torch.distributed as dist

from .._cuda import Stream, device_of, have_links, in_stream, place_of
from .._group import Comm, comm_of, meeting_at
from .._native import (DualpipeError, check, ffi, lib, names_of, new_object, number_of, owned,
                       parse, set_members, text_of, then)
from .._stage import as_tuple
from .._tensor import Views, describe
from ._model import Model

SUMS = {"all": lib.DP_SUMS_ALL, "shards": lib.DP_SUMS_SHARDS, "mixing": lib.DP_SUMS_MIXING}
RATES = {"constant": lib.DP_RATE_CONSTANT, "cosine": lib.DP_RATE_COSINE,
         "linear": lib.DP_RATE_LINEAR, "step": lib.DP_RATE_STEP}
ALGORITHMS = names_of(lib.DP_NAMES_MIXER, lib.DP_MIXER_ALGORITHMS)
COMPRESSIONS = {"none": lib.DP_COMPRESSION_NONE, "int8": lib.DP_COMPRESSION_INT8}


class Result(NamedTuple):
    """What a step was like, the same on every rank.

    loss      mean over the rows, before the update
    norm      of the whole gradient before clipping
    rate      the learning rate
    skipped   the gradient was not finite: it was not used
    step      its number, from 0
    """
    loss: float
    norm: float
    rate: float
    skipped: bool
    step: int


class _Memory:
    """The library's trainer: it is freed when the last tensor over its memory has gone."""
    def __init__(self, pointer: Any, kept: Any, comm: Optional[Comm]) -> None:
        self.pointer = pointer
        owned(self, lib.dp_trainer_free, pointer, kept, comm,
              lock=comm.lock if comm else None)


class Trainer:
    """A model, its optimizer and its checkpoints. Collective over the group, as are all methods.

    layers        an nn.Sequential or a list of modules; each is called with what the one before
                  returns, a tensor or a tuple. All ranks have all of them; a rank trains those of
                  its stages. While the trainer lives their parameters lie in its memory, and
                  `load_state_dict` and other changes in place have an effect; then they are as
                  they were trained. Parameters are float32 or float64, all of them and the buffers
                  on the host or all on one GPU
    loss          loss(outputs, labels), or loss(outputs) without labels: a tensor of one value, the
                  mean over the rows
    example       (inputs, labels), each a tensor or tuple of tensors with rows as dimension 0, of
                  any number of rows, or (inputs, None): what a batch looks like
    rows          of a step, all replicas together: the most there are
    rate          the learning rate, or members of struct dp_rate: {"kind": "cosine", "peak": ...}
    optimizer     "sgd", "adam", "adamw", "accum-adam", "accum-adamw"; optimizer_options: members of
                  struct dp_optimizer_config, as weight_decay, beta1, momentum
    schedule      "1f1b" and others as `dualpipe schedule` has them; None: 1F1B
    replicas      D; the ranks are replica after replica, each of P
    microbatches  of a step, all replicas together; 0: the fewest that the schedule takes
    split         how a backward leaves its weight part for later, where a schedule has one: "graph"
                  (torch's graph is cut at the parameters), "store" (WeightGradStore), None: it does
                  not
    layers_of_stage  how many layers each stage has; None: by their numbers of parameters
    sums          what replicas do: "all" (gradients are summed), "shards" (each updates a part),
                  "mixing" (parameters are mixed by a graph); mixing: members of its struct,
                  {"graph": "ring", "algorithm": "d-psgd", "compression": "int8", ...}
    fixed_order   results are the same to the last bit under every layout
    survive       ranks that die are gone on without (`lost`): each step gets the whole batch on
                  every rank, which may have any stage next
    joins, store  this process comes in the place of that lost rank of replicas that mix, which call
                  `admit` with the same torch store and whose trainers have the same arguments. It
                  needs no group, and goes on with their `next_step`
    folder        for checkpoints, written after each `every` steps, of which `keep` stay; resume:
                  go on from the newest, if there is one; about: what its index says beside the step

    Batch norms normalise each micro-batch by itself. Their running statistics, in float32 here,
    move once a step, on all ranks and replicas alike, by mean and variance of all its rows. They
    are in checkpoints, and go on with their layer where a rank is lost. One that trains is called
    once in a forward. No other buffer of a state dict may change in a forward.

    Random numbers (dropout) are those of seed, step, layer and micro-batch under every layout.

    On a GPU all is queued in the stream of torch's that is the current one now; others wait for it
    around a call, and it for them. Batches may be on the host. In a group with NCCL, each rank with
    a GPU of its own, messages, sums and mixing go from GPU to GPU, and layers and loss are called
    with zeros here, once for each of a step's, so that no kernel is loaded while others wait;
    elsewhere they go by way of the host. The host waits for the end of a step, and in a batch norm
    that trains. Not there: survive, accumulating optimizers.

    Raises ValueError and DualpipeError for arguments that are not sound. An exception of a layer or
    the loss keeps its type on its rank, the others raise DualpipeError; then only a new trainer
    helps.

    Source: dualpipe/trainer.h.
    """
    def __init__(self,
                 layers: Union[torch.nn.Sequential, Sequence[torch.nn.Module]],
                 loss: Callable[..., torch.Tensor],
                 example: Tuple[Any, Any],
                 rows: int,
                 rate: Union[float, Mapping[str, Any]],
                 *,
                 optimizer: str = "adamw",
                 optimizer_options: Optional[Mapping[str, Any]] = None,
                 schedule: Optional[str] = None,
                 replicas: int = 1,
                 microbatches: int = 0,
                 virtual_stages: int = 0,
                 slack: int = 0,
                 recompute: str = "never",
                 split: Optional[str] = "graph",
                 layers_of_stage: Optional[Sequence[int]] = None,
                 sums: str = "all",
                 mixing: Optional[Mapping[str, Any]] = None,
                 clip: float = 0.0,
                 survive: bool = False,
                 fixed_order: bool = False,
                 order_blocks: int = 0,
                 seed: int = 0,
                 folder: Optional[str] = None,
                 every: int = 0,
                 keep: int = 0,
                 resume: bool = False,
                 about: Optional[Mapping[str, Any]] = None,
                 group: Any = None,
                 joins: Optional[int] = None,
                 store: Any = None) -> None:
        if (joins is None) != (store is None):
            raise ValueError(f"joins: {joins}, store: {store}, expected both or none of them")
        self._joins = joins is not None
        self._comm: Optional[Comm] = Comm(None, store) if self._joins else \
            comm_of(group) if group or dist.is_initialized() else None
        self._failed: Optional[BaseException] = None
        self._survives = survive
        kept: List[Any] = []
        with self._together(), ExitStack() as around:
            named = _named(layers)
            place = place_of(layer for _, layer in named)
            device = device_of(place)
            self._stream = torch.cuda.current_stream(place) if device else None
            around.enter_context(in_stream(self._stream))
            if survive and device:
                raise ValueError(f"survive: with layers on {place}, expected the host")
            self._model = model = Model(named, loss, *example, split, place, self._stream)
            config = ffi.new("struct dp_trainer_config *", {
                "replicas": replicas, "microbatches": microbatches, "rows": rows, "clip": clip,
                "survive": survive, "fixed_order": fixed_order, "order_blocks": order_blocks,
                "seed": seed, "sums": number_of("sums", sums, SUMS), "schedule": {
                    "kind": lib.DP_SCHEDULE_USER if schedule is None else parse(
                        lib.dp_schedule_kind_parse, "dp_schedule_kind", schedule),
                    "virtual_stages": virtual_stages, "slack": slack, "recompute": parse(
                        lib.dp_recompute_parse, "dp_recompute", recompute)},
                "optimizer": _optimizer(optimizer, optimizer_options or {}),
                "rate": _rate(rate),
                "checkpoint": {"folder": _text(folder, kept), "every": every, "keep": keep,
                               "resume": resume,
                               "about": _text(json.dumps(about) if about else None, kept)}})
            if layers_of_stage is not None:
                kept.append(ffi.new("int32_t[]", list(layers_of_stage)))
                config.balance, config.layers_of_stage = lib.DP_BALANCE_GIVEN, kept[-1]
            _mix(config.mixing, mixing or {}, kept)
            comm = self._comm
            if device is not None:
                stream = Stream(device, self._stream)
                config.device, config.stream = device.pointer, stream.pointer
                model.kept.append(stream)
            config.nccl = comm is not None and have_links(comm, device)
            found = comm.pointer if comm else ffi.NULL
            function, *number = (lib.dp_trainer_new, ) if joins is None else (lib.dp_trainer_join,
                                                                             joins)
            try:
                pointer = new_object(function, "struct dp_trainer", config, model.pointer, found,
                                     *number, comm=found)
            finally:
                model.unbind()  # it may have taken a step
        self._memory: Optional[_Memory] = _Memory(pointer, model.kept, comm)
        model.views = Views(self._memory)
        self._release = owned(self, Model.release, model)

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Around what all ranks do together."""
        if self._failed is not None:
            raise RuntimeError("this trainer has failed, expected a new one") from self._failed
        if self._comm is None:
            yield
        elif self._joins or (self._survives and hasattr(self, "_memory")):  # it ends no other rank
            with self._comm.lock:
                try:
                    yield
                except BaseException:
                    if not hasattr(self, "_memory"):  # the others go on without this one
                        self._comm.close()
                    raise
        else:
            with self._comm.call():
                yield

    @property
    def _pointer(self) -> Any:
        if self._memory is None:
            raise RuntimeError("this trainer is closed")
        return self._memory.pointer

    def _run(self, function: Any, *args: Any, batch: Sequence[Any] = ()) -> None:
        """batch: inputs, labels and rows, of which what is wrong ends the call on all ranks."""
        pointer, kept = self._pointer, []  # type: Any, List[Any]
        model = self._model
        with self._together(), in_stream(self._stream), then(model.clear), then(model.settle):
            try:
                first = [self._batch(kept, *batch)] if batch else []
                check(function(pointer, *first, *args), self._comm and self._comm.pointer)
            except BaseException as error:
                self._failed = error
                raise

    def _batch(self, kept: List[Any], inputs: Any, labels: Any, rows: Optional[int]) -> Any:
        given = [tensor for one in (inputs, labels) if one is not None for tensor in as_tuple(one)]
        count = rows or (given[0].shape[0] if given else 0)
        batch = ffi.new("struct dp_batch *", {"rows": count})
        for name, what, tensors in (("inputs", "an input", inputs), ("labels", "a label", labels)):
            if tensors is not None:
                for tensor in as_tuple(tensors):
                    self._model.check_place(what, tensor)
                setattr(batch, name, _tree(as_tuple(tensors), kept))
        kept.append(batch)
        return batch

    def step(self, inputs: Any = None, labels: Any = None, rows: Optional[int] = None) -> Result:
        """Train on a batch of all replicas' rows: inputs where a pipeline begins, labels where it
        ends, the same on each such rank; others may leave them out, and say the number of rows
        where it is not the trainer's."""
        result = ffi.new("struct dp_trainer_result *")
        self._run(lib.dp_trainer_step, result, batch=(inputs, labels, rows))
        return Result(result.loss, result.norm, result.rate, bool(result.skipped), result.step)

    def evaluate(self, inputs: Any = None, labels: Any = None, rows: Optional[int] = None) -> float:
        """The loss of a batch without training, with all modules in eval mode."""
        loss = ffi.new("double *")
        trains = [part for place in self._model.places for part in place.module.modules()
                  if part.training]
        for part in trains:
            part.training = False
        try:
            self._run(lib.dp_trainer_evaluate, loss, batch=(inputs, labels, rows))
        finally:
            for part in trains:
                part.training = True
        return float(loss[0])

    @property
    def lost(self) -> List[int]:
        """Ranks that have died, with survive. What a rank trains may be other layers then."""
        ranks = ffi.new("const int32_t **")
        count = lib.dp_trainer_lost(self._pointer, ranks)
        return [ranks[0][i] for i in range(count)]

    def admit(self, store: Any, count: int = 1) -> bool:
        """With survive and replicas that mix: let `count` processes that wait with `joins` come in
        the place of ranks that are lost. store: of torch's, which these know, too; another one, or
        another prefix of it, each time. All ranks that live call it after the same step. False: one
        has died or did not come in the store's timeout, or has other arguments; training goes on
        without, and this may be called again."""
        config, _needs = meeting_at(store)
        try:
            self._run(lib.dp_trainer_admit, count, config)
        except DualpipeError as error:
            if error.errno in (lib.DP_EAGAIN, lib.DP_EINVAL, lib.DP_EUNSUPPORTED):
                self._failed = None  # nothing has begun
            if error.errno != lib.DP_EAGAIN:
                raise
            return False
        return True

    @property
    def next_step(self) -> int:
        """The number of the next step; it counts those before a resume, too."""
        return int(lib.dp_trainer_next_step(self._pointer))

    def save(self, folder: Optional[str] = None) -> None:
        """Write a checkpoint to folder/step-N; None: to the trainer's folder."""
        kept: List[Any] = []
        self._run(lib.dp_trainer_save, _text(folder, kept))

    def resume(self, folder: Optional[str] = None) -> None:
        """Go on from a checkpoint, of a folder the newest, whatever layout has written it."""
        kept: List[Any] = []
        self._run(lib.dp_trainer_resume, _text(folder, kept))

    def finish(self) -> None:
        """The training is over: replicas that mix become their average, and the last checkpoint is
        written."""
        self._run(lib.dp_trainer_finish)

    def gather(self, rank: int = 0) -> Optional[Dict[str, torch.Tensor]]:
        """On that rank of those that live `nn.Sequential(*layers).state_dict()` of the whole model,
        on the host, with its own extra state; None on the others."""
        out, count = ffi.new("struct dp_named_tensor **"), ffi.new("int32_t *")
        self._run(lib.dp_trainer_gather, rank, out, count)
        if out[0] == ffi.NULL:
            return None
        views = Views()
        try:
            found = {text_of(out[0][i].name): views.of(out[0][i].tensor).clone()
                     for i in range(count[0])}
        finally:
            lib.dp_trainer_gathered_free(out[0])
        return {name: found[stored] if stored else value.to("cpu", copy=True) if isinstance(
            value, torch.Tensor) else value for name, stored, value in self._model.state()}

    def close(self) -> None:
        """Free the library's memory; the parameters move to memory of their own."""
        self._release()
        self._memory = None


def _named(layers: Any) -> List[Tuple[str, Any]]:
    if isinstance(layers, torch.nn.Sequential):
        return list(layers._modules.items())
    return [(str(i), layer) for i, layer in enumerate(layers)]


def _text(text: Optional[str], kept: List[Any]) -> Any:
    if text is None:
        return ffi.NULL
    kept.append(ffi.new("char[]", str(text).encode()))
    return kept[-1]


def _optimizer(name: str, options: Mapping[str, Any]) -> Any:
    config = ffi.new("struct dp_optimizer_config *",
                     lib.dp_optimizer_defaults(
                         parse(lib.dp_optimizer_kind_find, "dp_optimizer_kind", name)))
    set_members(config, options, "optimizer_options")
    return config[0]


def _rate(rate: Union[float, Mapping[str, Any]]) -> Any:
    struct = ffi.new("struct dp_rate *")
    members: Dict[str, Any] = dict(rate) if isinstance(rate, Mapping) else {"peak": rate}
    members["kind"] = number_of("rate", members.get("kind", "constant"), RATES)
    set_members(struct, members, "rate")
    return struct[0]


def _mix(struct: Any, members: Mapping[str, Any], kept: List[Any]) -> None:
    numbers = dict(members)
    struct.graph.name = _text(numbers.pop("graph", None), kept)
    for name, table in (("algorithm", ALGORITHMS), ("compression", COMPRESSIONS)):
        if name in numbers:
            numbers[name] = number_of(f"mixing {name}", numbers[name], table)
    set_members(struct, numbers, "mixing")


def _tree(tensors: Sequence[torch.Tensor], kept: List[Any]) -> Any:
    leaves = ffi.new("struct dp_tree[]", [
        {"kind": lib.DP_TREE_TENSOR, "tensor": describe(tensor.detach(), kept)}
        for tensor in tensors])
    tree = ffi.new("struct dp_tree *",
                   {"kind": lib.DP_TREE_TUPLE, "count": len(tensors), "items": leaves})
    kept += [leaves, tree]
    return tree
