# SPDX-License-Identifier: Apache-2.0
"""Decentralized data parallel against Decent-DP itself, step by step."""
import copy
import gc
import os
import signal
import sys
import threading
import time
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import libdualpipe
from libdualpipe.compat import decent_dp


class Net(nn.Module):
    """A convolution, batch norm, a layer that is left out in training."""
    def __init__(self, layout):
        super().__init__()
        self.conv = nn.Conv2d(2, 6, 3, padding=1).to(memory_format=layout)
        self.bn = nn.BatchNorm2d(6)
        self.line, self.unused = nn.Linear(6 * 16, 5), nn.Linear(3, 3)

    def forward(self, x):
        return self.line(F.relu(self.bn(self.conv(x))).flatten(1))


def sgd(params):
    return torch.optim.SGD([p for _, p in params], lr=0.05, momentum=0.9)


def warm(optimizer):
    return decent_dp.lr_scheduler_fn_cosine_with_warmup(optimizer, 30, 5)


class Hooked(torch.optim.SGD):
    """One that looks at what is going to be mixed, and changes it."""
    def pre_average_hook(self, edge, weight):
        share = torch.tensor(float(dist.get_rank()))
        dist.all_reduce(share, group=edge.group)
        assert weight == edge.weight
        for p in self.param_groups[0]["params"]:
            p.add_(p.comm_buffer - p, alpha=0.1)
            p.comm_buffer.add_(share, alpha=1e-2)


OPTIMIZERS = {
    name: partial(getattr(decent_dp, "optim_fn_" + name), lr=1e-2)
    for name in ("adam", "adamw", "accum_adam", "accum_adamw")
}
OPTIMIZERS["sgd"] = sgd
OPTIMIZERS["hooked"] = lambda params: Hooked([p for _, p in params], lr=0.05)


def equals_decent_dp(rank, size, topology, optimizer, options):
    from loguru import logger
    logger.remove()
    from decent_dp.ddp import DecentralizedDataParallel as Peer
    if optimizer.startswith("accum"):
        from decent_dp import optim
        theirs = partial(getattr(optim, "optim_fn_" + optimizer), lr=1e-2)
    else:
        theirs = OPTIMIZERS[optimizer]
    torch.manual_seed(3 + rank)
    base = Net(torch.contiguous_format).double()
    scaler = options.pop("scaler", False)
    accumulate = options.pop("accumulate", 1)
    overflows = options.pop("overflows", -1)

    def scaled():
        return {"scaler": torch.amp.GradScaler("cpu", init_scale=2.0**10)} if scaler else {}

    pairs = [(Peer(copy.deepcopy(base),
                   theirs,
                   warm,
                   topology=topology,
                   sync_buffer_in_global_avg=True,
                   **options,
                   **scaled())),
             (decent_dp.DecentralizedDataParallel(copy.deepcopy(base),
                                                  OPTIMIZERS[optimizer],
                                                  warm,
                                                  topology=topology,
                                                  sync_buffer_in_global_avg=True,
                                                  **options,
                                                  **scaled()))]

    def same(step):
        for a, b in zip(pairs[0]._model.parameters(), pairs[1]._model.parameters()):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9,
                                       msg=lambda text: f"iteration {step}: {text}")
        for a, b in zip(pairs[0]._model.buffers(), pairs[1]._model.buffers()):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9,
                                       msg=lambda text: f"iteration {step}: {text}")

    torch.manual_seed(100 + rank)
    for step in range(24):
        if step == 12:
            for model in pairs:
                model.set_adaptive_factor(0.5)
        for part in range(accumulate):
            x, y = torch.randn(8, 2, 4, 4).double(), torch.randint(0, 5, (8, ))
            for model in pairs:
                model.set_accumulate_grad(part + 1 < accumulate)
                loss = F.cross_entropy(model(x), y)
                if step == overflows and rank == 1:
                    loss = loss * float("inf")
                used = model._scaler if model is pairs[0] else model._updates.scaler
                (used.scale(loss) if scaler else loss).backward()
        same(step)
        assert pairs[0].get_lr() == pairs[1].get_lr()
        if step == 7:
            for model in pairs:
                model.eval()
                assert model(x).shape == (8, 5)
                model.train()
        if step == 15:
            distance = [model.global_avg(return_d2c=True) for model in pairs]
            assert distance[0] == pytest.approx(distance[1], rel=1e-4)
            same(step)
            for again in range(2):
                for model in pairs:
                    model.revert_global_avg()
                    if not again:
                        model._model.line.bias.data.zero_()
                same(step)
        if step == 18:
            for model in pairs:
                model.global_avg(will_revert=False, return_d2c=True)
            same(step)
        if step == 18 and accumulate > 1:
            for model in pairs:
                model.revert_global_avg()
            same(step)


