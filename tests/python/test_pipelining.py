# SPDX-License-Identifier: Apache-2.0
"""The schedules of torch.distributed.pipelining against torch's own, in the ways that torch's tests
of several processes use them."""
import copy
import inspect
from unittest import mock

import models
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.pipelining import microbatch
from torch.distributed.pipelining import schedules as torchs

import libdualpipe
from libdualpipe._group import comm_of
from libdualpipe.compat import pipelining
from libdualpipe.compat.pipelining import PipelineStage

COUNT, WIDTH = 8, 8
INDICES = {"GPipe": lambda rank, size: [rank], "1F1B": lambda rank, size: [rank],
           "InterleavedZeroBubble": lambda rank, size: [rank, rank + size],
           "LoopedBFS": lambda rank, size: [rank, rank + size],
           "Interleaved1F1B": lambda rank, size: [rank, rank + size],
           "ZBVZeroBubble": lambda rank, size: [rank, 2 * size - 1 - rank],
           "DualPipeV": lambda rank, size: [rank, 2 * size - 1 - rank]}
# Torch divides gradients by the number of micro-batches, from 2.7 on and if not told otherwise.
SCALE = 1 / COUNT if "scale_grads" in inspect.signature(torchs.ScheduleGPipe).parameters else 1.0
MANY = ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")


class All(list):
    """Of a batch of sends and receives."""
    def wait(self):
        for work in self:
            work.wait()


if SCALE == 1.0:
    # Torch 2.6 keeps the last of a batch alone. Over gloo a send that is let go of before its
    # receiver has come is never done, and torch's own 1F1B waits for ever.
    torchs._batch_p2p = lambda ops, desc=None: All(dist.batch_isend_irecv(ops)) if ops else None


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(WIDTH, 16), torch.nn.Linear(16, WIDTH)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


def run(module, name, layers, indices, size, first, last):
    total = size * len(indices)
    stages = [PipelineStage(layer, i, total, torch.device("cpu"))
              for layer, i in zip(layers, indices)]
    cls = getattr(module, "Schedule" + name)
    schedule = cls(stages if name in MANY else stages[0], COUNT, loss_fn=F.mse_loss)
    torch.manual_seed(5)
    x, target = torch.randn(2 * COUNT, WIDTH), torch.randn(2 * COUNT, WIDTH)
    losses = []
    out = schedule.step(*((x, ) if first else ()),
                        **({"target": target, "losses": losses} if last else {}))
    evaluated = schedule.eval(*((x, ) if first else ())) if module is pipelining else None
    return losses, out, evaluated


def equals_torchs(rank, size, name):
    indices = INDICES[name](rank, size)
    torch.manual_seed(7 + rank)
    ours = [Layer() for _ in indices]
    theirs = copy.deepcopy(ours)
    ends = (0 in indices, size * len(indices) - 1 in indices)
    losses, out, evaluated = run(pipelining, name, ours, indices, size, *ends)
    their_losses, their_out, _ = run(torchs, name, theirs, indices, size, *ends)
    for a, b in zip(models.grads(*ours), models.grads(*theirs)):
        assert torch.equal(a, b)
    assert (out is None) == (not ends[1]) and len(losses) == (COUNT if ends[1] else 0)
    if ends[1]:
        assert all(torch.equal(a, b) for a, b in zip(losses, their_losses))
        assert torch.equal(out, their_out) and torch.equal(evaluated, out)


def needs(name):
    if not hasattr(torchs, "Schedule" + name):
        pytest.skip(f"this torch has no Schedule{name}")
    if name == "ZBVZeroBubble" and SCALE == 1.0:
        pytest.skip("torch 2.6's own asks wrong ranks for shapes, and ends in gloo's timeout")


@pytest.mark.parametrize("name", list(INDICES))
def test_a_step_equals_torchs(ranks, name):
    needs(name)
    ranks(4, equals_torchs, name)


class Keyed(Layer):
    """Of a keyword in every stage."""
    def forward(self, x, *, factor):
        return super().forward(x) * factor


class InTuple(Layer):
    def forward(self, x):
        return (super().forward(x[0] if isinstance(x, tuple) else x), )


