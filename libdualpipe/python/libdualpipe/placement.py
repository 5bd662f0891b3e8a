# SPDX-License-Identifier: Apache-2.0
"""Which GPU does whose work, and which route every byte of a step takes.

    found = place(Topology.of_description("dgx-h100 host:2"), Schedule("dualpipe", 8, 32),
                  replicas=2, activation_bytes=1 << 24, parameter_bytes=1 << 30)
    found.after_ns < found.before_ns
    Path("assignment").write_text(found.text)        # for DUALPIPE_PLACEMENT

What `dualpipe topo place` shows, as objects; torch is not needed. Source: dualpipe/placement.h.
"""
from typing import Any, List, NamedTuple, Optional, Sequence

from ._native import ffi, lib, made_text, new_object, owned, text_of
from .schedule import Schedule
from .topology import Topology


class Worker(NamedTuple):
    """Who works where: labels of the GPU, of the NUMA node of its pinned buffers (None: not known)
    and of the NICs, the one to use first first."""
    replica: int
    rank: int
    gpu: str
    memory: Optional[str]
    nics: List[str]


class Flow(NamedTuple):
    """Bytes of a step between two workers, and the class of their route."""
    kind: str
    source: int
    target: int
    bytes: float
    route: str


class Placement(NamedTuple):
    """before_ns, after_ns: how long the slowest link is busy in a step, in the order in which the
    ranks came and as placed; exact: no order is better; text: for DUALPIPE_PLACEMENT."""
    exact: bool
    before_ns: float
    after_ns: float
    workers: List[Worker]
    flows: List[Flow]
    text: str


def place(topology: Topology,
          schedule: Schedule,
          *,
          activation_bytes: float,
          gradient_bytes: float = 0,
          parameter_bytes: float = 0,
          offload_bytes: float = 0,
          replicas: int = 1,
          gpus: Optional[Sequence[str]] = None,
          effort: int = 0,
          seed: int = 0) -> Placement:
    """Find one. Bytes are per step, of one message or one stage; gradient_bytes 0: as forwards;
    gpus: in the order in which ranks come, None: the topology's first. Raises DualpipeError for too
    few GPUs, and for two that have something to send and no route."""
    spec = ffi.new("struct dp_placement_spec *", {
        "topology": topology.pointer, "schedule": schedule.pointer, "replicas": replicas,
        "activation_bytes": activation_bytes, "gradient_bytes": gradient_bytes,
        "parameter_bytes": parameter_bytes, "offload_bytes": offload_bytes, "effort": effort,
        "seed": seed})
    if gpus is not None:
        if len(gpus) != replicas * schedule.ranks:
            raise ValueError(f"{len(gpus)} GPUs, expected {replicas * schedule.ranks}")
        listed = ffi.new("int32_t[]", [topology.find(gpu) for gpu in gpus])
        spec.gpus = listed
    holder = _Placed(new_object(lib.dp_placement_new, "struct dp_placement", spec))
    return _described(holder.pointer, topology)


class _Placed:
    def __init__(self, pointer: Any) -> None:
        self.pointer = pointer
        owned(self, lib.dp_placement_free, pointer)


def _described(found: Any, topology: Topology) -> Placement:
    workers, flows = [], []
    for i in range(found.replicas * found.ranks):
        w = found.workers[i]
        workers.append(
            Worker(i // found.ranks, i % found.ranks, topology.label(w.gpu),
                   topology.label(w.memory) if w.memory >= 0 else None,
                   [topology.label(w.nics[k]) for k in range(w.nic_count)]))
    for i in range(found.flow_count):
        f = found.flows[i]
        flows.append(
            Flow(text_of(lib.dp_name(lib.DP_NAMES_FLOW, f.kind)), getattr(f, "from"), f.to, f.bytes,
                 text_of(lib.dp_name(lib.DP_NAMES_PATH, f.class_))))
    return Placement(bool(found.exact), found.before_ns, found.after_ns, workers, flows,
                     made_text(lib.dp_placement_write, found, topology.pointer))
