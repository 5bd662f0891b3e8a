# SPDX-License-Identifier: Apache-2.0
"""Stages of the tests, and what a plain run of them gives."""
import torch
import torch.nn.functional as F
from torch import nn

from libdualpipe.compat.deepseek import WeightGradStore, run_backward


class _Linear(torch.autograd.Function):
    """A product whose weight gradient may wait."""
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)

        def add():
            weight.grad += grad.flatten(0, -2).T @ x.flatten(0, -2)

        if store.enabled:
            store.put(add)
        else:
            add()
        return grad @ weight, None


store = WeightGradStore  # a test with the peer's classes sets the peer's


class Split(nn.Linear):
    def forward(self, x):
        return _Linear.apply(x, self.weight)


class Stage(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = Split(width, 2 * width, bias=False), Split(2 * width,
                                                                        width,
                                                                        bias=False)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class PairedStage(Stage):
    """One function for an overlapped pair."""

    pairs = 0

    @classmethod
    def overlapped_forward_backward(cls, module0, inputs0, criterion0, labels0, module1, loss1,
                                    outputs1, grads1):
        PairedStage.pairs += 1
        assert type(outputs1) is type(grads1) is tuple  # as the engine of autograd wants them
        outputs = module0(*inputs0)
        loss = None if criterion0 is None else criterion0(outputs, *labels0)
        if loss1 is not None:
            loss1.backward()
            loss1.detach_()
        else:
            run_backward(outputs1, grads1)
        return [outputs], loss


def criterion(output, target):
    return F.mse_loss(output, target).clone()


def plain(modules, x, target, count, loss_of=criterion, scale=1.0):
    """Losses and outputs of micro-batches one after the other; gradients are added to the
    modules'."""
    losses, outputs = [], []
    for a, b in zip(x.tensor_split(count), target.tensor_split(count)):
        for module in modules:
            a = module(a)
        loss = loss_of(a, b)
        (loss * scale).backward()
        losses.append(loss.detach())
        outputs.append(a.detach())
    return torch.stack(losses), torch.cat(outputs)


def grads(*modules):
    return [p.grad for module in modules for p in module.parameters()]
