# SPDX-License-Identifier: Apache-2.0
"""OffloadModel against the same model as a whole."""
import contextlib
import copy
import gc
import pickle
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from libdualpipe.compat.fairscale import OffloadModel

CPU = torch.device("cpu", 0)


def model(drop=0.0):
    torch.manual_seed(0)
    return nn.Sequential(*[
        layer for _ in range(4)
        for layer in (nn.Linear(16, 32), nn.GELU(), nn.Dropout(drop), nn.Linear(32, 16))
    ], nn.Linear(16, 4))


def equal(a, b):
    for p, q in zip(a.parameters(), b.parameters()):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("slices", [1, 3, 30])
@pytest.mark.parametrize("checkpoint, microbatches", [(False, 1), (True, 1), (True, 5)])
def test_steps_are_those_of_the_whole_model(slices, checkpoint, microbatches):
    whole = model()
    ours = OffloadModel(copy.deepcopy(whole), CPU, num_slices=slices,
                        checkpoint_activation=checkpoint, num_microbatches=microbatches)
    optimizers = [torch.optim.Adam(m.parameters(), lr=1e-2) for m in (whole, ours)]
    for step in range(5):
        x, target = torch.randn(12 if step < 3 else 7, 16), None  # another shape later
        inputs = [x.clone().requires_grad_() for _ in range(2)]
        for m, given, optimizer in zip((whole, ours), inputs, optimizers):
            if step != 1:  # once gradients add up
                optimizer.zero_grad(set_to_none=step % 2 == 0)
            out = m(given)
            target = torch.ones_like(out) if target is None else target
            F.mse_loss(out, target).backward()
        torch.testing.assert_close(inputs[1].grad, inputs[0].grad, rtol=1e-5, atol=1e-6)
        equal(whole, ours)
        for optimizer in optimizers:
            optimizer.step()
    with torch.no_grad():
        assert torch.allclose(ours(x), whole(x), atol=1e-5) and not ours(x).requires_grad


class Turned(nn.Linear):
    """To complex numbers."""
    def forward(self, x):
        return torch.polar(torch.ones(()), super().forward(x.abs()))


def test_complex_tensors_between_slices_have_gradients():
    torch.manual_seed(2)
    whole = nn.Sequential(*[Turned(4, 4) for _ in range(3)])
    ours = OffloadModel(copy.deepcopy(list(whole)), CPU)
    found = [m(torch.linspace(0, 1, 8).view(2, 4)) for m in (whole, ours)]
    for out in found:
        out.real.sum().backward()
    equal(whole, ours)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_random_numbers_are_the_same_when_a_slice_is_computed_again(checkpoint):
    found = []
    for m in (model(0.5), OffloadModel(model(0.5), CPU, checkpoint_activation=checkpoint)):
        torch.manual_seed(3)
        m(torch.ones(6, 16)).sum().backward()
        found.append([p.grad.clone() for p in m.parameters()] + [torch.rand(1)])
    for a, b in zip(*found):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("checkpoint, microbatches", [(False, 1), (True, 1), (True, 5)])
def test_slices_names_and_gradients_are_fairscales(monkeypatch, checkpoint, microbatches):
    peer = pytest.importorskip("fairscale.experimental.nn.offload", reason="pip has no fairscale")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name in ("device", "Stream", "stream"):
        monkeypatch.setattr(torch.cuda, name, lambda *a, **k: contextlib.nullcontext())
    for name in ("cuda", "pin_memory"):
        monkeypatch.setattr(torch.Tensor, name, lambda self: self)
    found = []
    for cls in (peer.OffloadModel, OffloadModel):
        m = cls(model(), CPU, CPU, 3, checkpoint, microbatches)
        m(torch.ones(10, 16)).square().sum().backward()
        found.append([(name, p.grad) for name, p in m.named_parameters()])
        found.append([len(part.model_shard) for part in m.model_slices])
    assert found[1] == found[3]
    for (name, grad), (other, ours) in zip(found[0], found[2]):
        assert name == other
        torch.testing.assert_close(ours, grad, rtol=1e-5, atol=1e-6)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, a, b):
        return self.layer(a) + b, b * 2


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_list_of_slices_with_several_tensors_and_integers(checkpoint):
    torch.manual_seed(0)
    parts = [Two(), Two()]
    ours = OffloadModel(copy.deepcopy(parts), CPU, checkpoint_activation=checkpoint)
    a, b = (torch.randn(6, 4, requires_grad=True) for _ in range(2))
    first, second = ours(a, b)
    (first.sum() + (second * second).sum()).backward()
    got, a.grad, b.grad = [a.grad, b.grad], None, None
    first, second = parts[1](*parts[0](a, b))
    (first.sum() + (second * second).sum()).backward()
    for mine, theirs in zip(got, (a.grad, b.grad)):
        torch.testing.assert_close(mine, theirs)
    words = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 1))
    again = OffloadModel(copy.deepcopy(words), CPU, num_slices=2, checkpoint_activation=checkpoint)
    tokens = torch.arange(6)
    assert again(tokens).shape == (6, 1)  # fairscale drops a last dimension of 1
    for m in (again, words):
        m(tokens).sum().backward()
    equal(again, words)


