# SPDX-License-Identifier: Apache-2.0
"""libdualpipe.torch.Trainer against a plain loop of torch, and itself under other layouts."""
import copy
import gc
import os

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import libdualpipe
from libdualpipe.torch import Trainer

WIDTH, ROWS, STEPS, CLIP = 6, 16, 3, 0.5


def linear(width=WIDTH):
    return nn.Linear(WIDTH, width, dtype=torch.float64)


class Two(nn.Module):
    """Two outputs, of which one has no gradient."""
    def forward(self, x):
        return torch.tanh(x), (x[:, 0] > 0).long()


class One(nn.Module):
    def forward(self, both):
        x, odd = both
        return x * (1 + odd[:, None])


def model(dropout=0.0):
    torch.manual_seed(3)
    shared = nn.Linear(WIDTH, WIDTH)
    frozen = nn.Linear(WIDTH, WIDTH)
    frozen.requires_grad_(False)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Flatten(), shared, nn.Dropout(dropout), Two(),
                         One(), frozen, nn.Sequential(nn.Linear(WIDTH, 9), nn.GELU()),
                         nn.Linear(9, WIDTH), shared).double()


def batch(step, rows=ROWS):
    random = torch.Generator().manual_seed(100 + step)
    return [torch.randn(rows, WIDTH, generator=random, dtype=torch.float64) for _ in range(2)]


def rows_of(step):
    return ROWS if step % 2 == 0 else ROWS - 3


