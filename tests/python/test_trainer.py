# SPDX-License-Identifier: Apache-2.0
"""libdualpipe.torch.Trainer against a plain loop of torch, and itself under other layouts."""
import copy
import ctypes
import gc
import os
import signal
import threading

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import libdualpipe
from conftest import Pool
from libdualpipe.torch import Trainer, checkpoint

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


class Tied(nn.Module):
    """One weight by two names."""
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(self.a(x))


def model(dropout=0.0):
    torch.manual_seed(3)
    shared = nn.Linear(WIDTH, WIDTH)
    frozen = nn.Linear(WIDTH, WIDTH)
    frozen.requires_grad_(False)
    return nn.Sequential(Tied(), nn.Flatten(), shared, nn.Dropout(dropout), Two(),
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
                         mixing={"graph": "complete", "algorithm": "d-psgd"})
    losses = [trainer.step(*batch(0)).loss for _ in range(12)]
    trainer.finish()
    assert trainer.evaluate(*batch(0)) < losses[0]
    sums = [None] * size
    dist.all_gather_object(sums, [float(p.detach().sum()) for p in trainer._model.bound])
    assert all(s == sums[0] for s in sums)


def test_replicas_that_mix_become_one(ranks):
    ranks(4, mixes)


# ---- batch norms ----


class Dies(nn.Tanh):
    """In a forward of a rank."""

    def dies(self):
        return False

    def forward(self, x):
        if self.dies():
            os._exit(7)
        return super().forward(x)


class Named(nn.Sequential):
    """Its part is called by keyword."""
    def forward(self, x):
        return self[0](input=x)


def normed():
    """Batch norms of both kinds of momentum, of rows and of pixels, frozen, and begun before; one
    layer is there twice."""
    torch.manual_seed(4)
    flat = nn.Flatten()
    two = nn.Sequential(nn.BatchNorm1d(WIDTH, momentum=0.25), nn.Linear(WIDTH, WIDTH),
                        nn.BatchNorm1d(WIDTH, momentum=None, affine=False))
    images = nn.Sequential(nn.Unflatten(1, (2, 3)), nn.BatchNorm1d(2), nn.Flatten())
    frozen = nn.BatchNorm1d(WIDTH).eval()
    for k, norm in enumerate((two[0], frozen)):
        norm.running_mean.fill_(0.5 + k)
        norm.running_var.fill_(2.0)
        norm.num_batches_tracked.fill_(3)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), two, flat, Dies(), images, flat,
                         nn.Linear(WIDTH, WIDTH), Named(nn.BatchNorm1d(WIDTH)), frozen,
                         nn.Linear(WIDTH, WIDTH)).double()


def plain_normed(layers, steps, rate=0.05, count=8):
    """Micro-batches by themselves, and statistics of all their rows once a step."""
    optimizer = torch.optim.AdamW(layers.parameters(), lr=rate, weight_decay=0.1)
    norms = [part for part in layers.modules() if isinstance(part, nn.BatchNorm1d)]
    losses, seen = [], {}
    for norm in norms:
        norm.register_forward_pre_hook(
            lambda norm, args, named: seen.setdefault(norm, []).append(
                (*args, *named.values())[0].detach()), with_kwargs=True)
    for step in range(steps):
        optimizer.zero_grad()
        sum_of, (x, y) = 0.0, batch(step)
        before = copy.deepcopy([norm._buffers for norm in norms])
        seen.clear()
        for a, b in zip(x.tensor_split(count), y.tensor_split(count)):
            loss = F.mse_loss(layers(a), b) * len(a) / len(x)
            loss.backward()
            sum_of += float(loss.detach())
        for norm, buffers in zip(norms, before):
            norm._buffers.update(buffers)
            if norm.training:
                nn.BatchNorm1d.forward(norm, torch.cat(seen[norm]))
        optimizer.step()
        losses.append(sum_of)
    return losses


def state_is(found, expected):
    assert list(found) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-6, check_dtype=False)


