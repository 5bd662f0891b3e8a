# SPDX-License-Identifier: Apache-2.0
"""Schedules as data: who does what, in which order; checked, simulated, drawn, written and read.

    schedule = Schedule("dualpipe", 4, 16)
    schedule.check(), schedule.simulate(f_ns=1000, i_ns=1000, w_ns=1000).bubble_ratio
    schedule                                  # a notebook draws it

What `dualpipe schedule` shows, as objects; torch is not needed. Source: dualpipe/schedule.h.
"""
from typing import Any, List, NamedTuple, Optional, Sequence

from ._native import (check, ffi, lib, made_text, names_of, new_object, number_of, owned, parse,
                      set_members, text_of)

FORMATS = {"text": lib.DP_FORMAT_TEXT, "json": lib.DP_FORMAT_JSON, "csv": lib.DP_FORMAT_CSV,
           "pytorch": lib.DP_FORMAT_PYTORCH}
KINDS = list(names_of(lib.DP_NAMES_SCHEDULE, lib.DP_SCHEDULE_KINDS))
OPS = list(names_of(lib.DP_NAMES_OP, lib.DP_OP_KINDS))
COSTS = {"f_ns": 1000, "i_ns": 1000, "w_ns": 1000}
COLORS = {"F": "#4c78a8", "B": "#f58518", "I": "#e8a14c", "W": "#72b7b2"}


class Op(NamedTuple):
    """An operation of a rank: kind "F", "B", "I", "W", "RECV_F" ..., the slot, the stage there, the
    micro-batch in its stream, whether the next one overlaps it, and all of it as a short text."""
    kind: str
    slot: int
    stage: int
    mb: int
    overlaps: bool
    text: str


class Finding(NamedTuple):
    """What `check` has found: a rule ("deadlock"), a rank (None: no one), the place in its list,
    and the sentence."""
    rule: str
    rank: Optional[int]
    place: int
    text: str


class Span(NamedTuple):
    """A bar of a timeline, in ns from the start of the step. pair: the B of an overlapped pair."""
    rank: int
    start_ns: int
    end_ns: int
    op: Op
    pair: Optional[Op]
    waited_ns: int
    waited_for: Optional[int]


class RankReport(NamedTuple):
    busy_ns: int
    bubble_ns: int
    waiting_ns: int
    peak_activations: int
    peak_weight_queue: int
    peak_inputs: int


class Simulation(NamedTuple):
    """A step on paper. critical: the path of ops and messages whose length the makespan is."""
    makespan_ns: int
    bubble_ratio: float
    ranks: List[RankReport]
    timeline: List[Span]
    critical: List[Span]


