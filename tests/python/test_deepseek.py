# SPDX-License-Identifier: Apache-2.0
"""DualPipe and DualPipeV against a plain run, and against DeepSeek's own class where pip has it."""
import copy
import gc
import os
import signal
import threading
import time

import models
import pytest
import torch
import torch.distributed as dist

import libdualpipe
from libdualpipe._group import comm_of
from libdualpipe.compat import deepseek
from libdualpipe.compat.deepseek import DualPipe, DualPipeV

WIDTH, ROWS = 8, 3


def full_model(kind, size, stage=models.Stage, dtype=torch.float32):
    torch.manual_seed(7)
    return [stage(WIDTH).to(dtype) for _ in range(size if kind is DualPipe else 2 * size)]


def parts(kind, rank, full):
    return [copy.deepcopy(full[rank]), copy.deepcopy(full[len(full) - 1 - rank])]


def data(count, dtype=torch.float32):
    deepseek.set_p2p_tensor_shapes([(ROWS, WIDTH)])
    deepseek.set_p2p_tensor_dtype(dtype)
    torch.manual_seed(11)
    return torch.randn(count * ROWS, WIDTH, dtype=dtype), torch.randn(count * ROWS,
                                                                      WIDTH,
                                                                      dtype=dtype)


def of_rank(kind, rank, size, x, target):
    """(inputs, labels, which outputs) of this rank."""
    if kind is DualPipeV:
        return (x, target, slice(None)) if rank == 0 else (None, None, None)
    half = len(x) // 2
    first, second = slice(0, half), slice(half, None)
    if rank == 0:
        return x[first], target[second], second
    return (x[second], target[first], first) if rank == size - 1 else (None, None, None)