class Complex(torch.nn.Module):
    """Of complex numbers, so that these have gradients at the borders."""
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(WIDTH, WIDTH, dtype=torch.complex64)

    def forward(self, x):
        return self.line(x.to(torch.complex64))


CASES = {
    "keywords": (Keyed, F.mse_loss, {"factor": torch.linspace(1, 2, 2 * COUNT)[:, None]}),
    "a tuple of one": (InTuple, lambda out, target: F.mse_loss(out[0], target), {}),
    "a loss that is a view": (Layer, lambda out, target: F.mse_loss(out, target).view(()), {}),
}


def equals_torchs_in(rank, size, name, case):
    layer, loss_of, given = CASES[case]
    indices = INDICES[name](rank, size)
    torch.manual_seed(7 + rank)
    layers = [layer() for _ in indices]
    found = []
    for module in (pipelining, torchs):
        made = copy.deepcopy(layers)
        stages = [PipelineStage(one, i, size * len(indices), CPU)
                  for one, i in zip(made, indices)]
        cls = getattr(module, "Schedule" + name)
        losses, out = step(cls(stages if name in MANY else stages[0], COUNT, loss_of), stages,
                           **given)
        found.append((models.grads(*made), losses, out))
    (grads, losses, out), (their_grads, their_losses, their_out) = found
    assert type(out) is type(their_out) and len(losses) == len(their_losses)
    assert all(torch.equal(a, b) for a, b in zip(grads + losses, their_grads + their_losses))
    for a, b in zip(*([some] if isinstance(some, torch.Tensor) else some or []
                      for some in (out, their_out))):
        assert torch.equal(a, b) and a.requires_grad == b.requires_grad


@pytest.mark.parametrize("name, case", [
    (name, case) for name in ("1F1B", "ZBVZeroBubble") for case in CASES
    if (name, case) != ("ZBVZeroBubble", "a loss that is a view")  # which torch refuses
])
def test_a_step_equals_torchs_with(ranks, name, case):
    needs(name)
    ranks(4, equals_torchs_in, name, case)


def has_complex_borders(rank, size):
    """What torch does not send over gloo."""
    torch.manual_seed(7)
    layers = [Complex() for _ in range(size)]
    ours = PipelineStage(copy.deepcopy(layers[rank]), rank, size, CPU)

    def loss_of(out, target):
        return F.mse_loss(out.abs(), target)

    losses, _ = models.plain(layers, *BATCH, COUNT, loss_of, SCALE)
    found, _ = step(pipelining.Schedule1F1B(ours, COUNT, loss_of), [ours])
    for a, b in zip(models.grads(ours.submod), models.grads(layers[rank])):
        torch.testing.assert_close(a, b)
    assert rank < size - 1 or torch.allclose(torch.stack(found), losses)


def test_complex_tensors_at_borders_have_gradients(ranks):
    ranks(2, has_complex_borders)


def test_bases_are_torchs():
    """Which of the classes are kinds of which."""
    names = [name for name in dir(pipelining) if "Schedule" in name and name[0] != "_"
             and isinstance(getattr(torchs, name, None), type)] + ["_PipelineScheduleRuntime"]
    for one in names:
        for other in names:
            assert issubclass(getattr(pipelining, one), getattr(pipelining, other)) == issubclass(
                getattr(torchs, one), getattr(torchs, other)), (one, other)


def stages_are_elsewhere(rank, size):
    stage = PipelineStage(Layer(), size - 1 - rank, size, torch.device("cpu"))
    with pytest.raises(ValueError, match=rf"stages \[{size - 1 - rank}\] on rank {rank}, expected"):
        pipelining.ScheduleGPipe(stage, COUNT, F.mse_loss).step()


def test_stages_in_another_order_are_refused(ranks):
    ranks(4, stages_are_elsewhere)


# ---- orders of one's own, and files ----

CPU = torch.device("cpu")
BATCH = (torch.linspace(-1, 1, 2 * COUNT * WIDTH).view(-1, WIDTH),
         torch.linspace(1, 0, 2 * COUNT * WIDTH).view(-1, WIDTH))


def plain(total):
    """All layers, after a step of the whole model, and its losses."""
    torch.manual_seed(7)
    layers = [Layer() for _ in range(total)]
    x, target = BATCH
    losses, out = models.plain(layers, x, target, COUNT, F.mse_loss, SCALE)
    return layers, losses, out


