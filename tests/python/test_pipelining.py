# SPDX-License-Identifier: Apache-2.0
"""The schedules of torch.distributed.pipelining against torch's own."""
import copy

import models
import pytest
import torch
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as torchs

from libdualpipe.compat import pipelining

COUNT, WIDTH = 8, 8
INDICES = {"GPipe": lambda rank, size: [rank], "1F1B": lambda rank, size: [rank],
           "InterleavedZeroBubble": lambda rank, size: [rank],
           "Interleaved1F1B": lambda rank, size: [rank, rank + size],
           "ZBVZeroBubble": lambda rank, size: [rank, 2 * size - 1 - rank],
           "DualPipeV": lambda rank, size: [rank, 2 * size - 1 - rank]}
MANY = ("Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")


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
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)
    assert (out is None) == (not ends[1]) and len(losses) == (COUNT if ends[1] else 0)
    if ends[1]:
        assert all(torch.equal(a, b) for a, b in zip(losses, their_losses))
        assert torch.equal(out, their_out) and torch.equal(evaluated, out)


@pytest.mark.parametrize("name", list(INDICES))
def test_a_step_equals_torchs(ranks, name):
    ranks(4, equals_torchs, name)


def stages_are_elsewhere(rank, size):
    stage = PipelineStage(Layer(), size - 1 - rank, size, torch.device("cpu"))
    with pytest.raises(ValueError, match=rf"stages \[{size - 1 - rank}\] on rank {rank}, expected"):
        pipelining.ScheduleGPipe(stage, COUNT, F.mse_loss).step()


def test_stages_in_another_order_are_refused(ranks):
    ranks(4, stages_are_elsewhere)
