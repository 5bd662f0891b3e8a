# SPDX-License-Identifier: Apache-2.0
"""Which algorithm, protocol and channels a collective of NCCL should use.

    tuner = Tuner(ranks=16, nodes=2, table=Table.load("rules.csv"), links="intra=450,inter=50")
    tuner.ask("allreduce", 1 << 20)

What `dualpipe tune` shows and what the tuner plugin answers; torch is not needed. Source:
dualpipe/tuning.h.
"""
from typing import Any, List, NamedTuple, Optional

from ._native import check, ffi, lib, made_text, names_of, new_object, number_of, owned, text_of

FUNCTIONS = names_of(lib.DP_NAMES_FUNCTION, lib.DP_TUNING_FUNCTIONS)
ALGORITHMS = names_of(lib.DP_NAMES_ALGORITHM, lib.DP_TUNING_ALGORITHMS)
PROTOCOLS = names_of(lib.DP_NAMES_PROTOCOL, lib.DP_TUNING_PROTOCOLS)
SOURCES = {lib.DP_TUNING_FROM_NCCL: "nccl", lib.DP_TUNING_FROM_TABLE: "table",
           lib.DP_TUNING_FROM_MODEL: "model"}


class Answer(NamedTuple):
    """source: "nccl", "table" or "model"; algorithm, protocol "default" and channels 0: as NCCL
    likes; times in us where they are known; line: of the rule in its file."""
    source: str
    algorithm: str
    protocol: str
    channels: int
    time_us: Optional[float]
    default_us: Optional[float]
    line: Optional[int]


class Crossing(NamedTuple):
    """From so many bytes on the fastest by the model."""
    bytes: int
    algorithm: str
    protocol: str


class Table:
    """Rules of a file, a line each: of the first that applies."""
    def __init__(self, pointer: Any) -> None:
        self.pointer = pointer
        self.close = owned(self, lib.dp_tuning_table_free, pointer)

    @classmethod
    def read(cls, text: str, name: str = "table") -> "Table":
        """Of a text; name is for messages. Raises DualpipeError with NAME:LINE."""
        data = text.encode()
        return cls(
            new_object(lib.dp_tuning_table_read, "struct dp_tuning_table", data, len(data),
                       name.encode()))

    @classmethod
    def load(cls, path: str) -> "Table":
        return cls(
            new_object(lib.dp_tuning_table_load, "struct dp_tuning_table", str(path).encode()))

    def write(self) -> str:
        return made_text(lib.dp_tuning_table_write, self.pointer)

    def __len__(self) -> int:
        return int(self.pointer.count)


class Tuner:
    """What was decided for one communicator.

    ranks, nodes  its own; 0: not known, and only rules for any number of them apply
    links         what joins them, for the model: "intra=450,inter=50,inter_us=3" in GB/s and us
    trusts_registration  all ranks register their buffers alike
    """
    def __init__(self,
                 ranks: int = 0,
                 nodes: int = 0,
                 table: Optional[Table] = None,
                 links: Optional[str] = None,
                 trusts_registration: bool = False) -> None:
        known = ffi.new("struct dp_tuning_links *")
        if links is not None:
            check(lib.dp_tuning_links_parse(links.encode(), known))
        config = ffi.new("struct dp_tuner_config *", {
            "table": table.pointer if table else ffi.NULL, "ranks": ranks, "nodes": nodes,
            "trusts_registration": trusts_registration,
            "links": known if links is not None else ffi.NULL})
        self.pointer = new_object(lib.dp_tuner_new, "struct dp_tuner", config)
        self.close = owned(self, lib.dp_tuner_free, self.pointer)

    def ask(self, function: str, bytes: int, registered: bool = False, pipe_ops: int = 0) -> Answer:
        """What to take for a collective ("allreduce") of so many bytes, where all algorithms are
        there."""
        known = [self.time_us(function, algorithm, protocol, bytes)
                 for algorithm in ALGORITHMS for protocol in PROTOCOLS]
        # Without links nothing is known of costs, and all costs the same.
        costs = ffi.new("float[]", known if any(us >= 0 for us in known) else [1] * len(known))
        question = ffi.new("struct dp_tuning_question *", {
            "function": number_of("function", function, FUNCTIONS), "bytes": bytes,
            "is_registered": registered, "pipe_ops": pipe_ops, "costs": costs,
            "algorithms": len(ALGORITHMS), "protocols": len(PROTOCOLS)})
        out = ffi.new("struct dp_tuning_answer *")
        lib.dp_tuner_ask(self.pointer, question, out)
        return Answer(SOURCES[out.source], text_of(lib.dp_name(lib.DP_NAMES_ALGORITHM, out.algorithm)),
                      text_of(lib.dp_name(lib.DP_NAMES_PROTOCOL, out.protocol)), out.channels,
                      out.time_us or None, out.default_us or None,
                      out.rule.line if out.rule != ffi.NULL else None)

    def time_us(self, function: str, algorithm: str, protocol: str, bytes: int) -> float:
        """By the model; -1: it does not exist, or is not known."""
        return float(
            lib.dp_tuner_time_us(self.pointer, number_of("function", function, FUNCTIONS),
                                 number_of("algorithm", algorithm, ALGORITHMS),
                                 number_of("protocol", protocol, PROTOCOLS), bytes))

    def crossings(self, function: str) -> List[Crossing]:
        """Which is the fastest from which size on, of all that the model knows; [] without one."""
        costs = ffi.new("float[]", len(ALGORITHMS) * len(PROTOCOLS))
        out = ffi.new("struct dp_tuning_crossing[]", lib.DP_TUNING_CROSSINGS_MAX)
        count = lib.dp_tuner_crossings(self.pointer, number_of("function", function, FUNCTIONS),
                                       costs, out)
        return [Crossing(x.bytes, text_of(lib.dp_name(lib.DP_NAMES_ALGORITHM, x.algorithm)),
                         text_of(lib.dp_name(lib.DP_NAMES_PROTOCOL, x.protocol)))
                for x in out[0:count]]