def fresh(layers, indices):
    made = [copy.deepcopy(layers[i]) for i in indices]
    for layer in made:
        layer.zero_grad()
    return made, [PipelineStage(layer, i, len(layers), CPU) for layer, i in zip(made, indices)]


def step(schedule, stages, **more):
    """(losses, output) of a step on BATCH."""
    x, target = BATCH
    losses = []
    first, last = any(s.is_first for s in stages), any(s.is_last for s in stages)
    out = schedule.step(*((x, ) if first else ()),
                        **({"target": target, "losses": losses} if last else {}), **more)
    return losses, out


def equals_plain(layers, made, indices, losses, results, out):
    for i, layer in zip(indices, made):
        for a, b in zip(models.grads(layer), models.grads(layers[i])):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    if results:
        torch.testing.assert_close(torch.stack(results).detach(), losses)
        torch.testing.assert_close(torch.cat([out]).detach(), BATCH_OUT[0])


BATCH_OUT = []


def own_orders(rank, size, folder):
    layers, losses, out = plain(2 * size)
    BATCH_OUT[:] = [out]
    indices = [rank, 2 * size - 1 - rank]

    class VShaped(pipelining.PipelineScheduleMulti):
        """As the schedules in torch's tests: a list of its own, stages in a V."""
        def __init__(self, stages, n_microbatches, loss_fn):
            super().__init__(stages, n_microbatches, loss_fn)
            action, order = torchs._Action.from_str, {}
            for r in range(size):
                one = [r, 2 * size - 1 - r]
                order[r] = [action(f"{s}F{m}") for m in range(COUNT) for s in one]
                order[r] += [None] + [action(f"{s}B{m}") for m in range(COUNT) for s in one[::-1]]
            self.pipeline_order = order
            if hasattr(self, "_validate_and_set_stage_mapping"):  # since 2.7
                self._validate_and_set_stage_mapping(order)

    made, stages = fresh(layers, indices[::-1])  # in any order
    own = VShaped(stages, COUNT, F.mse_loss)
    for _ in range(2):
        [layer.zero_grad() for layer in made]
        results, got = step(own, stages)
        equals_plain(layers, made, indices[::-1], losses, results, got)
    for name, these in (("ZBVZeroBubble", indices), ("Interleaved1F1B", [rank, rank + size]),
                        ("InterleavedZeroBubble", [rank, rank + size])):
        made, stages = fresh(layers, these)
        torchs_own = getattr(torchs, "Schedule" + name)(stages, COUNT, F.mse_loss)
        has_kinds = "format" in inspect.signature(torchs_own._dump_csv).parameters  # since 2.7
        for kind in ("compute_only", "compute_comms")[:1 + has_kinds]:
            path = f"{folder}/{name}-{kind}-{rank}.csv"
            torchs_own._dump_csv(path, *[kind] * has_kinds)
            made, stages = fresh(layers, these)
            runtime = pipelining._PipelineScheduleRuntime(stages, COUNT, F.mse_loss)
            if not has_kinds and name == "ZBVZeroBubble":  # which 2.6 has to be told
                runtime.stage_index_to_group_rank = {
                    s: r for r in range(size) for s in (r, 2 * size - 1 - r)}
            runtime._load_csv(path, kind)
            results, got = step(runtime, stages)
            equals_plain(layers, made, these, losses, results, got)
    with open(f"{folder}/wrong{rank}.csv", "w") as file:
        file.write("\n".join(["0F0,0F1"] * size))
    with pytest.raises(AssertionError):
        runtime._load_csv(f"{folder}/wrong{rank}.csv")


def test_orders_of_ones_own_and_of_files(ranks, tmp_path):
    ranks(2, own_orders, str(tmp_path))


# ---- arguments, results, errors ----


class Named(torch.nn.Module):
    """Of keywords, with two outputs and a parameter that is not used."""
    def __init__(self):
        super().__init__()
        self.layer, self.unused = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(1, 1)

    def forward(self, x, y=None):
        x = self.layer(x)
        return x if y is None else x + y


