# SPDX-License-Identifier: Apache-2.0
"""AsyncPipe against the same layers without it, and what fairscale's own tests ask of it."""
import copy
import functools
import gc
import pickle
from collections import OrderedDict

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import libdualpipe
from libdualpipe._group import comm_of
from libdualpipe.compat import fairscale
from libdualpipe.compat.fairscale import (DeferredBatchNorm, LazyModule, Namespace,
                                          is_checkpointing, is_recomputing, pop, skippable, stash,
                                          verify_skippables)

AsyncPipe = functools.partial(fairscale.AsyncPipe, worker_map={0: "a", 1: "b"})


def model(drop=0.0):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(drop), nn.Linear(16, 8),
                         nn.ReLU(), nn.Linear(8, 4))


def data():
    torch.manual_seed(1)
    return torch.randn(12, 8), torch.randn(12, 4)


def one_step(rank, drop, checkpoint):
    x, target = data()
    layers = model(drop)
    pipe = AsyncPipe(layers, [3, 3], chunks=4, checkpoint=checkpoint)
    torch.manual_seed(50 + rank)
    out = pipe(x)
    if pipe.final_stage:
        F.mse_loss(out, target).backward()
    else:
        assert out is x
        pipe.back_helper(out)
    return pipe, [p.grad.clone() for p in pipe.partition.parameters()]


def equals_the_layers(rank, size):
    x, target = data()
    whole = model()
    F.mse_loss(torch.cat([whole(part) for part in x.chunk(4)]), target).backward()
    mine = list(whole.parameters())[:4] if rank == 0 else list(whole.parameters())[4:]
    found = {}
    for checkpoint in ("never", "always", "except_last"):
        pipe, grads = one_step(rank, 0.0, checkpoint)
        for a, b in zip(grads, mine):
            torch.testing.assert_close(a, b.grad, rtol=1e-5, atol=1e-6)
        _, found[checkpoint] = one_step(rank, 0.5, checkpoint)
        pipe.eval()
        with torch.no_grad():
            assert pipe(x).shape == ((12, 4) if rank == 1 else (12, 8))
        assert len(pipe) == 3 and len(list(pipe)) == 3 and pipe[0] is pipe.partition[0]
    for checkpoint in ("always", "except_last"):  # the same random numbers the second time
        assert all(torch.equal(a, b) for a, b in zip(found[checkpoint], found["never"]))


def test_gradients_are_those_of_the_layers_in_all_modes_of_checkpoint(ranks):
    ranks(2, equals_the_layers)


def arguments(rank, size):
    for wrong, balance, options, text in ((ValueError, [3, 3], {"chunks": 0},
                                           "number of chunks must be positive integer"),
                                          (ValueError, [3, 3], {"checkpoint": "some"},
                                           "checkpoint is not one of"),
                                          (ValueError, [3, 2], {},
                                           "different length .module: 6, sum of balance: 5"),
                                          (ValueError, [7, -1], {},
                                           "all balance numbers must be positive"),
                                          (IndexError, [2, 2, 2], {},
                                           "too few ranks .* .ranks: 2, partitions: 3"),
                                          (ValueError, [3, 3], {"worker_map": None},
                                           "'RpcTransport' requires 'worker_map' to be set")):
        with pytest.raises(wrong, match=text):
            AsyncPipe(model(), balance, **options)
    layer = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="duplicate children"):
        AsyncPipe([layer, layer], [1, 1])
    made = []
    pipe = AsyncPipe(
        [lambda: made.append(0) or nn.Linear(8, 8), lambda: made.append(1) or nn.Linear(8, 4)],
        [1, 1])
    assert made == [rank]
    with pytest.raises(TypeError, match="expected Tensor, but got str"):
        pipe("x")
    if pipe.final_stage:
        with pytest.raises(ValueError, match="non-final"):
            pipe.back_helper(None)
    with pytest.raises(IndexError):
        pipe[1]
    with pytest.raises(TypeError, match="layer must be nn.Module or callable, is <class 'int'>"):
        AsyncPipe([3, layer], [1, 1])
    with pytest.raises(ValueError, match="Can't use Skippable layers"):
        AsyncPipe([LazyModule(Stash), LazyModule(Pop)], [2], group=alone[0])
    with pytest.raises(ValueError, match="make .4, 3. micro-batches"):
        AsyncPipe(nn.Sequential(Two()), [1], chunks=4, group=alone[0])(
            (torch.ones(8, 1), torch.ones(5, 1)))
    dist.barrier()


