#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Vectors of AsyncPipe in the form of the golden files, by an oracle of their own.

    asyncpipe_vectors.py DIR SEED    writes partitions.json, events.json and sizes.json

Partitions: random lists of layers, cut at random; what is correct, and what fairscale makes of it.
Events: every rank as a coroutine that takes messages from a queue, as fairscale's event loop does.
Sizes: torch's tensor_split and chunk.
"""

import json
import os
import random
import sys
from itertools import count


def identities(layers):
    """Equal names are one layer; in a list "r" is a new one every time."""
    fresh = isinstance(layers, list)
    return [(name, i) if fresh and name == "r" else name for i, name in enumerate(layers)]


class Group:
    def __init__(self, stage, index, first):
        self.stage, self.index, self.layers = stage, index, [first]

    def text(self):
        return f"{self.stage}@{self.index}"


def cut(layers, balance, compat):
    """The groups, and the order in which they are executed."""
    ids = identities(layers)
    groups, order, place = [], [], {}
    at = 0
    for stage, size in enumerate(balance):
        fresh, index, last, current = 0, count(), stage == len(balance) - 1, None
        while at < len(ids) and (fresh < size or (not compat and (last or ids[at] in place))):
            layer = ids[at]
            if layer in place:
                order.append(place[layer])
                current = current if compat else None
            elif ids.count(layer) > 1 or current is None:
                group = Group(stage, next(index), at)
                groups.append(group)
                order.append(group)
                current = group if ids.count(layer) == 1 else None
                place[layer] = group
                fresh += 1
            else:
                current.layers.append(at)
                if compat:
                    order.append(current)
                place[layer] = current
                fresh += 1
            at += 1
    if compat:
        order = [g for k, g in enumerate(order) if k == 0 or order[k - 1] is not g]
    return groups, order


def partition_record(layers, balance):
    record = {"layers": layers, "balance": balance}
    for compat, name in ((True, "seed"), (False, "correct")):
        groups, order = cut(layers, balance, compat)
        record[f"{name}_groups"] = [vars(g) for g in groups]
        names = [None] + [g.text() for g in order] + [None]
        record[f"{name}_invocations"] = [
            {"order": k, "this": names[k + 1], "source": names[k], "dest": names[k + 2]}
            for k in range(len(order))]
        if compat:
            done = [i for g in order for i in g.layers]
            record["seed_is_correct"] = done == list(range(len(layers))) or \
                [identities(layers)[i] for i in done] == identities(layers)
    return record


class Run:
    """One step of fairscale's event loop, a coroutine a rank."""

    def __init__(self, layers, balance, mbs, train, ranks):
        _, self.order = cut(layers, balance, True)
        self.final, self.mbs, self.train = len(balance) - 1, mbs, train
        self.events = [[] for _ in range(ranks)]
        self.queues = [[] for _ in range(ranks)]
        self.done = [{} for _ in range(ranks)]  # by its last order: how long a chain was

    def is_on(self, k, rank):
        return 0 <= k < len(self.order) and self.order[k].stage == rank

    def send(self, rank, kind, mb, k):
        to = self.order[k].stage
        self.events[rank].append(f"send->{to} {kind} mb{mb} order{k} nt1")
        self.queues[to].append((rank, kind, mb, k))

    def receive(self, rank):
        while not self.queues[rank]:
            yield
        source, kind, mb, k = self.queues[rank].pop(0)
        self.events[rank].append(f"got<-{source} {kind} mb{mb} order{k}")
        return kind, mb, k

    def forward(self, rank, mb, k):
        first = k
        while self.is_on(k, rank):
            self.events[rank].append(f"F order{k}@{self.order[k].text()} mb{mb}")
            k += 1
        if k < len(self.order):
            self.send(rank, "Act", mb, k)
        self.done[rank][k - 1] = k - first
        return k - first

    def backward(self, rank, mb, k):
        length = self.done[rank][k]
        if k - length >= 0:
            self.send(rank, "Gra", mb, k - length)
        return length

    def take(self, rank, forwards, backwards):
        """Until so many invocations have been executed and differentiated."""
        while forwards > 0 or backwards > 0:
            kind, mb, k = yield from self.receive(rank)
            if kind == "Act":
                forwards -= self.forward(rank, mb, k)
            else:
                backwards -= self.backward(rank, mb, k)

    def rank(self, rank):
        own = self.mbs * sum(g.stage == rank for g in self.order)
        if rank > self.final:
            return
        if rank == self.final:
            yield from self.tail(rank, own)
            return
        for mb in range(self.mbs if rank == 0 else 0):
            own -= self.forward(rank, mb, 0)
        total = self.mbs * sum(g.stage == rank for g in self.order)
        yield from self.take(rank, own, total if self.train else 0)
        self.events[rank].append(f"returned list len {self.mbs}")

    def tail(self, rank, own):
        if rank == 0:
            for mb in range(self.mbs):
                own -= self.forward(rank, mb, 0)
        yield from self.take(rank, own, 0)
        self.events[rank].append("returned from forward")
        if not self.train:
            return
        each = sum(g.stage == rank for g in self.order)
        for mb in reversed(range(self.mbs)):
            left = each - self.backward(rank, mb, len(self.order) - 1)
            yield from self.take(rank, 0, left)
        self.events[rank].append("backward done")

    def run(self):
        ranks = [self.rank(rank) for rank in range(len(self.events))]
        while ranks:
            ranks = [rank for rank in ranks if next(rank, "ended") != "ended"]
        return self.events