@pytest.mark.parametrize("topology, optimizer, options", [
    ("ring", "sgd", {"bucket_size_in_mb": 1}),
    ("complete", "adam", {"bucket_size_in_mb": 0.001}),
    ("one-peer-exp", "adamw", {"bucket_size_in_mb": 0.001, "grad_clip_norm": 0.1}),
    ("alternating-exp-ring", "accum_adam", {"_local_world_size": 2, "param_as_bucket_view": False}),
    ("ring", "accum_adamw", {"bucket_size_in_mb": 0.001, "accumulate": 3}),
    ("ring", "hooked", {"bucket_size_in_mb": 0.001}),
    ("complete", "hooked", {"param_as_bucket_view": False}),
    ("complete", "sgd", {"scaler": True, "grad_clip_norm": 0.5}),
    ("ring", "adam", {"scaler": True, "bucket_size_in_mb": 0.001, "overflows": 5}),
])
def test_values_are_those_of_decent_dp(ranks, topology, optimizer, options):
    pytest.importorskip("decent_dp", reason="pip's decent-dp is not installed")
    pytest.importorskip("loguru", reason="pip's loguru, which decent-dp uses, is not installed")
    ranks(4, equals_decent_dp, topology, optimizer, options)


@pytest.mark.parametrize("name", ["accum_adam_foreach", "accum_adamw_foreach"])
def test_accumulating_updates_of_lists_are_those_of_decent_dp(name):
    peer = pytest.importorskip("decent_dp.optim", reason="pip's decent-dp is not installed")
    torch.manual_seed(3)
    mine = [[torch.rand(3, 2), torch.rand(5)] for _ in range(5)] + [[torch.tensor(0), torch.tensor(0)]]
    theirs = copy.deepcopy(mine)
    for _ in range(5):
        for module, lists in ((decent_dp, mine), (peer, theirs)):
            getattr(module, name)(*lists, 0.9, 0.99, 0.01, 0.1, 1e-8, 2)
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


FUSED = {
    "adam": (True, lambda ps: torch.optim.Adam(ps, lr=0.01)),
    "adamw, in groups": (True, lambda ps: torch.optim.AdamW([{"params": [p]} for p in ps], lr=0.01)),
    "of the user's own kind": (False, lambda ps: type("Own", (torch.optim.Adam, ), {})(ps, lr=0.01)),
    "foreach": (False, lambda ps: torch.optim.Adam(ps, lr=0.01, foreach=True)),
    "a tensor as rate": (False, lambda ps: torch.optim.Adam(ps, lr=torch.tensor(0.01))),
}
PARAMETERS = {
    "floats": (True, lambda: torch.ones(3, 4)),
    "doubles": (True, lambda: torch.ones(3, 4, dtype=torch.float64)),
    "bfloat16": (False, lambda: torch.ones(3, 4, dtype=torch.bfloat16)),
    "every other column": (False, lambda: torch.ones(3, 8)[:, ::2]),
    "channels last": (True, lambda: torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)),
}


@pytest.mark.parametrize("optimizer", FUSED)
@pytest.mark.parametrize("parameter", PARAMETERS)
@pytest.mark.parametrize("gradient", ["alike", "transposed", "none at first"])
def test_adam_of_what_lies_alike_is_fused(optimizer, parameter, gradient):
    is_alike, make = FUSED[optimizer]
    lies, tensor_of = PARAMETERS[parameter]
    found = []
    for fuses in (False, True):
        torch.manual_seed(3)
        p, q = nn.Parameter(tensor_of()), nn.Parameter(tensor_of())
        made, fused = make([p, q]), []
        made.register_step_pre_hook(
            lambda optimizer, *_: fused.append(optimizer.param_groups[0]["fused"]))
        is_fusible = fuses and decent_dp._is_fusible(made)
        for step in range(4):
            for each in (p, q):
                each.grad = torch.randn_like(each)
                if gradient == "transposed" and step == 2:
                    each.grad = each.grad.transpose(0, 1).contiguous().transpose(0, 1)
            if gradient == "none at first" and step == 0:
                p.grad = None
            with decent_dp._fused(made, [p, q] if is_fusible else []):
                made.step()
        if fuses:
            wanted = [True if is_alike and lies else made.defaults["fused"]] * 4
            if gradient == "transposed":
                wanted[2] = made.defaults["fused"]
            assert fused == wanted and made.param_groups[0]["fused"] is made.defaults["fused"]
        found.append([p.detach().double(), q.detach().double()])
    torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=1e-7)


