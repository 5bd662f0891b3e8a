# SPDX-License-Identifier: Apache-2.0
"""What needs no torch: schedules, topologies, placements, tuning, as objects."""
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

import libdualpipe
from libdualpipe import placement, tuning
from libdualpipe.schedule import FORMATS, KINDS, Schedule
from libdualpipe.topology import Topology, presets


def test_torch_is_not_needed():
    code = ("import sys; sys.modules['torch'] = None; "
            "from libdualpipe import schedule, topology, placement, tuning")
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "user"])
def test_a_schedule_is_checked_simulated_and_drawn(kind):
    schedule = Schedule(kind, 4, 8)
    assert repr(schedule) == f"Schedule({kind!r}, 4, 8)" and schedule.check() is None
    ops = [op for rank in range(4) for op in schedule.ops(rank)]
    streams = 2 if kind == "dualpipe" else 1
    assert sum(op.kind == "F" for op in ops) == schedule.stages * 8 // streams * streams
    assert all(op.stage == schedule.slots(0)[op.slot].stage for op in schedule.ops(0))
    done = schedule.simulate(f_ns=10, i_ns=10, w_ns=10, link_latency_ns=1)
    assert done.critical[0].start_ns == 0 and done.critical[-1].end_ns == done.makespan_ns
    assert sum(r.bubble_ns for r in done.ranks) == pytest.approx(done.bubble_ratio * 4 *
                                                                 done.makespan_ns)
    root = ET.fromstring(schedule._repr_svg_())
    drawn = [e for e in root if e.tag.endswith("rect")]
    assert len(drawn) == sum(2 if s.pair else 1 for s in schedule.simulate().timeline)


def test_a_schedule_is_written_and_read():
    schedule = Schedule("zbv", 4, 8)
    for format in FORMATS:
        again = Schedule.read(schedule.write(format), format)
        assert format == "pytorch" or again == schedule
        assert again.check() is None and again.microbatches == 8
    with pytest.raises(ValueError, match="'xml', expected one of text, json"):
        schedule.write("xml")
    with pytest.raises(libdualpipe.DualpipeError):
        Schedule.read("0F0,nonsense\n", "pytorch")
    with pytest.raises(TypeError, match="no member 'f', expected some of .*f_ns"):
        schedule.simulate(f=1)
    with pytest.raises(IndexError, match="rank 4, expected 0 to 3"):
        schedule.ops(4)


def test_what_is_wrong_with_a_schedule_is_found():
    # Rank 1 begins with what rank 0 has not sent.
    wrong = Schedule.read("0B0,0F0\n1F0,1B0\n", "pytorch")
    found = wrong.check()
    assert found.rule == "dependency" and found.rank == 0 and "B0.0" in found.text
    assert Schedule("gpipe", 2, 8).check(max_activations=2).rule == "activation"


def test_a_topology_is_described_searched_and_written():
    machine = Topology.of_description("dgx-h100 host:2")
    assert "dgx-h100" in presets() and Topology.read(machine.write()) == machine
    assert len(machine.nodes("gpu")) == 16 and len(machine.nodes("host")) == 2
    gpus = [node.label for node in machine.nodes("gpu")]
    inside, across = machine.path(gpus[0], gpus[1]), machine.path(gpus[0], gpus[8])
    assert (inside.kind, across.kind) == ("NV", "NET") and inside.bytes_per_ns > 100
    assert across.nodes[0] == gpus[0] and across.nodes[-1] == gpus[8]
    assert machine.nics(gpus[0])[0].kind == "nic" and machine.rates()[0] > machine.rates()[1] > 0
    assert {link.kind for link in machine.links()} >= {"pci", "nvlink", "net"}
    assert machine.nodes()[machine.find(gpus[3])].label == gpus[3]
    with pytest.raises(libdualpipe.DualpipeError, match="gpu"):
        machine.find("gpux")
    with pytest.raises(libdualpipe.DualpipeError, match="gpus:8"):
        Topology.of_description("gpus:8")
    assert Topology.here().nodes("numa") and isinstance(Topology.here().notes(), list)
    two = [Topology.of_description(f"gpu:1 nic:1 net=400Gb/s name={name}") for name in "ab"]
    assert len(Topology.merge(two).nodes("host")) == 2


def test_a_placement_is_found():
    machine = Topology.of_description("dgx-h100 host:2")
    gpus = [node.label for node in machine.nodes("gpu")]
    apart = [gpus[i // 2 + 8 * (i % 2)] for i in range(16)]  # neighbours on two hosts
    found = placement.place(machine, Schedule("dualpipe", 8, 16), replicas=2, gpus=apart,
                            activation_bytes=1 << 24, parameter_bytes=1 << 20)
    assert found.after_ns < found.before_ns and len(found.workers) == 16
    assert sorted(worker.gpu for worker in found.workers) == sorted(gpus)
    assert {flow.kind for flow in found.flows} >= {"activation", "gradient"}
    assert found.text.startswith("#") or "worker" in found.text
    with pytest.raises(ValueError, match="1 GPUs, expected 16"):
        placement.place(machine, Schedule("dualpipe", 8, 16), replicas=2, gpus=["gpu0"],
                        activation_bytes=1)
    with pytest.raises(libdualpipe.DualpipeError):
        placement.place(machine, Schedule("1f1b", 32, 32), activation_bytes=1)


TABLE = "collective,min_bytes,max_bytes,algorithm,protocol,channels,nodes,ranks\n" \
        "allreduce,0,1MiB,tree,ll128,4,any,any\n"


def test_a_tuner_answers_by_table_and_model():
    table = tuning.Table.read(TABLE)
    assert len(table) == 1 and len(tuning.Table.read(table.write())) == 1
    tuner = tuning.Tuner(16, 2, table, "intra=450,inter=50")
    told = tuner.ask("allreduce", 1 << 20)
    assert (told.source, told.algorithm, told.protocol, told.channels,
            told.line) == ("table", "tree", "ll128", 4, 2)
    left = tuner.ask("allreduce", 1 << 28)
    assert left.source == "nccl" and left.algorithm == "default" and left.line is None
    assert tuner.time_us("allreduce", "ring", "simple", 1 << 28) > 0
    crossings = tuner.crossings("allreduce")
    assert crossings[0].bytes == 0 and len(crossings) > 1
    assert tuning.Tuner().ask("broadcast", 1).source == "nccl"
    assert tuning.Tuner().crossings("broadcast") == []
    with pytest.raises(libdualpipe.DualpipeError, match="table:1"):
        tuning.Table.read("allreduce,1\n")
    with pytest.raises(ValueError, match="'alltoall', expected one of broadcast"):
        tuner.ask("alltoall", 1)