def random_balance(rng, distinct):
    stages = rng.randint(1, distinct)
    cuts = [0] + sorted(rng.sample(range(1, distinct), stages - 1)) + [distinct]
    return [b - a for a, b in zip(cuts, cuts[1:])]


def random_layers(rng, most, reused, relus):
    fresh = iter("abcdefghijklmnop")
    names = rng.choices(["new", "s", "t", "r"], [4, reused, reused / 2, relus], k=rng.randint(1, most))
    return [next(fresh) if name == "new" else name for name in names]


def partitions(rng):
    # Nothing; one layer; as many stages as layers; nothing but uses of one layer.
    yield partition_record("", [])
    yield partition_record("A", [1])
    yield partition_record("ABCDEF", [1] * 6)
    yield partition_record("ssss", [1])
    for _ in range(300):
        layers = "".join(random_layers(rng, 14, rng.choice([0, 1, 3]), 0))
        yield partition_record(layers, random_balance(rng, len(set(layers))))


def runs(rng):
    for i in range(200):
        layers = random_layers(rng, 9, i % 2 * 2, 1)
        balance = random_balance(rng, len(set(identities(layers))))
        chunks, batch, train = rng.randint(1, 7), rng.randint(1, 12), rng.random() < 0.7
        mbs = len(range(0, batch, -(-batch // chunks)))
        ranks = len(balance) + rng.choice([0, 0, 1, 2])
        yield {"name": f"run {i}", "layers": layers, "balance": balance, "chunks": chunks,
               "batch": batch, "train": train,
               "events": Run(layers, balance, mbs, train, ranks).run()}


def sizes(rng):
    pairs = [(n, k) for n in range(25) for k in range(1, 13)]
    pairs += [(rng.randint(0, 5000), rng.randint(1, 300)) for _ in range(200)]
    for n, k in pairs:
        split = [n // k + (i < n % k) for i in range(k)]
        size = -(-n // k)
        chunk = [min(size, n - i) for i in range(0, n, size)] if n else [0] * k
        yield [n, k, split, chunk]


def main(folder, seed):
    rng = random.Random(int(seed))
    files = {
        "partitions": list(partitions(rng)),
        "events": list(runs(rng)),
        "sizes": {"columns": ["size", "chunks", "tensor_split_sizes", "chunk_sizes"],
                  "rows": list(sizes(rng))},
    }
    for name, value in files.items():
        with open(os.path.join(folder, name + ".json"), "w", encoding="ascii") as f:
            json.dump(value, f)


main(*sys.argv[1:])
