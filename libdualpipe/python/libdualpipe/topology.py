# SPDX-License-Identifier: Apache-2.0
"""Machines as data: what is near what, and how wide the routes are.

    machine = Topology.of_description("dgx-h100 host:2")     # or here(), read(text)
    machine.path("node0/gpu0", "node1/gpu0").bytes_per_ns

What `dualpipe topo` shows, as objects; torch is not needed. Source: dualpipe/topology.h.
"""
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from ._native import (check, ffi, lib, made_text, names_of, new_object, number_of, owned, text_of)

FORMATS = {"auto": lib.DP_TOPOLOGY_AUTO, "json": lib.DP_TOPOLOGY_JSON,
           "description": lib.DP_TOPOLOGY_SYNTHETIC, "nccl-xml": lib.DP_TOPOLOGY_NCCL_XML,
           "nvidia-smi": lib.DP_TOPOLOGY_NVIDIA_SMI, "hwloc-xml": lib.DP_TOPOLOGY_HWLOC_XML}
KINDS = names_of(lib.DP_NAMES_NODE, lib.DP_TOPO_KINDS)  # "host", "numa", "gpu", "nic" ...


class Node(NamedTuple):
    """A part of a machine. number: in the topology; parent: the number of what it hangs on."""
    number: int
    kind: str
    label: str
    parent: Optional[int]
    name: str
    model: str
    memory_bytes: int


class Link(NamedTuple):
    """Two nodes by their numbers, and the rate in each direction; 0: not known, or no limit."""
    kind: str
    a: int
    b: int
    bundled: int
    bytes_per_ns: float
    latency_ns: float


class Path(NamedTuple):
    """A route: its class as `nvidia-smi topo` names it ("NV", "PIX", "NET"), and what limits it."""
    kind: str
    bytes_per_ns: float
    latency_ns: float
    nodes: List[str]


class Topology:
    """A machine or a cluster. Made by of_description, read, here and merge."""
    def __init__(self, pointer: Any) -> None:
        self.pointer = pointer
        self.close = owned(self, lib.dp_topology_free, pointer)

    @classmethod
    def of_description(cls, text: str) -> "Topology":
        """Of a few words: "host:4 gpu:8 nic:8 ...", or one of presets(). Raises DualpipeError,
        which names the word."""
        return cls(new_object(lib.dp_topology_new_synthetic, "struct dp_topology", text.encode()))

    @classmethod
    def read(cls, text: str, format: str = "auto") -> "Topology":
        """What a tool wrote, in one of FORMATS."""
        data = text.encode()
        return cls(
            new_object(lib.dp_topology_read, "struct dp_topology", data, len(data),
                       number_of("format", format, FORMATS)))

    @classmethod
    def here(cls, root: str = "") -> "Topology":
        """This machine, or one whose /sys was captured below root."""
        return cls(new_object(lib.dp_topology_read_sysfs, "struct dp_topology", root.encode()))

    @classmethod
    def merge(cls, parts: Sequence["Topology"]) -> "Topology":
        """Machines as one cluster, joined where their ports are in one network."""
        array = ffi.new("const struct dp_topology *[]", [part.pointer for part in parts])
        return cls(new_object(lib.dp_topology_merge, "struct dp_topology", array, len(parts)))

    def write(self, format: str = "json") -> str:
        """As "json", which is read again, or "nccl-xml" for NCCL_TOPO_FILE."""
        return made_text(lib.dp_topology_write, self.pointer, number_of("format", format, FORMATS))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Topology) and self.write() == other.write()

    __hash__ = None  # type: ignore[assignment]

    def _text(self, at: int) -> str:
        return text_of(self.pointer.text + at)

    def label(self, number: int) -> str:
        room = ffi.new("char[]", lib.DP_TOPO_LABEL_LEN)
        return text_of(lib.dp_topology_label(self.pointer, number, room))

    def _node(self, number: int) -> Node:
        node = self.pointer.nodes[number]
        return Node(number, text_of(lib.dp_name(lib.DP_NAMES_NODE, node.kind)), self.label(number),
                    node.parent if node.parent >= 0 else None, self._text(node.name),
                    self._text(node.model), node.memory_bytes)

    def nodes(self, kind: Optional[str] = None) -> List[Node]:
        """In their order; kind: "gpu" and others of KINDS."""
        wanted = None if kind is None else number_of("kind", kind, KINDS)
        return [self._node(i) for i in range(self.pointer.node_count)
                if wanted is None or self.pointer.nodes[i].kind == wanted]

    def links(self) -> List[Link]:
        found = (self.pointer.links[i] for i in range(self.pointer.link_count))
        return [Link(text_of(lib.dp_name(lib.DP_NAMES_LINK, x.kind)), x.a, x.b, x.count, x.bytes_per_ns,
                     x.latency_ns) for x in found]

    def notes(self) -> List[str]:
        """What could not be seen, or was taken for granted."""
        return [self._text(self.pointer.notes[i].text) for i in range(self.pointer.note_count)]

    def find(self, name: Union[str, int]) -> int:
        """The number of the node that is meant: "node1/gpu3", "mlx5_0", "0000:1b:00.0". Raises
        DualpipeError with the nearest name."""
        if isinstance(name, int):
            if not 0 <= name < self.pointer.node_count:
                raise IndexError(f"node {name}, expected 0 to {self.pointer.node_count - 1}")
            return name
        out = ffi.new("int32_t *")
        check(lib.dp_topology_find(self.pointer, name.encode(), out))
        return int(out[0])

    def path(self, a: Union[str, int], b: Union[str, int]) -> Path:
        """The route that data takes from a to b; kind "-": there is none."""
        path = ffi.new("struct dp_topo_path *")
        check(lib.dp_topology_path(self.pointer, self.find(a), self.find(b), path))
        nodes = [self.label(path.nodes[i]) for i in range(path.hops + 1)] if path.hops else []
        return Path(text_of(lib.dp_name(lib.DP_NAMES_PATH, path.class_)), path.bytes_per_ns,
                    path.latency_ns, nodes)

    def nics(self, gpu: Union[str, int]) -> List[Node]:
        """The NICs of the GPU's host, best first."""
        most = len(self.nodes("nic"))
        found, count = ffi.new("int32_t[]", max(most, 1)), ffi.new("int32_t *")
        check(lib.dp_topology_nics(self.pointer, self.find(gpu), found, most, count))
        return [self._node(found[i]) for i in range(count[0])]

    def rates(self) -> Tuple[float, float]:
        """GB/s from GPU to GPU of a node, and from a node to the others."""
        inner, outer = ffi.new("double *"), ffi.new("double *")
        check(lib.dp_topology_rates(self.pointer, inner, outer))
        return inner[0], outer[0]


def presets() -> Dict[str, str]:
    """Usual machines: name and what it is."""
    rows, found = lib.dp_topology_presets(), {}
    while rows.name != ffi.NULL:
        found[text_of(rows.name)] = text_of(rows.about)
        rows += 1
    return found