def keeps_layouts(rank, size):
    model = Net(torch.channels_last)
    wrapped = decent_dp.DecentralizedDataParallel(model, sgd, topology="ring")
    places = [p.data_ptr() for p in model.parameters()]
    for _ in range(4):
        F.cross_entropy(wrapped(torch.randn(8, 2, 4, 4)), torch.randint(0, 5, (8, ))).backward()
    assert model.conv.weight.is_contiguous(memory_format=torch.channels_last)
    assert [p.data_ptr() for p in model.parameters()] == places
    assert len(list(wrapped.parameters())) == len(places)
    del wrapped
    gc.collect()
    F.cross_entropy(model(torch.randn(8, 2, 4, 4)), torch.randint(0, 5, (8, ))).backward()


def test_parameters_stay_and_outlive_the_wrapper(ranks):
    ranks(4, keeps_layouts)


def follows_memory(rank, size):
    found = []
    for moves in (False, True):
        torch.manual_seed(4)
        model = Net(torch.contiguous_format if moves else torch.channels_last)
        wrapped = decent_dp.DecentralizedDataParallel(model, sgd, topology="ring")
        if moves:
            wrapped.to(memory_format=torch.channels_last)
        torch.manual_seed(40 + rank)
        for step in range(6):
            if moves and step in (2, 4):
                for p in model.parameters():
                    p.data = p.data.clone()
            F.cross_entropy(wrapped(torch.randn(8, 2, 4, 4)), torch.randint(0, 5, (8, ))).backward()
        if moves:
            model.line.weight.data = model.line.weight.data.clone()
        wrapped.global_avg(will_revert=False)
        found.append([p.detach().clone() for p in wrapped.parameters()])
    for a, b in zip(*found):
        torch.testing.assert_close(a, b)
    with pytest.raises(RuntimeError, match="parameter 'conv.weight' has become .*float64"):
        wrapped.double()(torch.randn(8, 2, 4, 4).double())


def test_parameters_in_other_memory_are_mixed_there(ranks):
    ranks(2, follows_memory)


class Again(nn.Module):
    """Layers of which one is computed again, in a backward within the backward."""
    def __init__(self, last, reentrant):
        super().__init__()
        torch.manual_seed(6)
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
        self.last, self.reentrant = last, reentrant

    def forward(self, x):
        for place, layer in enumerate(self.layers):
            x = checkpoint(layer, x, use_reentrant=True) \
                if self.reentrant and place in (1, self.last) else layer(x)
        return x


def has_reentrant_checkpoints(rank, size):
    found = []
    for reentrant in (False, True):
        wrapped = decent_dp.DecentralizedDataParallel(Again(2, reentrant), sgd, topology="ring",
                                                      bucket_size_in_mb=0.00001)
        torch.manual_seed(60 + rank)
        for part in range(10):
            wrapped.set_accumulate_grad(part > 5 and part % 2 == 0)
            wrapped(torch.randn(4, 3)).square().sum().backward()
        wrapped.global_avg(will_revert=False)
        found.append([p.detach().clone() for p in wrapped.parameters()])
    for a, b in zip(*found):
        torch.testing.assert_close(a, b)


def test_a_backward_within_the_backward_does_not_end_the_iteration(ranks):
    ranks(2, has_reentrant_checkpoints)


def arguments(rank, size):
    model = nn.Linear(2, 2)
    with pytest.raises(KeyError):
        decent_dp.DecentralizedDataParallel(model, sgd, topology="no-such")
    assert decent_dp.TopologyReg.registry["ring"] is decent_dp.RingTopology
    assert decent_dp.OnePeerExpTopology(1).get_edge(1).ranks == [rank & 1, rank & 1 | 2]
    with pytest.raises(ValueError):
        decent_dp.DecentralizedDataParallel(model,
                                            sgd,
                                            topology="alternating-exp-ring",
                                            _local_world_size=4)
    with pytest.raises(AssertionError, match="multiple of 3"):
        decent_dp.DecentralizedDataParallel(model, sgd, _local_world_size=3)
    wrapped = decent_dp.DecentralizedDataParallel(model, sgd)
    with pytest.raises(RuntimeError):
        wrapped.revert_global_avg()
    assert wrapped.get_lr() == 0
    wrapped(torch.ones(1, 2)).sum().backward()
    wrapped(torch.ones(1, 2))
    with pytest.raises(AssertionError, match="No learning rate scheduler"):
        wrapped.get_lr()


def test_wrong_arguments_are_refused_as_by_decent_dp(ranks):
    ranks(4, arguments)