def plain(layers, steps, rate=0.05):
    optimizer = torch.optim.AdamW(layers.parameters(), lr=rate, weight_decay=0.1)
    losses = []
    for step in range(steps):
        x, y = batch(step, rows_of(step))
        optimizer.zero_grad()
        loss = F.mse_loss(layers(x), y)
        loss.backward()
        grads = [p.grad for p in layers.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(grads)
        for grad in grads:
            grad *= min(1, CLIP / norm)  # torch's clip_grad_norm_ adds 1e-6 to the norm
        optimizer.step()
        losses.append((float(loss.detach()), float(norm)))
    return losses


LAYOUTS = {
    "1f1b": {"schedule": "1f1b"},
    "recompute": {"schedule": "1f1b", "recompute": "always"},
    "zb1p": {"schedule": "zb1p"},
    "dualpipe": {"schedule": "dualpipe"},
    "dualpipev": {"schedule": "dualpipev", "split": None},
    "interleaved": {"schedule": "interleaved"},
    "replicas": {"schedule": "zb1p", "replicas": 2},
    "shards": {"schedule": "dualpipe", "replicas": 2, "sums": "shards", "split": "store"},
    "data": {"replicas": 4},
}


def trainer_of(layers, **how):
    how = {"microbatches": 8, "optimizer_options": {"weight_decay": 0.1}, "clip": CLIP, **how}
    return Trainer(layers, F.mse_loss, batch(0), ROWS, 0.05, **how)


def close(losses, expected):
    for result, (loss, norm) in zip(losses, expected):
        assert abs(result.loss - loss) < 1e-9 and abs(result.norm - norm) < 1e-9, (losses, expected)
        assert not result.skipped


def equals_plain(rank, size, name):
    layers = model()
    expected_model = copy.deepcopy(layers)
    expected = plain(expected_model, STEPS)
    trainer = trainer_of(layers, **LAYOUTS[name])
    close([trainer.step(*batch(step, rows_of(step))) for step in range(STEPS)], expected)
    evaluated = trainer.evaluate(*batch(9))
    x, y = batch(9)
    assert abs(evaluated - float(F.mse_loss(expected_model(x), y).detach())) < 1e-9
    assert layers.training
    found = trainer.gather(size - 1)
    assert (found is None) == (rank != size - 1)
    if found:
        assert list(found) == list(expected_model.state_dict())
        for key, value in expected_model.state_dict().items():
            torch.testing.assert_close(found[key], value, rtol=0, atol=1e-9)
        again = model()
        again.load_state_dict(found)
    # Parameters are the library's own while it lives, then theirs again.
    mine = [p for p in layers.parameters() if p in trainer._model.bound]
    assert mine and (len(mine) == len(list(layers.parameters())) or size > 1)
    kept = [(p, p.detach(), p.detach().clone()) for p in mine]
    trainer.close()
    del trainer
    gc.collect()
    assert all(torch.equal(p, now) and torch.equal(view, now) and p.grad is None and
               p.data_ptr() != view.data_ptr() for p, view, now in kept)


@pytest.mark.parametrize("name", list(LAYOUTS))
def test_a_step_equals_plain_torch_under_every_layout(ranks, name):
    ranks(4, equals_plain, name)


def test_one_process_needs_no_group():
    equals_plain(0, 1, "1f1b")


def with_dropout(rank, size, how):
    trainer = trainer_of(model(0.3), fixed_order=True, **how)
    losses = [trainer.step(*batch(step)).loss for step in range(STEPS)]
    state = torch.get_rng_state()
    trainer.evaluate(*batch(9))
    assert torch.equal(torch.get_rng_state(), state)
    return losses


def test_random_numbers_and_order_are_those_of_the_place_under_every_layout(ranks):
    expected = with_dropout(0, 1, {"order_blocks": 4})
    for how in ({"schedule": "1f1b", "recompute": "always"}, {"schedule": "dualpipe"},
                {"schedule": "zb1p", "replicas": 2}):
        assert ranks(4, with_dropout, {**how, "order_blocks": 4}) == [expected] * 4
    assert len(set(expected)) == STEPS


def saves(rank, size, folder, how, resume, steps):
    trainer = trainer_of(model(), folder=folder, resume=resume, every=2, keep=1,
                         about={"words": "of ours"}, **how)
    losses = []
    while trainer.next_step < steps:
        losses.append(trainer.step(*batch(trainer.next_step, rows_of(trainer.next_step))).loss)
    trainer.finish()
    return losses


def test_a_run_goes_on_under_another_layout(ranks, tmp_path):
    expected = [loss for loss, _ in plain(model(), 6)]
    folder = str(tmp_path / "run")
    before = ranks(4, saves, folder, LAYOUTS["shards"], False, 3)[0]
    after = ranks(2, saves, folder, LAYOUTS["dualpipev"], True, 5)[0]
    last = saves(0, 1, folder, {}, True, 6)
    assert all(abs(a - b) < 1e-9 for a, b in zip(before + after + last, expected))
    assert [len(part) for part in (before, after, last)] == [3, 2, 1]
    assert os.listdir(folder) == ["step-000006"]


def mixes(rank, size):
    trainer = trainer_of(model(), replicas=4, sums="mixing", clip=0.0,
                         mixing={"graph": "ring", "algorithm": "d-psgd"})
    losses = [trainer.step(*batch(0)).loss for _ in range(12)]
    trainer.finish()
    assert trainer.evaluate(*batch(0)) < losses[0]
    sums = [None] * size
    dist.all_gather_object(sums, [float(p.detach().sum()) for p in trainer._model.bound])
    assert all(s == sums[0] for s in sums)


def test_replicas_that_mix_become_one(ranks):
    ranks(4, mixes)


class Wrong(nn.Module):
    def __init__(self, where):
        super().__init__()
        self.where = where
        self.weight = nn.Parameter(torch.ones(WIDTH, dtype=torch.float64))

    def forward(self, x):
        if x.requires_grad and self.where == "forward":
            raise KeyError("of ours")
        if x.requires_grad and self.where == "interrupt":
            raise KeyboardInterrupt("of ours")
        y = x * self.weight
        if y.requires_grad and self.where == "backward":
            y.register_hook(self.hook)
        return y

    def hook(self, grad):
        raise ZeroDivisionError("of ours")


class Thirds(nn.Module):
    """Neither as many rows as there are nor always the same."""
    def forward(self, x):
        return torch.cat([x, x[:1]])


def fails(rank, size, where):
    layers = [linear(), nn.Tanh(), linear(), Wrong(where)]
    loss = F.mse_loss
    if where == "loss":
        def loss(out, label):
            raise ArithmeticError("of ours")
    trainer = Trainer(layers, loss, batch(0), ROWS, 0.1, schedule="1f1b",
                      layers_of_stage=[1, 1, 1, 1])
    own = {"forward": KeyError, "backward": ZeroDivisionError, "loss": ArithmeticError,
           "interrupt": KeyboardInterrupt}[where]
    error = None
    try:
        trainer.step(*batch(0))
    except (own, libdualpipe.DualpipeError) as caught:
        error = caught
    assert isinstance(error, own if rank == 3 else libdualpipe.DualpipeError), repr(error)
    if rank != 3:
        assert error.rank == 3 and own.__name__ in error.text and "of ours" in error.text, error
    with pytest.raises(RuntimeError, match="this trainer has failed"):
        trainer.step(*batch(0))
    trainer.close()
    again = trainer_of(model(), schedule="1f1b")
    again.step(*batch(0))


@pytest.mark.parametrize("where", ["forward", "backward", "loss", "interrupt"])
def test_an_exception_stays_itself_and_reaches_all(ranks, where):
    ranks(4, fails, where)


@pytest.mark.parametrize("how, error, text", [
    ({"optimizer": "adamv"}, libdualpipe.DualpipeError, "adamv"),
    ({"optimizer_options": {"decay": 1}}, TypeError, "no member 'decay'"),
    ({"schedule": "1f2b"}, libdualpipe.DualpipeError, "1f2b"),
    ({"rate": {"kind": "cosin", "peak": 1}}, ValueError, "'cosin', expected one of constant"),
    ({"sums": "some"}, ValueError, "'some', expected one of all"),
    ({"mixing": {"algorithm": "psgd"}}, ValueError, "'psgd', expected one of d-psgd"),
    ({"rows": 1}, libdualpipe.DualpipeError, "microbatches: 2"),
    ({"layers": [nn.BatchNorm1d(WIDTH)]}, ValueError, "layer 0 has a BatchNorm1d"),
    ({"layers": [nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16)],
      "example": (torch.ones(1, WIDTH, dtype=torch.bfloat16), torch.ones(1, WIDTH))},
     libdualpipe.DualpipeError, "expected float32 or float64"),
    ({"layers": [linear(2), Thirds()]}, ValueError,
     "output 0 of layer 1 is"),
])
def test_what_is_wrong_is_said(how, error, text):
    args = {"layers": [linear()], "loss": F.mse_loss, "example": batch(0), "rows": ROWS,
            "rate": 0.1, **how}
    with pytest.raises(error, match=text):
        Trainer(**args)