class Split(torch.nn.Module):
    wrong = None

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        if self.wrong and torch.is_grad_enabled():
            raise self.wrong
        return self.layer(x), x.sum(1)


def loss_of_two(out, target, factor=1.0):
    return (F.mse_loss(out[0], target) + out[1].square().mean()) * factor


def arguments(rank, size):
    x, target = BATCH
    torch.manual_seed(3)
    layers = [Named(), Split()]
    whole = copy.deepcopy(layers)
    stage = PipelineStage(layers[rank], rank, size, CPU)
    schedule = pipelining.Schedule1F1B(stage, COUNT, loss_of_two)
    for a, y, t in zip(x.chunk(COUNT), (2 * x).chunk(COUNT), target.chunk(COUNT)):
        (loss_of_two(whole[1](whole[0](a, y=y)), t) * SCALE).backward()
    given = {"y": 2 * x} if rank == 0 else {"target": target, "losses": (losses := [])}
    out = schedule.step(*([x] if rank == 0 else []), **given)
    for a, b in zip(models.grads(layers[rank]), models.grads(whole[rank])):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b)
    if rank == 1:
        assert len(losses) == COUNT and out[0].shape == x.shape and out[1].shape == (2 * COUNT, )
    before = copy.deepcopy(models.grads(layers[rank]))
    evaluated = schedule.eval(*([x] if rank == 0 else []), **given)
    for a, b in zip(models.grads(layers[rank]), before):
        assert a is b or torch.equal(a, b)
    if rank == 1:
        assert torch.equal(evaluated[0], out[0]) and len(losses) == COUNT
    forward_only = pipelining._ScheduleForwardOnly(stage, COUNT)
    kept = forward_only.step(*([x] if rank == 0 else []), **({"y": 2 * x} if rank == 0 else {}))
    assert rank == 0 or torch.equal(kept[1], out[1])
    with pytest.raises(RuntimeError, match="does not support loss"):
        forward_only.step(losses=[])
    if "arg_mbs" in inspect.signature(torchs.Schedule1F1B.step).parameters:
        again = schedule.step(return_outputs=False, loss_kwargs={"factor": 2.0}, **(
            {"arg_mbs": [(a, ) for a in x.chunk(COUNT)],
             "kwarg_mbs": [{"y": y} for y in (2 * x).chunk(COUNT)]} if rank == 0 else
            {"target_mbs": list(target.chunk(COUNT)), "losses": (twice := [])}))
        assert again is None
        if rank == 1:
            torch.testing.assert_close(torch.stack(twice), 2 * torch.stack(losses))
        with torch.no_grad(), pytest.raises(RuntimeError, match="Please call eval"):
            schedule.step()
    for wrong in (ZeroDivisionError("of this rank"), KeyboardInterrupt()):
        layers[1].wrong = wrong
        with pytest.raises(type(wrong) if rank == 1 else libdualpipe.DualpipeError) as caught:
            schedule.step(*([x] if rank == 0 else []), **given)
        assert rank == 1 or (caught.value.rank, caught.value.op) == (1, "forward")
    layers[1].wrong = None
    with pytest.raises(TypeError if rank == 1 else libdualpipe.DualpipeError, match="target"):
        schedule.step(*([x] if rank == 0 else []), **(given if rank == 0 else {}))
    schedule.step(*([x] if rank == 0 else []), **given)


def test_arguments_results_and_errors(ranks):
    ranks(2, arguments)


def first_step_fails(rank, size):
    """Before this rank tries its stage out, while the others wait for that."""
    stage = PipelineStage(Layer(), rank, size, CPU)
    schedule = pipelining.ScheduleGPipe(stage, COUNT, F.mse_loss)
    given = {} if rank == 0 else {"target": BATCH[1]}
    wrong = {"losses": 3} if rank == 0 else {}
    with pytest.raises(TypeError if rank == 0 else libdualpipe.DualpipeError, match="losses"):
        schedule.step(*([BATCH[0]] if rank == 0 else []), **given, **wrong)
    out = schedule.step(*([BATCH[0]] if rank == 0 else []), **given)
    assert rank == 0 or out.shape == BATCH[0].shape


def test_an_error_before_the_first_trial_ends_it_on_all_ranks(ranks):
    ranks(2, first_step_fails)