def own_topology(rank, size):
    seen = []

    class Hooked(torch.optim.SGD):
        def pre_average_hook(self, edge, weight):
            seen.append(
                (edge.ranks, weight, [p.comm_buffer.shape for p in self.param_groups[0]["params"]]))

    if "pairs" not in decent_dp.TopologyReg.registry:

        @decent_dp.TopologyReg.register("pairs")
        class Pairs(decent_dp.Topology):
            def _get_topo_edges(self):
                return [[decent_dp.Edge([1, 0], 0.25),
                         decent_dp.Edge([2, 3], 0.25)],
                        [decent_dp.Edge([0, 3], 0.5),
                         decent_dp.Edge([1, 2], 0.5)]]

    with pytest.raises(ValueError, match="already registered"):
        decent_dp.TopologyReg.register("pairs")(decent_dp.Topology)
    with pytest.raises(ValueError, match="must extend"):
        decent_dp.TopologyReg.register("other")(int)
    wrapped = decent_dp.DecentralizedDataParallel(nn.Linear(2, 2),
                                                  lambda ps: Hooked([p for _, p in ps], lr=0.1),
                                                  topology="pairs")
    for _ in range(5):
        wrapped(torch.ones(1, 2)).sum().backward()
    assert len(seen) >= 3 and all(rank in ranks for ranks, _, _ in seen)
    assert {weight for _, weight, _ in seen} == {0.25, 0.5}


def test_a_topology_and_an_optimizer_of_the_users(ranks):
    ranks(4, own_topology)


def an_optimizer_fails(rank, size, method):
    class Broken(torch.optim.SGD):
        calls = 0

    def fail(self, *args):
        Broken.calls += 1
        if rank == 2 and Broken.calls == 3:
            raise ZeroDivisionError(f"of {method}")

    setattr(Broken, method, fail)
    wrapped = decent_dp.DecentralizedDataParallel(nn.Linear(2, 2),
                                                  lambda ps: Broken([p for _, p in ps], lr=0.1))
    with pytest.raises(ZeroDivisionError if rank == 2 else libdualpipe.DualpipeError,
                       match=f"of {method}") as caught:
        for _ in range(6):
            wrapped(torch.ones(1, 2)).sum().backward()
    assert rank == 2 or caught.value.rank == 2


@pytest.mark.parametrize("method", ["step", "pre_average_hook"])
def test_an_optimizer_that_fails_is_named_on_all_ranks(ranks, method):
    ranks(4, an_optimizer_fails, method)


class Fails(nn.Linear):
    """In one forward of one rank."""
    calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls == dist.get_rank() * 4 == 4:
            raise ZeroDivisionError("of the model")
        return super().forward(x)


def a_forward_fails(rank, size):
    wrapped = decent_dp.DecentralizedDataParallel(Fails(2, 2), sgd)
    with pytest.raises(ZeroDivisionError if rank == 1 else libdualpipe.DualpipeError,
                       match="of the model") as caught:
        for _ in range(9):
            wrapped(torch.ones(1, 2)).sum().backward()
    assert rank == 1 or caught.value.rank == 1
    dist.barrier()


def test_a_forward_that_fails_is_named_on_all_ranks(ranks):
    ranks(2, a_forward_fails)


def is_interrupted(rank, size):
    """Rank 1 gets the signal while it waits for rank 0, whose optimizer waits for the end of the
    iteration."""
    store = dist.distributed_c10d._get_default_store()

    class Slow(torch.optim.SGD):
        calls = 0

        def step(self, closure=None):
            Slow.calls += 1
            if rank == 0 and Slow.calls == 3:
                store.set("mix/begun", "yes")
                store.wait(["mix/done"])
            return super().step(closure)

    wrapped = decent_dp.DecentralizedDataParallel(nn.Linear(2, 2),
                                                  lambda ps: Slow([p for _, p in ps], lr=0.1))

    def send():
        """Only what comes while the library waits is known to the others."""
        store.wait(["mix/begun"])
        seen, since = None, time.monotonic()
        while time.monotonic() - since < 0.1:
            frame = sys._current_frames()[threading.main_thread().ident]
            at = frame.f_code.co_filename, frame.f_lasti
            if at != seen or "libdualpipe" not in at[0]:
                seen, since = at, time.monotonic()
            threading.Event().wait(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    if rank == 1:
        sender = threading.Thread(target=send)
        sender.start()
    with pytest.raises(KeyboardInterrupt if rank == 1 else libdualpipe.DualpipeError) as caught:
        for _ in range(9):
            wrapped(torch.ones(1, 2)).sum().backward()
    if rank == 1:
        sender.join()
        store.set("mix/done", "yes")
    assert rank == 1 or caught.value.rank == 1
    again = decent_dp.DecentralizedDataParallel(nn.Linear(2, 2), sgd)
    for _ in range(3):
        again(torch.ones(1, 2)).sum().backward()


def test_an_interrupt_reaches_all_ranks_and_a_new_wrapper_goes_on(ranks):
    ranks(2, is_interrupted)
