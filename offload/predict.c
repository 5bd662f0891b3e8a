/* SPDX-License-Identifier: Apache-2.0
 *
 * predict.c - how long a step would take: its plan, carried out on paper by a thread that computes and
 * a link with two directions. Pure.
 *
 *      up       load 0 | load 1 |        load 2 |             a load begins when the thread comes to it,
 *      compute         |   F0   |   F1   |      F2 | B2 |     the slot is free and the link is
 *      down                                        | grads 2
 */
#include "offload/layout.h"

#include "base/fail.h"

#include <stdlib.h>

struct slot_times {
    int64_t loaded, used, emptied;
};

struct clock {
    const struct dp_offload_shard_cost *shards;
    struct slot_times *slots;
    int64_t compute, up, down;
    int64_t *boundary; /* when the input of a shard is on the host */
};

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void forward(struct clock *t, const struct dp_offload_event *event)
{
    const struct dp_offload_shard_cost *cost = &t->shards[event->shard];
    struct slot_times *slot = &t->slots[event->slot];

    t->boundary[event->shard] = t->down = later(t->down, t->compute) + cost->boundary_down_ns;
    t->compute = later(t->compute, slot->loaded) + cost->forward_ns;
    slot->used = t->compute;
}

static void backward(struct clock *t, const struct dp_offload_event *event)
{
    const struct dp_offload_shard_cost *cost = &t->shards[event->shard];
    struct slot_times *slot = &t->slots[event->slot];
    int64_t input = t->compute;

    if (cost->boundary_up_ns)
        input = t->up = later(later(t->up, t->boundary[event->shard]), t->compute) +
                        cost->boundary_up_ns;
    t->compute = later(later(input, slot->loaded), later(t->compute, slot->emptied)) +
                 cost->backward_ns;
    slot->used = t->compute;
    slot->emptied = t->down = later(t->down, t->compute) + cost->down_ns;
}

static void load(struct clock *t, const struct dp_offload_event *event)
{
    struct slot_times *slot = &t->slots[event->slot];

    slot->loaded = t->up =
        later(later(t->up, slot->used), t->compute) + t->shards[event->shard].up_ns;
}

static void carry_out(struct clock *t, const struct dp_offload_event *event)
{
    switch (event->kind) {
    case DP_OFFLOAD_LOAD:
        load(t, event);
        break;
    case DP_OFFLOAD_FORWARD:
        forward(t, event);
        break;
    case DP_OFFLOAD_BACKWARD:
        backward(t, event);
        break;
    case DP_OFFLOAD_DROP:
        break;
    }
}

int dp_offload_predict(const struct dp_offload_plan *plan,
                       const struct dp_offload_shard_cost *shards, int64_t *step_ns)
{
    int err = dpo_plan_check(plan);
    if (err)
        return err;

    const size_t most = 6 * (size_t)plan->shards;
    struct dp_offload_event *events = calloc(most, sizeof(*events));
    struct clock t = {.shards = shards,
                      .slots = calloc((size_t)plan->slots, sizeof(*t.slots)),
                      .boundary = calloc((size_t)plan->shards, sizeof(*t.boundary))};
    size_t count = 0;
    if (!events || !t.slots || !t.boundary)
        err = dp_fail(DP_ENOMEM, "offload: no memory to predict a step of %d shards", plan->shards);
    if (!err)
        err = dp_offload_plan(plan, events, most, &count);
    for (size_t i = 0; i < count && !err; i++)
        carry_out(&t, &events[i]);
    if (!err)
        *step_ns = later(t.compute, t.down);
    free(events);
    free(t.slots);
    free(t.boundary);
    return err;
}
