# SPDX-License-Identifier: Apache-2.0
"""AsyncPipe against the same layers without it."""
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from libdualpipe.compat.fairscale import AsyncPipe


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
                                           "too few ranks .* .ranks: 2, partitions: 3")):
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


def test_wrong_arguments_are_refused_as_by_fairscale(ranks):
    ranks(2, arguments)