def normed_equals_plain(rank, size, how):
    layers = normed()
    whole = copy.deepcopy(layers)
    expected = plain_normed(whole, STEPS)
    trainer = trainer_of(layers, clip=0.0, **how)
    for step, loss in enumerate(expected):
        assert abs(trainer.step(*batch(step)).loss - loss) < 1e-6
    found = trainer.gather(size - 1)
    assert (found is None) == (rank < size - 1)
    if found:
        state_is(found, whole.state_dict())
    whole.eval()
    x, y = batch(9)
    loss = float(F.mse_loss(whole(x), y).detach())
    assert abs(trainer.evaluate(x, y) - loss) < 1e-6
    trainer.close()
    own = [place for place in trainer._model.places if place.norms]
    for place in own if size == 1 else ():
        for name, value in place.module.state_dict().items():
            torch.testing.assert_close(value, whole[place.index].state_dict()[name], rtol=1e-6,
                                       atol=1e-6)


@pytest.mark.parametrize("how", [
    {"schedule": "1f1b", "recompute": "always"}, {"schedule": "dualpipe"},
    {"schedule": "zb1p", "replicas": 2}], ids=str)
def test_running_statistics_are_those_of_the_whole_batch(ranks, how):
    ranks(4, normed_equals_plain, how)


def test_running_statistics_of_one_process():
    normed_equals_plain(0, 1, {})


def saves_norms(rank, size, folder, how, steps, resumes):
    trainer = trainer_of(normed(), clip=0.0, fixed_order=True, order_blocks=4, folder=folder,
                         resume=resumes, **how)
    losses = [trainer.step(*batch(trainer.next_step)).loss for _ in range(steps)]
    trainer.save()
    state = trainer.gather(0)
    return losses, state and {name: value.tolist() for name, value in state.items()}


def test_running_statistics_go_on_under_another_layout_and_in_torch(ranks, tmp_path):
    whole, run = normed(), str(tmp_path / "run")
    expected = plain_normed(whole, 6)
    first, _ = ranks(4, saves_norms, run, {"schedule": "dualpipe"}, 2, False)[0]
    second, state = ranks(4, saves_norms, run, {"schedule": "1f1b", "replicas": 2}, 2, True)[0]
    again, optimizer = normed(), None
    optimizer = torch.optim.AdamW(again.parameters(), lr=0.05, weight_decay=0.1)
    assert checkpoint.load_training(run, again, optimizer)["step"] == 4
    for name, value in again.state_dict().items():
        torch.testing.assert_close(value.tolist(), state[name])
    lacking = checkpoint.load(tmp_path / "run" / "step-000004" / "index.json")
    del lacking["layer 7 commits"]
    checkpoint.save(tmp_path / "lacking", lacking)
    with pytest.raises(KeyError, match="no tensor 'layer 7 commits'"):
        checkpoint.load_training(tmp_path / "lacking", normed())
    checkpoint.save_training(tmp_path / "own", again, optimizer, 4)
    third, state = saves_norms(0, 1, str(tmp_path / "own"), {}, 2, True)
    torch.testing.assert_close(first + second + third, expected, rtol=1e-6, atol=1e-6)
    state_is({name: torch.tensor(value, dtype=whole.state_dict()[name].dtype)
              for name, value in state.items()}, whole.state_dict())


def test_running_statistics_of_replicas_that_mix_are_in_checkpoints(ranks, tmp_path):
    how = {"replicas": 2, "sums": "mixing", "mixing": {"graph": "complete"}}
    folder = str(tmp_path / "run")
    whole, _ = ranks(2, mixes_with_norms, None, how, 0, 4)[0]
    ranks(2, mixes_with_norms, folder, how, 0, 2)
    parts = ranks(2, mixes_with_norms, folder, how, 2, 4)
    assert parts[0][0] == parts[1][0] == whole


def mixes_with_norms(rank, size, folder, how, begin, end):
    trainer = trainer_of(normed(), clip=0.0, folder=folder, resume=bool(begin), **how)
    assert trainer.next_step == begin
    for step in range(begin, end):
        trainer.step(*batch(step))
    buffers = {name: value.tolist() for name, value in normed_state(trainer)}
    if folder:
        trainer.save()
    return buffers, rank


def normed_state(trainer):
    layers = nn.Sequential(*(place.module for place in trainer._model.places))
    return [(name, value) for name, value in layers.state_dict().items()
            if "running" in name or "tracked" in name]


# ---- ranks that die ----


def survives(rank, how, victims, dies_at):
    """Where the second of them dies, it does so when the step of the first is repeated."""
    assert ctypes.CDLL(None).mallopt(-6, 85)  # M_PERTURB: what is freed is overwritten
    trainer = trainer_of(normed(), clip=0.0, survive=True, **how)

    def step(number):
        if rank in victims and number == dies_at:
            Dies.dies = lambda self: len(trainer.lost) == victims.index(rank)
        return trainer.step(*batch(number)).loss

    return trainer, step


