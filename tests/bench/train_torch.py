# SPDX-License-Identifier: Apache-2.0
#
# train_torch.py LAYERS WIDTH HEADS CONTEXT BATCH MICROBATCHES STEPS FILE - the model of `dualpipe train
# --schedule none` in PyTorch on one thread: a byte GPT with pre-norm blocks, tanh GELU, AdamW, clipping at
# 1. Prints the tokens of a second of CPU time, of all steps but the first. For train.sh.
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

BYTES = 256


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = (part.view(n, t, self.heads, c // self.heads).transpose(1, 2)
                   for part in self.qkv(self.norm1(x)).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(n, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, width, heads, context):
        super().__init__()
        self.table, self.positions = nn.Embedding(BYTES, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, BYTES)

    def forward(self, tokens):
        x = self.table(tokens) + self.positions.weight[:tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def step(model, optimizer, text, context, batch, microbatches, device):
    at = torch.randint(len(text) - context, (batch,))
    rows = torch.stack([text[i:i + context + 1] for i in at]).to(device)
    for part in rows.split(batch // microbatches):
        logits = model(part[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, BYTES), part[:, 1:].reshape(-1))
        (loss / microbatches).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def main():
    layers, width, heads, context, batch, microbatches, steps = map(int, sys.argv[1:8])
    torch.set_num_threads(1)
    with open(sys.argv[8], "rb") as file:
        text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()
    model = Gpt(layers, width, heads, context)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), fused=True)
    for number in range(steps):
        if number == 1:
            began = time.process_time()
        step(model, optimizer, text, context, batch, microbatches, "cpu")
    print(batch * context * (steps - 1) / (time.process_time() - began))


if __name__ == "__main__":
    main()