def test_wrong_arguments_are_refused_as_by_fairscale(ranks):
    ranks(2, a_group_each)
    ranks(2, arguments)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(1, 1), nn.Linear(1, 1)

    def forward(self, both):
        return self.a(both[0]), self.b(both[1]), torch.arange(len(both[0]))


def layers_are_local(rank, size):
    """Lengths, indices, names, ranks without layers, tuples of one, and what is no tensor."""
    a, b = nn.Linear(1, 1), nn.Linear(1, 1)
    whole = nn.Sequential(OrderedDict([("a", a), ("b", b)]))
    pipe = AsyncPipe(whole, (2, ), chunks=2)
    assert (list(pipe), len(pipe)) == (([a, b], 2) if rank == 0 else ([], 0))
    assert pipe.balance == [2] and (pipe.pipeline is None) == (rank > 0)
    if rank == 0:
        assert pipe[-2] is a and pipe[1] is b and pipe.partitions[0].module[0] is a
        with pytest.raises(IndexError):
            pipe[2]
        (out, ) = AsyncPipe(nn.Sequential(OneOfOne()), [1], chunks=2, group=alone[0])(
            (torch.ones(4, 1, requires_grad=True), ))
        assert out.shape == (4, 1)
    else:
        assert pipe(a.weight) is a.weight and list(pipe.parameters()) == []
    pipe = AsyncPipe(whole, [1, 1])
    assert ["0.a", "0.b"][rank] in dict(pipe.named_modules()) and len(pipe) == 1
    empty = AsyncPipe(nn.Sequential(), [])
    assert empty(torch.tensor([42])) == torch.tensor([42])
    with pytest.raises(TypeError):
        empty(42)
    if rank == 0:
        for given, wrong in (("hello", "tensor"), ((torch.ones(1), "hello"), "tensor"),
                             (torch.ones(1), "word"), (torch.ones(1), "list")):
            single = AsyncPipe(nn.Sequential(Answers(wrong)), [1], group=alone[0])
            with pytest.raises(AssertionError if wrong == "list" else TypeError, match="Tensor"):
                single(given)
    dist.barrier()


class OneOfOne(nn.Module):
    def forward(self, one):
        (a, ) = one
        return (a * 2, )


class Answers(nn.Module):
    def __init__(self, what):
        super().__init__()
        self.what = what

    def forward(self, x):
        return {"word": "hello", "list": [x]}.get(self.what, x)


alone = []


def a_group_each(rank, size):
    alone[:] = [dist.new_group([r]) for r in range(size)][rank:rank + 1]


def test_layers_are_those_of_the_rank(ranks):
    ranks(2, a_group_each)
    ranks(2, layers_are_local)


def grad_fns(fn, seen):
    if fn is not None and fn not in seen:
        seen.append(fn)
        for other, _ in fn.next_functions:
            grad_fns(other, seen)
    return [each.name() for each in seen]


def the_graph_shows_checkpoints(rank, size):
    found = []
    for mode in ("always", "except_last", "never"):
        pipe = AsyncPipe(nn.Sequential(nn.Linear(1, 1)), [1], chunks=2, checkpoint=mode,
                         group=alone[0])
        names = grad_fns(pipe(torch.rand(2, 1)).grad_fn, [])
        found.append(names.count("CheckpointBackward"))
        assert ("RecomputeBackward" in names) == (mode != "never")
        pipe.eval()
        assert pipe(torch.rand(2, 1)).grad_fn is None
    assert found == [2, 1, 0]


def test_the_graph_shows_which_micro_batches_are_checkpointed(ranks):
    ranks(2, a_group_each)
    ranks(2, the_graph_shows_checkpoints)


