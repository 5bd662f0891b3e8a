# SPDX-License-Identifier: Apache-2.0
"""Errors, groups, lifetimes: what all classes stand on."""
import gc
import os
import pickle
import socket
import subprocess
import sys
import threading

import models
import pytest
import torch
import torch.distributed as dist
from conftest import LIMIT_S

import libdualpipe
from libdualpipe import _group, _native, _tensor
from libdualpipe.compat import deepseek


def test_an_error_is_pickled_with_its_members():
    error = libdualpipe.DualpipeError(-125,
                                      "rank 1: weight of micro-batch 3 in stage 2, step 7: no",
                                      rank=1)
    again = pickle.loads(pickle.dumps(error))
    assert (again.name, again.rank, again.micro_batch, again.stage, again.step) == ("DP_EABORTED",
                                                                                    1, 3, 2, 7)
    assert str(again) == str(error) and again.op == error.op


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_done_at_the_end_does_not_hide_a_failure(fails):
    def broken():
        raise KeyError("at the end")

    with pytest.raises(ValueError if fails else KeyError) as caught:
        with _native.then(broken):
            if fails:
                raise ValueError
    if fails:
        assert isinstance(caught.value.__context__, KeyError)
        assert caught.value.__context__.__context__ is None


@pytest.mark.parametrize("dtype", list(_tensor.KINDS), ids=str)
def test_a_tensor_crosses_the_border_without_a_copy(dtype):
    kept, views = [], _tensor.Views()
    for tensor in (torch.ones(2, 3).to(dtype),
                   torch.ones(4, 3, 2, 2).to(dtype).contiguous(memory_format=torch.channels_last),
                   torch.ones(3, 4).to(dtype).t()):
        view = views.of(_tensor.describe(tensor, kept))
        assert view.data_ptr() == tensor.data_ptr() and view.stride() == tensor.stride()
        assert view.dtype == dtype and torch.equal(view, tensor) and views.has(view)
    assert not views.has(torch.ones(3)) and views.of(_native.ffi.new("DLTensor *")) is None


def test_a_type_that_the_library_has_not_is_named():
    with pytest.raises(TypeError, match="expected one of torch.float32"):
        _tensor.kind_of(torch.quint8)


def test_the_module_says_what_it_found():
    said = subprocess.run([sys.executable, "-m", "libdualpipe"],
                          capture_output=True,
                          text=True,
                          check=True)
    assert f"libdualpipe  {libdualpipe.__version__}" in said.stdout and "host" in said.stdout
    assert said.stderr == ""


def test_the_package_needs_no_torch_to_be_imported():
    code = ("import sys; sys.modules['torch'] = None; import libdualpipe; "
            "print(libdualpipe.version())")
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == libdualpipe.__version__


@pytest.mark.parametrize("is_collected", [False, True])
def test_what_is_collected_while_another_thread_uses_it_is_freed_afterwards(is_collected):
    class Owner:
        pass

    lock, freed, owner = _native.Lock(), [], Owner()
    taken, go_on = threading.Event(), threading.Event()
    free = _native.owned(owner, freed.append, "it", lock=lock)

    def use():
        with lock, lock:
            taken.set()
            go_on.wait(LIMIT_S)

    user = threading.Thread(target=use)
    user.start()
    taken.wait(LIMIT_S)
    if is_collected:
        del owner
        gc.collect()
    else:
        free()
    assert freed == []
    go_on.set()
    user.join()
    assert freed == ["it"]


def groups_are_apart(rank, size):
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = groups[rank // 2]
    comm = _group.comm_of(mine)
    assert (comm.rank, comm.size) == (rank % 2, 2) and _group.comm_of(mine) is comm
    if rank < 2:
        comm.abort(ValueError("of this group alone"))
    assert bool(_native.lib.dp_comm_aborted(comm.pointer, _native.ffi.NULL)) == (rank < 2)
    if rank < 2:
        comm.reset()
    dist.barrier()
    dist.destroy_process_group(mine)
    _group.comm_of()
    assert mine not in _group._comms


def test_each_group_has_its_own_communicator(ranks):
    ranks(4, groups_are_apart)


def a_child_may_not_use_it(rank, size):
    comm = _group.comm_of()
    child = os.fork()
    if child == 0:
        try:
            _group.comm_of()
        except RuntimeError:
            gc.collect()
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert _group.comm_of() is comm
    dist.barrier()


def test_a_forked_child_is_told_that_the_group_is_not_its_own(ranks):
    ranks(2, a_child_may_not_use_it)


def objects_die(rank, size):
    """In an order of their own, in a circle, and after a failed step."""
    deepseek.set_p2p_tensor_shapes([(3, 8)])
    deepseek.set_p2p_tensor_dtype(torch.float32)
    x, target = (torch.randn(24, 8), torch.randn(24, 8)) if rank == 0 else (None, None)
    for order in range(4):
        pipe = deepseek.DualPipeV([models.Stage(8), models.Stage(8)])
        pipe.step(x, num_chunks=8, criterion=models.criterion, labels=(target, ))
        inner = next(iter(pipe._pipelines.values()))
        if order == 1:
            inner.schedule.close()  # while the pipeline lives: it is not used again
            inner.close()
        elif order == 2:
            pipe.itself = [pipe, inner]  # for the collector
        elif order == 3:
            stages = inner.stages
            del inner, pipe
            gc.collect()
            stages[0].clear()
        pipe = inner = None
        gc.collect()
    dist.barrier()


def test_objects_may_die_in_any_order(ranks):
    ranks(2, objects_die)


PROGRAM = """
import os, sys, torch, torch.distributed as dist
from libdualpipe.compat import deepseek
sys.path.insert(0, {folder!r})
import models
dist.init_process_group("gloo")
rank = dist.get_rank()
deepseek.set_p2p_tensor_shapes([(3, 8)])
deepseek.set_p2p_tensor_dtype(torch.float32)
pipe = deepseek.DualPipeV([models.Stage(8), models.Stage(8)])
x, t = (torch.randn(12, 8), torch.randn(12, 8)) if rank == 0 else (None, None)
loss, _ = pipe.step(x, num_chunks=4, criterion=models.criterion, labels=(t,))
if rank == 0:
    print("loss of", len(loss))
{end}
"""


@pytest.mark.parametrize("end, status", [("keep = globals(); sys.exit(0)", 0), ("sys.exit(3)", 1)])
def test_torchrun_needs_no_change_and_the_interpreter_ends(tmp_path, end, status):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(folder=os.path.dirname(__file__), end=end))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    said = subprocess.run([
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port",
        port, "--master-addr", "127.0.0.1",
        str(program)
    ],
                          capture_output=True,
                          text=True,
                          timeout=LIMIT_S)
    assert said.returncode == status, said.stderr
    assert "loss of 4" in said.stdout and "dualpipe: error" not in said.stderr, said.stderr
