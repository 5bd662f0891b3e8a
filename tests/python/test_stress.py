# SPDX-License-Identifier: Apache-2.0
"""An exception and a collection of garbage at every callback in turn, and a step that is as it was
after each. Under AddressSanitizer it shows what is used too long."""
import gc
import sys

import pytest
import torch
import torch.nn.functional as F
from test_fairscale import Pop, Stash
from torch import nn
from torch.distributed.pipelining import PipelineStage

import libdualpipe
from libdualpipe.compat import deepseek, pipelining
from libdualpipe.compat.fairscale import AsyncPipe, OffloadModel

CPU = torch.device("cpu")


class Trap(nn.Module):
    """Raises when it is called for the n-th time, forwards and backwards counted alike."""

    left = -1

    @staticmethod
    def hit(*_):
        Trap.left -= 1
        gc.collect(0)
        if Trap.left == 0:
            raise LookupError("the trap")

    def forward(self, x):
        Trap.hit()
        x = x * 1
        if x.requires_grad:
            x.register_hook(Trap.hit)
        return x


def layers(count=2):
    torch.manual_seed(0)
    made = [nn.Linear(4, 4), Trap(), nn.Tanh(), nn.Linear(4, 4), Trap(), nn.Linear(4, 4)]
    return made[:3] if count == 1 else made


def at_every_callback(step, most, who=True):
    """step() gives gradients; who: this rank is the one that fails. most: callbacks of a step."""
    Trap.left = -1
    wanted = step()
    for number in range(1, most + 1):
        Trap.left = number if who else -1
        error = None
        try:
            step()
        except (LookupError, libdualpipe.DualpipeError) as caught:
            error = str(caught)
            assert type(caught) is LookupError or not who
        # A rank that had finished hears of it in its next step.
        assert "the trap" in str(error) or (error is None and not who), number
        Trap.left = -1
        gc.collect(1)
        try:
            again = step()
        except libdualpipe.DualpipeError as caught:
            assert error is None and not who and "the trap" in str(caught)
            again = step()
        for a, b in zip(again, wanted):
            assert torch.equal(a, b)


def step_of(module, run):
    def step():
        module.zero_grad()
        run()
        return [p.grad.clone() for p in module.parameters()]

    return step


@pytest.mark.parametrize("checkpoint, callbacks", [(False, 4), (True, 12)])
def test_slices_of_an_offloaded_model(checkpoint, callbacks):
    x = torch.ones(4, 4, requires_grad=True)
    model = OffloadModel(nn.Sequential(*layers()), CPU, checkpoint_activation=checkpoint,
                         num_microbatches=2 if checkpoint else 1)
    model(x)
    at_every_callback(step_of(model, lambda: model(x).square().sum().backward()), callbacks)


def pipe_of(rank, kind):
    """A rank's share of a model, and a step of it."""
    x, target = torch.ones(8, 4), torch.zeros(8, 4)
    made = layers()
    if kind == "async":
        again = made[2]  # stands in two places, in a row with skips
        pipe = AsyncPipe(nn.Sequential(made[0], Stash(), made[1], again, made[3], Pop(), made[4],
                                       again, made[5]), [4, 4], chunks=2, worker_map={})

        def run():
            out = pipe(x)
            if pipe.final_stage:
                out.square().sum().backward()

        return pipe, run
    mine = nn.Sequential(*(made[:3] if rank == 0 else made[3:]))
    if kind == "dualpipe":
        deepseek.set_p2p_tensor_shapes([(2, 4)])
        deepseek.set_p2p_tensor_dtype(torch.float32)
        torch.manual_seed(0)
        both = nn.ModuleList([mine, nn.Sequential(nn.Linear(4, 4), Trap())])
        pipe = deepseek.DualPipeV(both)
        given = (x, target) if rank == 0 else (None, None)
        return both, lambda: pipe.step(given[0], num_chunks=4, criterion=F.mse_loss,
                                       labels=(given[1], ))
    stage = PipelineStage(mine, rank, 2, CPU)
    schedule = pipelining.Schedule1F1B(stage, 2, F.mse_loss)
    return mine, lambda: schedule.step(x) if rank == 0 else schedule.step(target=target)


def ranks_fail(rank, size, kind, callbacks):
    for culprit in range(size):
        module, run = pipe_of(rank, kind)
        at_every_callback(step_of(module, run), callbacks, rank == culprit)


@pytest.mark.parametrize("kind, callbacks", [("async", 5), ("dualpipe", 8), ("pipelining", 4)])
def test_stages_of_a_pipeline(ranks, kind, callbacks):
    ranks(2, ranks_fail, kind, callbacks)


def is_interrupted_at_entry(rank, size, name):
    """As by a signal that came while the library computed: it shows where Python begins again."""
    module, run = pipe_of(rank, "pipelining")
    step = step_of(module, run)
    wanted = step()

    def at_entry(frame, event, _arg):
        if event == "call" and frame.f_code.co_name == name:
            sys.setprofile(None)
            raise KeyboardInterrupt

    if rank == 0:
        sys.setprofile(at_entry)
    with pytest.raises(KeyboardInterrupt if rank == 0 else libdualpipe.DualpipeError,
                       match="" if rank == 0 else "KeyboardInterrupt"):
        step()
        assert rank == 1  # which had finished, and hears of it in its next step
        step()
    for a, b in zip(step(), wanted):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", ["called", "dpy_given_back"])
def test_an_interrupt_at_the_entry_of_a_callback_is_not_lost(ranks, name):
    ranks(2, is_interrupted_at_entry, name)