def equals_a_plain_run(rank, size, kind, stage, count, dtype, mapping):
    kind, stage, dtype = getattr(deepseek, kind), getattr(models, stage), getattr(torch, dtype)
    place = mapping[rank] if mapping else rank
    full = full_model(kind, size, stage, dtype)
    x, target = data(count, dtype)
    losses, outputs = models.plain(full, x, target, count)
    mine = parts(kind, place, full)
    pipe = kind(mine, rank_mapping=mapping)
    ins, labels, which = of_rank(kind, place, size, x, target)
    loss, out = pipe.step(ins,
                          num_chunks=count,
                          criterion=models.criterion,
                          labels=(labels, ),
                          return_outputs=True)
    stored = mine if kind is DualPipeV else []
    for module, whole in zip(stored, (full[place], full[len(full) - 1 - place])):
        for a, b in zip(models.grads(module), models.grads(whole)):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    if kind is DualPipe:  # each copy has the gradients of its own direction
        for index in (0, 1):
            summed = models.grads(mine[index])
            other = [torch.empty_like(g) for g in summed]
            source = [None] * size
            dist.all_gather_object(source, [models.grads(mine[0]), models.grads(mine[1])])
            twin = (mapping or list(range(size))).index(size - 1 - place)
            other = source[twin][1 - index]
            stage_number = place if index == 0 else size - 1 - place
            for a, b, c in zip(summed, other, models.grads(full[stage_number])):
                torch.testing.assert_close(a + b, c, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        again, out_again = pipe.step(ins,
                                     num_chunks=count,
                                     criterion=models.criterion,
                                     labels=(labels, ),
                                     return_outputs=True)
    if which is None:
        assert loss is None and out is None and again is None and out_again is None
    else:
        rows = range(count)[slice(*(None if e is None else e // ROWS
                                    for e in (which.start, which.stop)))]
        assert torch.equal(loss, losses[list(rows)]) and not loss.requires_grad
        assert torch.equal(again, loss) and torch.equal(out, outputs[which]) and torch.equal(
            out_again, out)
    if stage is models.PairedStage:
        assert stage.pairs > 0


@pytest.mark.parametrize("kind, stage, count, dtype, mapping", [
    ("DualPipe", "Stage", 8, "float32", None),
    ("DualPipe", "PairedStage", 10, "float32", None),
    ("DualPipe", "Stage", 12, "float64", [3, 2, 1, 0]),
    ("DualPipeV", "Stage", 9, "float32", None),
    ("DualPipeV", "PairedStage", 8, "float64", [1, 0, 3, 2]),
])
def test_a_step_equals_a_plain_run(ranks, kind, stage, count, dtype, mapping):
    ranks(4, equals_a_plain_run, kind, stage, count, dtype, mapping)


def keeps_few_pipelines(rank, size):
    pipe = DualPipeV(parts(DualPipeV, rank, full_model(DualPipeV, size)))
    for count in (4, 5, 6, 7, 8, 4, 9, 10, 11, 12, 5):
        x, target = data(count)
        x, target = (x, target) if rank == 0 else (None, None)
        pipe.step(x, num_chunks=count, criterion=models.criterion, labels=(target, ))
    assert [key[0] for key in pipe._pipelines] == [7, 8, 4, 9, 10, 11, 12, 5]


def test_pipelines_of_the_last_shapes_are_kept(ranks):
    ranks(2, keeps_few_pipelines)


def outlives_its_group(rank, size):
    """What works over a group that is destroyed keeps its communicator."""
    group = dist.new_group(list(range(size)))
    x, target = data(8)
    pipe = DualPipeV(parts(DualPipeV, rank, full_model(DualPipeV, size)), process_group=group)
    args = (x, target) if rank == 0 else (None, None)
    pipe.step(args[0], num_chunks=8, criterion=models.criterion, labels=(args[1], ))
    close = next(iter(pipe._pipelines.values())).comm.close
    dist.destroy_process_group(group)
    comm_of()
    assert close.alive
    del pipe
    gc.collect()
    assert not close.alive
    dist.barrier()


def test_a_pipeline_outlives_its_group(ranks):
    ranks(4, outlives_its_group)


def sends_and_receives(rank, size):
    deepseek.set_p2p_tensor_shapes([(2, 3), (4, )])
    deepseek.set_p2p_tensor_dtype(torch.float64)
    ops, group = [], dist.group.WORLD
    if rank == 0:
        deepseek.append_isend(ops, [torch.ones(2, 3).double(), None, torch.ones(4).double()], 1,
                              group)
    else:
        got = deepseek.append_irecv(ops, 0, group)
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert rank == 0 or [(t.sum().item(), t.requires_grad) for t in got] == [(6, True), (4, True)]


def test_tensors_between_stages_can_be_sent_by_hand(ranks):
    ranks(2, sends_and_receives)


def has_places(rank, size):
    pipe = DualPipe([models.Stage(WIDTH), models.Stage(WIDTH)], rank_mapping=[2, 0, 3, 1])
    place = [2, 0, 3, 1][rank]
    assert (pipe.rank, pipe.first_rank, pipe.last_rank) == (place, 1, 2)
    assert (pipe.prev_rank, pipe.next_rank) == [(None, 3), (1, 0), (3, 2), (0, None)][place]
    assert (pipe.is_in_second_half, pipe.is_middle_rank) == (place > 1, place in (1, 2))


def test_places_in_the_pipeline_are_members(ranks):
    ranks(4, has_places)


def equals_the_peer(rank, size):
    peer = pytest.importorskip("dualpipe", reason="pip has no dualpipe")
    import dualpipe.comm
    full = full_model(DualPipe, size)
    x, target = data(20)
    mine, theirs = parts(DualPipe, rank, full), parts(DualPipe, rank, full)
    dualpipe.comm.build_from_tensor_shapes = lambda: [torch.empty(ROWS, WIDTH, requires_grad=True)]
    torch.cuda.current_device = lambda: "cpu"
    peer.set_p2p_tensor_shapes([(ROWS, WIDTH)])
    peer.set_p2p_tensor_dtype(torch.float32)
    ins, labels, _ = of_rank(DualPipe, rank, size, x, target)
    results = []
    for pipe, store in ((DualPipe(mine), deepseek.WeightGradStore), (peer.DualPipe(theirs),
                                                                     peer.utils.WeightGradStore)):
        models.store = store
        for _ in range(2):  # gradients add up
            results.append(
                pipe.step(ins,
                          num_chunks=20,
                          criterion=models.criterion,
                          labels=(labels, ),
                          return_outputs=True))
    models.store = deepseek.WeightGradStore
    for (loss, out), (their_loss, their_out) in zip(results[:2], results[2:]):
        assert (loss is None) == (their_loss is None)
        if loss is not None:
            assert torch.equal(loss, their_loss) and torch.equal(out, their_out)
    assert all(torch.equal(a, b) for a, b in zip(models.grads(*mine), models.grads(*theirs)))


def test_gradients_are_bit_equal_to_those_of_deepseeks_class(ranks):
    pytest.importorskip("dualpipe", reason="pip's dualpipe is not installed")
    ranks(4, equals_the_peer)


# ---- several tensors at a border ----


class TwoOut(torch.nn.Module):
    """x, or (x, y), to (x, y), one of them as it came, a view of memory of the library."""
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x, y=None):
        return self.line(x), (x if y is None else y)