def tuples_and_uneven_batches(rank, size):
    """Inputs require gradients, integers cross, 7 rows in 4 chunks, and inputs with a history."""
    torch.manual_seed(3)
    layers = nn.Sequential(nn.Tanh(), Pair(), Two(), Sum())
    whole = copy.deepcopy(layers)
    for rows, chunks, mode in ((7, 4, "never"), (7, 4, "always"), (2, 4, "except_last")):
        pipe = AsyncPipe(layers, [2, 2], chunks=chunks, checkpoint=mode)
        x = torch.linspace(-1, 1, rows)[:, None].requires_grad_()
        y = x.detach().clone().requires_grad_()
        pipe.zero_grad()
        whole.zero_grad()
        out = pipe((x * 2)[:, :1])
        if pipe.final_stage:
            (out * torch.arange(rows)[:, None]).sum().backward()
        expected = torch.cat([whole(part) for part in (y * 2).chunk(chunks)])
        (expected * torch.arange(rows)[:, None]).sum().backward()
        for (name, p), q in zip(pipe.named_parameters(), list(whole.parameters())):
            torch.testing.assert_close(p.grad, q.grad, msg=name)
        if rank == 0:
            torch.testing.assert_close(x.grad, y.grad)
        else:
            torch.testing.assert_close(out, expected)


class Fork(nn.Module):
    def forward(self, x):
        return x * 2, torch.tensor([False])


class Join(nn.Module):
    def forward(self, both):
        assert both[1].dtype == torch.bool
        return both[0] * 2


def bools_cross(rank, size):
    x = torch.rand(1, requires_grad=True)
    pipe = AsyncPipe(nn.Sequential(Fork(), Join()), [1, 1], chunks=1, checkpoint="always")
    out = pipe(x)
    if pipe.final_stage:
        out.backward()
    else:
        pipe.back_helper(out)
        assert x.grad == 4
    a, b = (torch.rand(10, 1, requires_grad=True) for _ in range(2))
    first, second, _ = AsyncPipe(nn.Sequential(Two()), [1], chunks=2, group=alone[0])((a, b)) \
        if rank == 0 else (a, b, None)
    (first + second).mean().backward()
    assert a.grad is not None and b.grad is not None


def test_a_bool_crosses_and_a_pair_has_gradients(ranks):
    ranks(2, a_group_each)
    ranks(2, bools_cross)


class Pair(nn.Module):
    def forward(self, x):
        return x, x * 3


class Sum(nn.Module):
    def forward(self, three):
        a, b, index = three
        assert index.dtype == torch.int64
        return a + b * index[:, None]


def test_tuples_integers_and_batches_that_do_not_divide(ranks):
    ranks(2, tuples_and_uneven_batches)


def a_layer_twice(rank, size, count):
    """The list of fairscale's own test of reuse, and two uses in a row."""
    for order, balance in (([0, 1, 2, 0, 2, 0, 2], [2, 1]), ([0, 0, 1, 2, 0, 1, 0], [1, 2]),
                           ([1, 0, 2, 0, 0], [1, 2])):
        found = []
        for _ in range(2):
            torch.manual_seed(1234)
            distinct = [nn.Linear(6, 6), nn.Linear(6, 6), nn.Tanh()]
            found.append([distinct[i] for i in order])
        whole, pipe = nn.Sequential(*found[0]), AsyncPipe(found[1], balance, chunks=count)
        x = torch.rand(4, 6)
        out = pipe(x)
        if pipe.final_stage:
            out.square().mean().backward()
        expected = whole(x)
        expected.square().mean().backward()
        mine = {id(p): q for p, q in zip(nn.Sequential(*found[1]).parameters(), whole.parameters())}
        for p in pipe.parameters():
            torch.testing.assert_close(p.grad, mine[id(p)].grad)
        pipe.eval()
        again = pipe(x)
        if pipe.final_stage:
            torch.testing.assert_close(out, expected)
            assert torch.equal(again, out)


@pytest.mark.parametrize("count", [1, 3])
def test_a_layer_may_stand_in_several_places(ranks, count):
    ranks(2, a_layer_twice, count)


@skippable(stash=["skip", "none"])
class Stash(nn.Module):
    def forward(self, x):
        yield stash("skip", x * 2)
        yield stash("none", None)
        return x.tanh()