def gives_outputs_back(rank, size):
    """What has been sent is not kept for the rest of the step."""
    stage, kept = PipelineStage(Layer(), rank, size, CPU), []
    schedule = pipelining.Schedule1F1B(stage, COUNT, F.mse_loss)
    step(schedule, [stage])
    ours = schedule._pipelines[True].stages[0]
    stage.submod.register_forward_hook(lambda *_: kept.append(len(ours.handed_over)))
    step(schedule, [stage])
    assert len(kept) == COUNT and max(kept) <= COUNT // 2 and not ours.handed_over, kept


def test_outputs_are_kept_until_they_are_sent(ranks):
    ranks(2, gives_outputs_back)


class Traced(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = self.first(x)
        pipelining.pipe_split()
        return self.second(x)


def torchs_own_steps(rank, size):
    """Stages that torch traced, and custom functions."""
    x, target = BATCH
    torch.manual_seed(1)
    module = Traced()
    whole = copy.deepcopy(module)
    pipe = pipelining.pipeline(module, (x.chunk(COUNT)[0], ))
    stage = pipe.build_stage(rank, CPU)
    schedule = pipelining.ScheduleGPipe(stage, COUNT, F.mse_loss)
    _, out = step(schedule, [stage])
    (F.mse_loss(whole.second(whole.first(x)), target) * COUNT * SCALE).backward()
    for name, p in pipe.get_stage_module(rank).named_parameters():
        torch.testing.assert_close(p.grad, whole.get_parameter(name).grad)
    layers, losses, wanted = plain(2 * size)
    BATCH_OUT[:] = [wanted]
    indices = [rank, 2 * size - 1 - rank]
    made, stages = fresh(layers, indices)
    schedule = pipelining.get_schedule_class("zbvzerobubble")(stages, COUNT, F.mse_loss)
    assert type(schedule) is pipelining.ScheduleZBVZeroBubble
    seen = []
    if hasattr(schedule, "register_custom_function"):
        schedule.register_custom_function(torchs._ComputationType.RESHARD,
                                          lambda action, ctx: seen.append(action))
    results, out = step(schedule, stages)
    equals_plain(layers, made, indices, losses, results, out)
    dist.barrier()


def test_what_the_library_does_not_run_torch_does(ranks):
    ranks(2, torchs_own_steps)


def plays_ranks(rank, size):
    pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    group = dist.new_group(backend="fake")
    layer, example = Layer(), torch.ones(2, WIDTH)
    stage = PipelineStage(layer, rank, size, torch.device("cpu"), input_args=example,
                          output_args=example, group=group)
    schedule = pipelining.ScheduleGPipe(stage, COUNT)
    out = schedule.step(*((torch.ones(2 * COUNT, WIDTH), ) if rank == 0 else ()))
    assert (out is None) == (rank == 0)
    with pytest.raises(RuntimeError, match="backend 'fake' connects no ranks, expected 'gloo'"):
        comm_of(group)


def test_a_group_that_only_plays_its_ranks_is_torchs(ranks):
    ranks(2, plays_ranks)


def test_the_other_names_are_torchs():
    for name in ("_CustomReducer", "_Replicate", "sum_reducer", "split_args_kwargs_into_chunks",
                 "merge_chunks", "TensorChunkSpec"):
        assert getattr(pipelining, name) is getattr(microbatch, name)
    assert pipelining._Action is torchs._Action
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        pipelining.nothing
    with pytest.raises(ValueError):
        pipelining.get_schedule_class("nothing")


def without_torchs(rank, size):
    """A torch that lacks a class: the library's list."""
    with mock.patch.object(torchs, "ScheduleDualPipeV", None, create=True):
        ours = pipelining._own("ScheduleDualPipeV", "dualpipev")
    layers, losses, out = plain(2 * size)
    BATCH_OUT[:] = [out]
    indices = [rank, 2 * size - 1 - rank]
    made, stages = fresh(layers, indices)
    results, out = step(ours(stages, COUNT, F.mse_loss), stages)
    equals_plain(layers, made, indices, losses, results, out)


def test_a_class_that_torch_lacks_is_ours(ranks):
    ranks(2, without_torchs)
