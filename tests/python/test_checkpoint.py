# SPDX-License-Identifier: Apache-2.0
"""State dicts of torch to and from the library's checkpoints."""
import pytest
import torch
import torch.nn.functional as F
from test_trainer import LAYOUTS, batch, model, trainer_of

import libdualpipe
from libdualpipe.torch import checkpoint


def test_a_state_dict_is_written_and_read(tmp_path):
    path = tmp_path / "model.safetensors"
    tensors = {"a": torch.arange(6, dtype=torch.bfloat16).view(2, 3).t(), "b": torch.tensor(True),
               "c": torch.empty(0, 3), "d": torch.randn(4, 3, 2, 2).contiguous(
                   memory_format=torch.channels_last)}
    checkpoint.save(path, tensors, {"epoch": 3})
    found = checkpoint.load(path)
    assert found.keys() == tensors.keys() and checkpoint.Checkpoint(path).about == {"epoch": 3}
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)
    with pytest.raises(KeyError, match="no tensor 'e'"):
        checkpoint.Checkpoint(path).read("e")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(libdualpipe.DualpipeError, match="model.safetensors"):
        checkpoint.load(path)
    with pytest.raises(libdualpipe.DualpipeError, match="index.json"):
        checkpoint.load(tmp_path)


def goes_on(layers, optimizer, first, last):
    losses = []
    for step in range(first, last):
        optimizer.zero_grad()
        loss = F.mse_loss(layers(batch(step)[0]), batch(step)[1])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_a_run_goes_from_torch_to_the_trainer_and_back(ranks, tmp_path, name):
    def optimizer_of(layers):
        return {"adamw": lambda: torch.optim.AdamW(layers.parameters(), 0.05, weight_decay=0.1),
                "sgd": lambda: torch.optim.SGD(layers.parameters(), 0.05, 0.9)}[name]()

    options = {"adamw": {"weight_decay": 0.1}, "sgd": {"momentum": 0.9}}[name]
    layers = model()
    optimizer = optimizer_of(layers)
    expected = goes_on(layers, optimizer, 0, 6)

    layers = model()
    optimizer = optimizer_of(layers)
    losses = goes_on(layers, optimizer, 0, 2)
    checkpoint.save_training(tmp_path, layers, optimizer, 2, {"words": "of ours"})
    how = {"optimizer": name, "optimizer_options": options, "clip": 0.0}
    losses += ranks(4, trains, str(tmp_path), {**LAYOUTS["shards"], **how}, 4)[0]

    layers = model()
    optimizer = optimizer_of(layers)
    assert checkpoint.load_training(tmp_path, layers, optimizer) == {"step": 4}
    losses += goes_on(layers, optimizer, 4, 6)
    assert all(abs(a - b) < 1e-9 for a, b in zip(losses, expected)) and len(losses) == 6


def trains(rank, size, folder, how, steps):
    trainer = trainer_of(model(), folder=folder, resume=True, **how)
    losses = []
    while trainer.next_step < steps:
        losses.append(trainer.step(*batch(trainer.next_step)).loss)
    trainer.finish()
    return losses