def hands_inputs_on(rank, size):
    full = full_model(DualPipeV, size, lambda width: TwoOut())
    x, target = data(8)
    deepseek.set_p2p_tensor_shapes([(ROWS, WIDTH)] * 2)
    total = [torch.zeros(WIDTH, WIDTH) for _ in full]
    for a, b in zip(x.chunk(8), target.chunk(8)):
        out = (a, )
        for module in full:
            out = module(*out)
        (models.criterion(out[0], b) + out[1].sum()).backward()
    mine = parts(DualPipeV, rank, full)
    pipe = DualPipeV(mine)
    for module in mine:
        module.zero_grad()
    args = (x, target) if rank == 0 else (None, None)
    pipe.step(args[0],
              num_chunks=8,
              criterion=lambda o, y, b: models.criterion(o, b) + y.sum(),
              labels=(args[1], ))
    del total
    for module, whole in zip(mine, (full[rank], full[len(full) - 1 - rank])):
        for a, b in zip(models.grads(module), models.grads(whole)):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_a_stage_may_hand_its_inputs_on(ranks):
    ranks(4, hands_inputs_on)


# ---- what goes wrong ----


class Failing(models.Stage):
    error = None
    calls = 0

    def forward(self, x):
        self.calls += 1
        if self.error is not None and self.calls == 3:
            raise self.error
        return super().forward(x)


class Special(Exception):
    def __init__(self, number):
        super().__init__(f"number {number}")
        self.number = number


def failing_step(rank, size, culprit, error):
    full = full_model(DualPipeV, size, Failing)
    x, target = data(8)
    mine = parts(DualPipeV, rank, full)
    pipe = DualPipeV(mine)
    args = (x, target) if rank == 0 else (None, None)

    def step():
        return pipe.step(args[0], num_chunks=8, criterion=models.criterion, labels=(args[1], ))

    if rank == culprit:
        mine[1].error = error
    caught = None
    try:
        step()
    except BaseException as e:
        caught = e
    mine[1].error = None
    return caught, step


def one_rank_fails(rank, size, culprit):
    caught, step = failing_step(rank, size, culprit, Special(42))
    if rank == culprit:
        assert type(caught) is Special and caught.number == 42
        import traceback
        assert "in forward" in "".join(traceback.format_tb(caught.__traceback__))
    else:
        assert type(caught) is libdualpipe.DualpipeError, repr(caught)
        assert caught.rank == culprit and caught.op == "forward", vars(caught)
        assert caught.micro_batch == 2 and "Special: number 42" in str(caught), vars(caught)
    loss, _ = step()
    assert (loss is not None) == (rank == 0)


def test_an_exception_keeps_its_type_on_its_rank_and_the_others_name_it(ranks):
    for culprit in (0, 2):
        ranks(4, one_rank_fails, culprit)