def test_labels_may_be_none_and_a_batch_wrong():
    trainer = Trainer([linear(1)], lambda out: out.square().mean(), (batch(0)[0], None),
                      ROWS, 0.1)
    first = trainer.step(batch(0)[0])
    assert trainer.step(batch(0)[0]).loss < first.loss
    with pytest.raises(libdualpipe.DualpipeError, match="rows of a batch: 17"):
        trainer.step(torch.ones(17, WIDTH, dtype=torch.float64))


def test_objects_may_die_in_any_order():
    for order in range(4):
        layers = [linear(), nn.Tanh()]
        trainer = Trainer(layers, F.mse_loss, batch(0), ROWS, 0.1)
        trainer.step(*batch(0))
        view, value = layers[0].weight.detach(), layers[0].weight.detach().clone()
        if order == 1:
            trainer.itself = trainer  # for the collector
        elif order == 2:
            del layers
        elif order == 3:
            trainer.close()
            trainer.close()
            with pytest.raises(RuntimeError, match="closed"):
                trainer.step(*batch(0))
        del trainer
        gc.collect()
        assert torch.equal(view, value)
        if order != 2:
            assert torch.equal(layers[0].weight, value) and layers[0].weight.grad is None
            assert layers[0].weight.data_ptr() != view.data_ptr()