@skippable(pop=["skip", "none"])
class Pop(nn.Module):
    def forward(self, x):
        assert (yield pop("none")) is None
        skip = yield pop("skip")
        return x + skip.mul_(3)


def skips(rank, size):
    """Within a stage, between neighbours, and past a stage; two of a name in namespaces."""
    for balance in ([7], [3, 4], [2, 3, 2], [1, 1, 2, 3]):
        spaces = Namespace(), Namespace()
        torch.manual_seed(5)
        layers = nn.Sequential(nn.Linear(4, 4), Stash().isolate(spaces[0]),
                               Stash().isolate(spaces[1]), nn.Linear(4, 4),
                               Pop().isolate(spaces[1], only=["skip", "none"]), nn.Linear(4, 4),
                               Pop().isolate(spaces[0]))
        whole = copy.deepcopy(layers)
        for one, other in zip(whole, layers):  # a copy has namespaces of its own
            if hasattr(one, "namespaces"):
                one.namespaces = other.namespaces
        verify_skippables(whole)
        for mode in ("never", "except_last"):
            pipe = AsyncPipe(layers, balance, chunks=3, checkpoint=mode)
            pipe.zero_grad()
            whole.zero_grad()
            x = torch.randn(7, 4)
            out, expected = pipe(x), whole(x)
            if pipe.final_stage:
                torch.testing.assert_close(out, expected)
                out.square().sum().backward()
            expected.square().sum().backward()
            named = {"0." + name: p for name, p in whole.named_parameters()}
            for name, p in pipe.named_parameters():
                torch.testing.assert_close(p.grad, named[name].grad)


def test_skips_go_from_stage_to_stage(ranks):
    ranks(4, skips)


@skippable(stash=["a"])
class Forgets(nn.Module):
    def forward(self, x):
        return x


@skippable(pop=["a"])
class Undeclared(nn.Module):
    def forward(self, x):
        yield stash("b", x)


@skippable(stash=["a"])
class Noise(nn.Module):
    def forward(self, x):
        yield "noise"


def test_skips_that_do_not_match_are_named():
    for layers, text in (([Stash()], "no module declared 'skip' as poppable but stashed"),
                         ([Pop()], "'0' declared 'none' as poppable but it was not stashed"),
                         ([Stash(), Stash(), Pop()], "'1' redeclared 'skip' as stashable but not"),
                         ([Stash(), Pop(), Pop()], "'2' redeclared 'none' as poppable but not")):
        with pytest.raises(TypeError, match=text):
            verify_skippables(nn.Sequential(*layers))
    x = torch.ones(1)
    for layer, wrong, text in ((Pop(), RuntimeError, "has not been stashed"),
                               (Forgets(), RuntimeError, "'a' must be stashed but have not"),
                               (Noise(), TypeError, "'noise' is not a command from @skippable")):
        with pytest.raises(wrong, match=text):
            layer(x)
    nn.Sequential(Stash())(x)
    assert nn.Sequential(Pop())(x) == 7
    both = skippable(stash=["a"], pop=["a"])(nn.Identity)
    with pytest.raises(TypeError, match="both as stashable and as poppable"):
        verify_skippables(nn.Sequential(both()))


def test_a_copy_of_a_namespace_is_the_same_one():
    one = Namespace()
    again = pickle.loads(pickle.dumps(one))
    assert one == copy.copy(one) == copy.deepcopy(one) == again != Namespace()
    assert len({one, again}) == 1 and sorted([one, Namespace()]) and isinstance(None, Namespace)
    made = copy.deepcopy(nn.Sequential(Stash().isolate(one), nn.Identity()))
    made.add_module("2", Pop().isolate(one))
    verify_skippables(made)