def arguments_are_wrong(rank, size):
    full = full_model(DualPipe, size)
    x, target = data(8)
    pipe = DualPipe(parts(DualPipe, rank, full))
    ins, labels, _ = of_rank(DualPipe, rank, size, x, target)
    for count in (0, 7, 6):
        with pytest.raises(AssertionError, match="num_chunks="):
            pipe.step(ins, num_chunks=count, criterion=models.criterion, labels=(labels, ))
    begin = time.monotonic()
    for wrong, error, text in ((None, AssertionError, ""),
                               (lambda *_: None, TypeError, "the criterion returned None")):
        with pytest.raises(error if rank == 0 else libdualpipe.DualpipeError, match=text):
            pipe.step(ins,
                      num_chunks=8,
                      criterion=wrong if rank == 0 else models.criterion,
                      labels=(labels, ))
    assert time.monotonic() - begin < 30
    pipe.step(ins, num_chunks=8, criterion=models.criterion, labels=(labels, ))


def test_a_wrong_argument_on_one_rank_ends_the_step_on_all(ranks):
    ranks(4, arguments_are_wrong)


def is_interrupted(rank, size):
    """Rank 1 gets the signal while it waits for rank 0, whose criterion waits for the end of the
    step."""
    full = full_model(DualPipeV, size)
    x, target = data(8)
    pipe = DualPipeV(parts(DualPipeV, rank, full))
    store = dist.distributed_c10d._get_default_store()
    args = (x, target) if rank == 0 else (None, None)
    pipe.step(args[0], num_chunks=8, criterion=models.criterion, labels=(args[1], ))

    def slow(out, label):
        store.set("interrupt/begun", "yes")
        store.wait(["interrupt/done"])
        return models.criterion(out, label)

    if rank == 1:

        def send():
            store.wait(["interrupt/begun"])
            os.kill(os.getpid(), signal.SIGINT)

        sender = threading.Thread(target=send)
        sender.start()
        with pytest.raises(KeyboardInterrupt):
            pipe.step(args[0], num_chunks=8, criterion=slow, labels=(args[1], ))
        sender.join()
        store.set("interrupt/done", "yes")
    else:
        with pytest.raises(libdualpipe.DualpipeError) as caught:
            pipe.step(args[0], num_chunks=8, criterion=slow, labels=(args[1], ))
        assert caught.value.rank == 1
    loss, _ = pipe.step(args[0], num_chunks=8, criterion=models.criterion, labels=(args[1], ))
    assert (loss is not None) == (rank == 0)


def test_an_interrupt_stays_itself_and_ends_the_step_of_all(ranks):
    ranks(4, is_interrupted)


def outputs_have_another_shape(rank, size):
    full = full_model(DualPipeV, size)
    x, target = data(8)
    deepseek.set_p2p_tensor_shapes([(ROWS + 1, WIDTH)])
    pipe = DualPipeV(parts(DualPipeV, rank, full))
    args = (x, target) if rank == 0 else (None, None)
    with pytest.raises(ValueError if rank == 0 else libdualpipe.DualpipeError) as caught:
        pipe.step(args[0], num_chunks=8, criterion=models.criterion, labels=(args[1], ))
    assert ("output 0 of micro-batch 0 in stage 0 (Stage) is (3, 8) of torch.float32, expected (4, 8) "
            "of torch.float32, which rank 1 takes") in str(caught.value)
    assert rank == 0 or caught.value.rank == 0 and caught.value.micro_batch == 0
    deepseek.set_p2p_tensor_shapes([(ROWS + rank, WIDTH)])
    pipe = DualPipeV(parts(DualPipeV, rank, full))
    with pytest.raises(libdualpipe.DualpipeError) as caught:
        pipe.step(args[0], num_chunks=8, criterion=models.criterion, labels=(args[1], ))
    assert "border 1, tensor 0: rank 1 has float32[4, 8], rank 0 has float32[3, 8]" in str(
        caught.value)


def test_another_shape_than_declared_names_both(ranks):
    ranks(4, outputs_have_another_shape)