def assert_sound(trainer):
    for place in trainer._model.places:
        for name, value in place.module.state_dict().items():
            assert value.abs().max() < 10, (place.index, name, value)


def goes_on(rank, size, how, victims, dies_at):
    trainer, take = survives(rank, how, victims, dies_at)
    losses = []
    for step in range(STEPS + 2):
        losses.append(take(step))
        assert_sound(trainer)
    assert trainer.lost == victims
    found = trainer.gather(0)
    state = found and {name: value.tolist() for name, value in found.items()}
    # What this rank has is what it trains, and nothing is where the library had it before.
    held = [p.detach().clone() for place in trainer._model.places for p in place.parameters]
    trainer.close()
    assert_sound(trainer)
    gc.collect()
    assert all(torch.isfinite(p).all() for p in held)
    return losses, state


def of_those_that_live(tmp_path, size, body, how, victims):
    pool = Pool(size, tmp_path)
    results, wrong = pool.run(body, (how, victims, 2))
    pool.end(True)
    assert [r for r, result in enumerate(results)
            if not isinstance(result, tuple)] == sorted(victims), wrong
    return results


@pytest.mark.parametrize("how, size, victims", [
    ({"schedule": "dualpipe"}, 4, [1]), ({"schedule": "1f1b", "replicas": 2}, 4, [2]),
    ({"schedule": "1f1b", "replicas": 2}, 4, [0]),
    ({"schedule": "1f1b", "replicas": 2, "sums": "shards"}, 4, [2]),
    ({"schedule": "1f1b", "replicas": 3, "microbatches": 6}, 6, [2, 0])], ids=str)
def test_a_rank_that_dies_takes_no_statistics_along(tmp_path, how, size, victims):
    whole = normed()
    expected = plain_normed(whole, STEPS + 2, count=how.get("microbatches", 8))
    results = of_those_that_live(tmp_path, size, goes_on, how, victims)
    state = None
    for rank, result in enumerate(results):
        if rank not in victims:
            torch.testing.assert_close(result[0], expected, rtol=1e-6, atol=1e-6)
            state = state or result[1]
    state_is({name: torch.tensor(value, dtype=whole.state_dict()[name].dtype)
              for name, value in state.items()}, whole.state_dict())


class Another(nn.Module):
    """Other arguments than those of the ranks that are joined."""
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH, dtype=torch.float64))

    def forward(self, x):
        return x * self.weight


def one_of_three(layers, **how):
    return trainer_of(layers, microbatches=6, clip=0.0, replicas=3, survive=True, sums="mixing",
                      mixing={"graph": "complete"}, **how)


def ends_as_one(trainer):
    while trainer.next_step < STEPS + 3:
        trainer.step(*batch(trainer.next_step))
    trainer.finish()
    state = {name: value.tolist() for name, value in normed_state(trainer)}
    return trainer.next_step, state, trainer.gather(0) is not None


def admits(rank, size, path, victim):
    trainer = one_of_three(normed())
    with pytest.raises(libdualpipe.DualpipeError, match="count: 1, expected 1 to 0"):
        trainer.admit(dist.FileStore(path + ".none"))
    while not trainer.lost:
        if rank == victim and trainer.next_step == STEPS:
            os.kill(os.getpid(), signal.SIGKILL)
        trainer.step(*batch(trainer.next_step))
    assert trainer.lost == [victim]
    assert not trainer.admit(dist.PrefixStore("wrong", dist.FileStore(path)))
    assert trainer.admit(dist.PrefixStore("right", dist.FileStore(path)))
    return ends_as_one(trainer)


def comes(rank, size, path, victim):
    wrong = nn.Sequential(*normed(), Another())
    with pytest.raises(libdualpipe.DualpipeError, match="EMISMATCH"):
        one_of_three(wrong, joins=victim, store=dist.PrefixStore("wrong", dist.FileStore(path)))
    store = dist.PrefixStore("right", dist.FileStore(path))
    trainer = one_of_three(normed(), joins=victim, store=store)
    assert trainer.next_step == STEPS + 1
    return ends_as_one(trainer)