class Schedule:
    """Who does what, in which order.

    kind          one of KINDS but "user": "dualpipe", "1f1b", "zbv" ...
    ranks         P
    microbatches  M of a step, all streams together

    Raises DualpipeError for numbers that the kind does not take.
    """
    def __init__(self,
                 kind: str,
                 ranks: int,
                 microbatches: int,
                 *,
                 forward_only: bool = False,
                 virtual_stages: int = 0,
                 slack: int = 0,
                 recompute: str = "never",
                 rank_map: Optional[Sequence[int]] = None,
                 outline: bool = False,
                 partition: Any = ffi.NULL,
                 skips: Sequence[Any] = ()) -> None:
        wanted = ffi.new(
            "struct dp_schedule_spec *", {
                "kind": parse(lib.dp_schedule_kind_parse, "dp_schedule_kind", kind), "ranks": ranks,
                "microbatches": microbatches, "forward_only": forward_only,
                "virtual_stages": virtual_stages, "slack": slack, "recompute": parse(
                    lib.dp_recompute_parse, "dp_recompute", recompute)
            })
        mapped = ffi.new("int[]", list(rank_map)) if rank_map else ffi.NULL
        between = ffi.new("struct dp_skip[]", list(skips))
        wanted.rank_map, wanted.partition = mapped, partition
        wanted.skips, wanted.skip_count = between, len(skips)
        make = lib.dp_schedule_new_outline if outline else lib.dp_schedule_new
        self._take(new_object(make, "struct dp_schedule", wanted))

    def _take(self, pointer: Any) -> "Schedule":
        self.pointer = pointer
        self.close = owned(self, lib.dp_schedule_free, pointer, at_exit=False)
        return self

    @classmethod
    def read(cls, text: str, format: str = "csv") -> "Schedule":
        """Of a text in one of FORMATS; "pytorch" is the CSV of torch.distributed.pipelining. It has
        not been checked. Raises DualpipeError, which names the line."""
        data = text.encode()
        return cls.__new__(cls)._take(
            new_object(lib.dp_schedule_read, "struct dp_schedule", data, len(data),
                       number_of("format", format, FORMATS)))

    def forward(self) -> "Schedule":
        """Its forwards alone: the evaluation that goes with it."""
        return self.__class__.__new__(self.__class__)._take(
            new_object(lib.dp_schedule_new_forward, "struct dp_schedule", self.pointer))

    def write(self, format: str = "csv") -> str:
        """As text, to be read again."""
        return made_text(lib.dp_schedule_write, self.pointer, number_of("format", format, FORMATS))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self.write("json") == other.write("json")

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Schedule({self.kind!r}, {self.ranks}, {self.microbatches})"

    @property
    def kind(self) -> str:
        return text_of(lib.dp_name(lib.DP_NAMES_SCHEDULE, self.pointer.kind))

    @property
    def ranks(self) -> int:
        return int(self.pointer.ranks)

    @property
    def stages(self) -> int:
        return int(self.pointer.stages)

    @property
    def microbatches(self) -> int:
        return int(self.pointer.microbatches)

    def slots(self, rank: int) -> List[Any]:
        """struct dp_slot of a pipeline rank: stage, stream, prev, next ..."""
        self._check_rank(rank)
        s = self.pointer
        return [s.slots[i] for i in range(s.first_slot[rank], s.first_slot[rank + 1])]

    def ops(self, rank: int) -> List[Op]:
        """What a pipeline rank does, in its order; empty in an outline."""
        self._check_rank(rank)
        s = self.pointer
        if s.ops == ffi.NULL:
            return []
        return [self._op(rank, s.ops[i]) for i in range(s.first[rank], s.first[rank + 1])]

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.ranks:
            raise IndexError(f"rank {rank}, expected 0 to {self.ranks - 1}")

    def _op(self, rank: int, op: Any) -> Op:
        text = ffi.new("char[]", lib.DP_OP_TEXT_LEN)
        slots = self.slots(rank)
        stage = slots[op.slot].stage if op.slot < len(slots) else -1
        return Op(text_of(lib.dp_name(lib.DP_NAMES_OP, op.kind)), op.slot, stage, op.mb,
                  bool(op.flags & lib.DP_OP_OVERLAP), text_of(lib.dp_op_text(op, text)))

    def check(self, max_activations: int = 0, max_weight_queue: int = 0) -> Optional[Finding]:
        """Whether it can be carried out: the first thing that is wrong, None if nothing is. The
        limits are those of the kind, unless they are given."""
        limits = ffi.new("struct dp_check_limits *", [max_activations, max_weight_queue])
        found = ffi.new("struct dp_finding *")
        if lib.dp_schedule_check(self.pointer, limits, found) == 0:
            return None
        return Finding(text_of(lib.dp_name(lib.DP_NAMES_RULE, found.rule)),
                       found.rank if found.rank >= 0 else None, found.index, text_of(found.text))

    def simulate(self, batches: bool = False, **costs: float) -> Simulation:
        """Start and end of every op. costs: members of struct dp_cost, f_ns, i_ns, w_ns of a stage,
        link_latency_ns ...; without any, 1000 each for F, I and W. batches: a rank waits at a
        COMMIT for all that it receives. Raises DualpipeError for costs that are no numbers or
        negative."""
        cost, out = ffi.new("struct dp_cost *"), ffi.new("struct dp_simulation *")
        set_members(cost, costs or COSTS, "costs")
        flags = lib.DP_SIMULATE_TIMELINE | lib.DP_SIMULATE_CRITICAL | \
            (lib.DP_SIMULATE_BATCHES if batches else 0)
        check(lib.dp_schedule_simulate(self.pointer, cost, flags, out))
        try:
            return Simulation(
                out.makespan_ns, out.bubble_ratio,
                [RankReport(*(getattr(out.ranks[i], name) for name in RankReport._fields))
                 for i in range(self.ranks)],
                [self._span(out.timeline.spans[i]) for i in range(out.timeline.count)],
                [self._span(out.critical[i]) for i in range(out.critical_count)])
        finally:
            lib.dp_simulation_fini(out)

    def _span(self, span: Any) -> Span:
        return Span(span.rank, span.start_ns, span.end_ns, self._op(span.rank, span.op),
                    self._op(span.rank, span.pair) if span.pair.kind else None, span.waited_ns,
                    span.waited_for if span.waited_for >= 0 else None)

    def _repr_svg_(self) -> str:
        """Its timeline, with equal times for F, I and W, for notebooks."""
        done, row, width = self.simulate(), 22, 960
        scale = width / max(done.makespan_ns, 1)
        parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 60}" '
                 f'height="{row * self.ranks + 4}" font-family="sans-serif" font-size="10">']
        parts += [f'<text x="2" y="{row * rank + 15}">rank {rank}</text>'
                  for rank in range(self.ranks)]
        for span in done.timeline:
            wide = (span.end_ns - span.start_ns) * scale
            both = [op for op in (span.op, span.pair) if op is not None]
            for place, op in enumerate(both):
                x, y = 54 + span.start_ns * scale, row * span.rank + 2 + place * 18 / len(both)
                parts.append(
                    f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" '
                    f'height="{18 / len(both):.1f}" fill="{COLORS.get(op.kind, "#bab0ac")}" '
                    f'stroke="white"><title>{op.text} of stage {op.stage}, {span.start_ns} to '
                    f'{span.end_ns} ns</title></rect>')
                if wide > 14 and len(both) == 1:
                    parts.append(f'<text x="{x + 2:.1f}" y="{y + 13:.1f}">{op.mb}</text>')
        return "".join(parts) + "</svg>"