def deferred(rank, size, checkpoint):
    torch.manual_seed(2)
    bn = nn.BatchNorm2d(3)
    mine = copy.deepcopy(bn)
    pipe = AsyncPipe(nn.Sequential(nn.Sequential(mine)), [1], chunks=2, checkpoint=checkpoint,
                     deferred_batch_norm=True, group=alone[0])
    for rows in (4, 1, 5):  # fewer micro-batches than chunks, too
        x = torch.rand(rows, 3, 10, 10)
        pipe(x).square().mean().backward()
        bn(x).square().mean().backward()
    found = pipe[0][0]
    assert isinstance(found, DeferredBatchNorm) and found.weight is mine.weight
    torch.testing.assert_close(found.running_mean, bn.running_mean, atol=1e-4, rtol=0)
    torch.testing.assert_close(found.running_var, bn.running_var, atol=2e-3, rtol=0)
    assert found.num_batches_tracked == 3 and found.weight.grad is not None
    same = DeferredBatchNorm.convert_deferred_batch_norm(found, 3)
    assert same is DeferredBatchNorm.convert_deferred_batch_norm(same, same.chunks)
    peer = pytest.importorskip("fairscale.nn.pipe.batchnorm", reason="pip has no fairscale")
    pair = [cls.convert_deferred_batch_norm(copy.deepcopy(bn), 2)
            for cls in (DeferredBatchNorm, peer.DeferredBatchNorm)]
    x = torch.rand(4, 3, 2, 2)
    for part in x.chunk(2):
        assert torch.equal(*[m(part) for m in pair])
    for a, b in zip(*[m.state_dict().values() for m in pair]):
        assert torch.equal(a, b)


@pytest.mark.parametrize("checkpoint", ["always", "never"])
def test_statistics_of_deferred_batch_norm_are_the_batchs(ranks, checkpoint):
    ranks(2, a_group_each)
    ranks(2, deferred, checkpoint)


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        if torch.is_grad_enabled() or is_checkpointing():
            self.seen.append((is_checkpointing(), is_recomputing()))
        return x


class Raises(nn.Module):
    wrong = None

    def forward(self, x):
        if self.wrong and torch.is_grad_enabled():
            raise self.wrong
        return x * 1


def failures(rank, size):
    counts = Counts()
    layers = nn.Sequential(nn.Linear(1, 1), counts, nn.Linear(1, 1), Raises())
    pipe = AsyncPipe(layers, [2, 2], chunks=2)
    x = torch.ones(4, 1)
    for wrong in (ZeroDivisionError("of this rank"), KeyboardInterrupt(), None):
        layers[3].wrong = wrong if rank == 1 else None
        if wrong is None:
            out = pipe(x)
            if rank == 1:
                out.sum().backward()
            continue
        with pytest.raises(type(wrong) if rank == 1 else libdualpipe.DualpipeError) as caught:
            pipe(x)
        assert rank == 1 or (caught.value.rank, caught.value.op) == (1, "forward")
    if rank == 0:  # the trial, then a checkpointed one, one that is not, and the first one again
        assert counts.seen[-3:] == [(True, False), (False, False), (False, True)]
    # No backward: the other ranks learn of it with the next forward.
    if rank == 1:
        pipe(x)
        out = pipe(x)
        out.sum().backward()
    else:
        with pytest.raises(libdualpipe.DualpipeError, match="without a backward"):
            pipe(x)
        pipe(x)
    calls = [None] * size
    dist.all_gather_object(calls, comm_of()._calls)
    assert len(set(calls)) == 1, calls  # tells failures of a call from older ones
    del pipe, layers
    gc.collect()
    dist.barrier()


def test_a_failure_reaches_all_ranks_and_flags_say_what_is_repeated(ranks):
    ranks(2, failures)


def flags_differ(rank, size):
    x, target = data()
    pipe = AsyncPipe(model(), [3, 3], chunks=4)
    for evaluates, by in ((0, "mode"), (1, "mode"), (0, "grad"), (1, "grad"), (None, "")):
        pipe.train(evaluates != rank or by != "mode")
        with torch.set_grad_enabled(evaluates != rank or by != "grad"):
            out = pipe(x)
        trains = evaluates is None
        if pipe.final_stage:
            assert out.shape == target.shape and out.requires_grad == trains
            if trains:
                F.mse_loss(out, target).backward()
        else:
            assert out is x
            pipe.back_helper(out)
        assert all((p.grad is not None) == trains for p in pipe.parameters())
        assert not any(made.is_held for made in pipe.pipeline.values())


def test_where_a_rank_evaluates_all_do(ranks):
    ranks(2, flags_differ)