def test_a_process_comes_in_the_place_of_a_lost_one(tmp_path):
    there, new = Pool(3, tmp_path), Pool(1, tmp_path)
    found = [None, None]

    def run(place, pool, body):
        found[place] = pool.run(body, (str(tmp_path / "meeting"), 1))

    threads = [threading.Thread(target=run, args=args)
               for args in ((0, there, admits), (1, new, comes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    there.end(True)
    new.end(True)
    (results, wrong), (came, wrong_there) = found
    assert not wrong_there and isinstance(results[1], str), (wrong_there, wrong)
    for step, state, is_first in (results[2], came[0]):
        assert (step, state, is_first) == (STEPS + 3, results[0][1], False), wrong
    assert results[0][2]


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


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("cache", torch.zeros(()), persistent=False)

    def forward(self, x):
        self.calls += 1
        self.cache += 1
        return x


class Reassigns(Counts):
    def forward(self, x):
        self.calls, self.cache = self.calls + 1, self.cache + 1
        return x


class Begins(nn.Module):
    """It makes its buffer in its first forward."""
    def forward(self, x):
        if not hasattr(self, "calls"):
            self.register_buffer("calls", torch.zeros(()))
        self.calls = self.calls + 1
        return x


NORM = nn.BatchNorm1d(WIDTH, dtype=torch.float64)


class Norms(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.norm, self.how = nn.BatchNorm1d(WIDTH, dtype=torch.float64), forward

    def forward(self, x):
        return self.how(self.norm, x)


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
    dist.barrier()  # a step that fails ends a Trainer that is still made elsewhere
    own = {"forward": KeyError, "backward": ZeroDivisionError, "loss": ArithmeticError,
           "interrupt": KeyboardInterrupt, "label": ValueError}[where]
    error, (x, label) = None, batch(0)
    try:
        trainer.step(x, label.to("meta") if where == "label" and rank == 3 else label)
    except (own, libdualpipe.DualpipeError) as caught:
        error = caught
    assert isinstance(error, own if rank == 3 else libdualpipe.DualpipeError), repr(error)
    if rank != 3:
        assert error.rank == 3 and own.__name__ in error.text, error
        assert ("is on meta" if where == "label" else "of ours") in error.text, error
    with pytest.raises(RuntimeError, match="this trainer has failed"):
        trainer.step(*batch(0))
    trainer.close()
    again = trainer_of(model(), schedule="1f1b")
    again.step(*batch(0))


@pytest.mark.parametrize("where", ["forward", "backward", "loss", "interrupt", "label"])
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
    *(({"layers": [linear(), counts()]}, ValueError, "layer 1 .* changes its buffer 'calls'")
      for counts in (Counts, Reassigns, Begins)),
    ({"layers": [Norms(lambda norm, x: norm.forward(x))]}, ValueError,
     "layer 0 .Norms. changes its buffer 'norm.running_mean'"),
    ({"layers": [Norms(lambda norm, x: norm(norm(x)))]}, ValueError,
     "layer 0 .Norms. calls its batch norm 'norm' more than once"),
    ({"layers": [NORM, NORM]}, ValueError, "layer 1 is an earlier one again, and has a batch norm"),
    ({"layers": [nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16)],
      "example": (torch.ones(1, WIDTH, dtype=torch.bfloat16), torch.ones(1, WIDTH))},
     libdualpipe.DualpipeError, "expected float32 or float64"),
    ({"layers": [linear(2), Thirds()]}, ValueError,
     "output 0 of layer 1 is"),
])
def test_what_is_wrong_is_said(how, error, text):
    args = {"layers": [linear()], "loss": F.mse_loss, "example": batch(0), "rows": ROWS,
            "rate": 0.1, **how}
    state = copy.deepcopy(nn.Sequential(*args["layers"]).state_dict())
    with pytest.raises(error, match=text):
        Trainer(**args)
    for name, value in state.items():
        assert torch.equal(nn.Sequential(*args["layers"]).state_dict()[name], value)


def test_a_parameter_without_values_is_refused():
    with pytest.raises(ValueError, match=r"0\.weight is on meta, expected cpu$"):
        Trainer([linear().to("meta")], F.mse_loss, batch(0), ROWS, 0.1)


class Extra(nn.Identity):
    def get_extra_state(self):
        return {"words": "of ours"}

    def set_extra_state(self, state):
        assert state == {"words": "of ours"}


def test_what_is_gathered_has_extra_state():
    layers = nn.Sequential(linear(), Extra())
    found = trainer_of(layers).gather()
    assert list(found) == list(layers.state_dict())
    layers.load_state_dict(found)


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