def test_tied_and_frozen_parameters_and_names_are_the_models():
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.BatchNorm1d(4))
    whole[2].weight = whole[0].weight
    whole[0].bias.requires_grad_(False)
    ours = OffloadModel(copy.deepcopy(whole), CPU, num_slices=2)
    x = torch.randn(8, 4)
    for m in (ours, whole):
        m(x).square().sum().backward()
    assert len(list(ours.parameters())) == len(list(whole.parameters()))
    for a, b in zip(ours.parameters(), whole.parameters()):
        assert (a.grad is None) == (b.grad is None)
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours.model_slices[-1].model_shard[-1].running_mean,
                               whole[-1].running_mean)
    assert next(iter(ours.state_dict())) == "_model.0.model_shard.0.weight"
    other = pickle.loads(pickle.dumps(copy.deepcopy(ours)))
    other.load_state_dict(ours.state_dict())
    assert torch.equal(other(x), ours(x))


def test_the_types_of_autocast_are_those_of_the_repeated_forward():
    found = []
    for m in (model(), OffloadModel(model(), CPU, checkpoint_activation=True)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = m(torch.ones(6, 16))
        out.float().sum().backward()
        found.append([out] + [p.grad for p in m.parameters()])
    for a, b in zip(*found):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=0.02, atol=0.02)


class Fails(nn.Module):
    when = None

    def forward(self, x):
        if Fails.when == "forward":
            raise KeyError("here")
        if Fails.when == "backward" and x.requires_grad:
            x.register_hook(self.hook)
        return x * 1

    def hook(self, grad):
        raise KeyError("here")


def test_errors():
    linear = nn.Linear(2, 2)
    for wrong, args, options, text in (
        (TypeError, (None, CPU), {}, "`model` argument to `OffloadModel` cannot be None."),
        (TypeError, (nn.Sequential(), CPU), {}, "`model` argument .* cannot be None."),
        (TypeError, (nn.Sequential(linear), None), {}, "`device` argument .* cannot be None."),
        (TypeError, (linear, CPU), {}, "must be of type `nn.Sequential`."),
        (TypeError, (nn.Sequential(linear), torch.device("meta")), {}, "meta, expected cpu"),
        (RuntimeError, (nn.Sequential(linear), CPU), {"num_microbatches": 2},
         "only support microbatches with activation checkpointing"),
        (ValueError, (nn.Sequential(linear), CPU), {"num_slices": 0}, "slices")):
        with pytest.raises(wrong, match=text):
            OffloadModel(*args, **options)
    for checkpoint in (False, True):
        ours = OffloadModel(nn.Sequential(nn.Linear(2, 2), Fails(), nn.Linear(2, 2)), CPU,
                            checkpoint_activation=checkpoint)
        x = torch.randn(4, 2, requires_grad=True)
        for Fails.when in ("forward", "backward", None):
            try:
                ours(x).sum().backward()
            except KeyError as error:
                assert error.args == ("here", ) and Fails.when
            else:
                assert Fails.when is None
        old = ours(x)
        ours(x)
        with pytest.raises(RuntimeError, match="not the last one's"):
            old.sum().backward()
        if checkpoint:
            with pytest.raises(RuntimeError, match="not compatible with .grad"):
                torch.autograd.grad(ours(x).sum(), [x])


def test_parameters_outlive_the_model_and_threads_have_one_each():
    def train(number):
        layers = model()
        ours = OffloadModel(layers, CPU, num_slices=3)
        for _ in range(3):
            ours(torch.ones(4, 16)).sum().backward()
        kept[number] = list(layers.parameters())
        inner = ours._engine
        del ours, layers
        if number % 2:
            inner.places.clear()
        del inner
        gc.collect()

    kept = {}
    threads = [threading.Thread(target=train, args=(i, )) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert sum(p.sum() + p.grad.sum() for some in kept.values() for p in some).isfinite()
