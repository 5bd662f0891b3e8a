/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.c - in which order shards are loaded, used and dropped. Pure.
 *
 *      visits, 3 shards     F0 F1 F2 B2 B1 B0
 *      before visit v, the shards of visits v to v + distance are loaded, if they are not there
 */
#include "offload/layout.h"

#include "base/fail.h"

#include <stdlib.h>

struct planner {
    const struct dp_offload_plan *plan;
    int32_t visits;
    int32_t *in_slot; /* the shard; -1: none */
    struct dp_offload_event *events;
    size_t max, count;
};

/* Of one step; in the next one, shard s is used at visit `visits` + s. */
static int32_t shard_of(const struct planner *p, int32_t visit)
{
    return visit < p->plan->shards ? visit : 2 * p->plan->shards - 1 - visit;
}

static void add_event(struct planner *p, enum dp_offload_kind kind, int32_t slot)
{
    if (p->count < p->max)
        p->events[p->count] = (struct dp_offload_event){kind, p->in_slot[slot], slot};
    p->count++;
}

static void drop(struct planner *p, int32_t slot)
{
    if (p->in_slot[slot] < 0)
        return;
    add_event(p, DP_OFFLOAD_DROP, slot);
    p->in_slot[slot] = -1;
}

static int32_t find(const struct planner *p, int32_t shard)
{
    int32_t slot = 0;

    while (slot < p->plan->slots && p->in_slot[slot] != shard)
        slot++;
    return slot < p->plan->slots ? slot : -1;
}

/* The visit from `visit` on that uses what is in the slot, if need be one of the next step; an empty
 * slot is the best to take. */
static int32_t next_use(const struct planner *p, int32_t slot, int32_t visit)
{
    if (p->in_slot[slot] < 0)
        return INT32_MAX;
    while (visit < p->visits && shard_of(p, visit) != p->in_slot[slot])
        visit++;
    return visit < p->visits ? visit : p->visits + p->in_slot[slot];
}

/* The slot whose shard is not used for longest; -1: all are used by visits `visit` to `ahead`. */
static int32_t choose_slot(const struct planner *p, int32_t visit, int32_t ahead)
{
    int32_t best = -1, farthest = ahead;

    for (int32_t slot = 0; slot < p->plan->slots; slot++) {
        int32_t use = next_use(p, slot, visit);
        if (use > farthest) {
            best = slot;
            farthest = use;
        }
    }
    return best;
}

static void load_for(struct planner *p, int32_t visit, int32_t ahead)
{
    int32_t shard = shard_of(p, ahead);
    int32_t slot = find(p, shard) < 0 ? choose_slot(p, visit, ahead) : -1;

    if (slot < 0)
        return;
    drop(p, slot);
    p->in_slot[slot] = shard;
    add_event(p, DP_OFFLOAD_LOAD, slot);
}

static void make_visit(struct planner *p, int32_t visit)
{
    int32_t last = visit + p->plan->distance;

    for (int32_t ahead = visit; ahead <= last && ahead < p->visits; ahead++)
        load_for(p, visit, ahead);
    int32_t slot = find(p, shard_of(p, visit));
    add_event(p, visit < p->plan->shards ? DP_OFFLOAD_FORWARD : DP_OFFLOAD_BACKWARD, slot);
    if (p->plan->drop_at_once)
        drop(p, slot);
}

size_t dpo_plan(const struct dp_offload_plan *plan, int32_t *in_slot, struct dp_offload_event *events,
                size_t max)
{
    struct planner p = {.plan = plan,
                        .visits = plan->forward_only ? plan->shards : 2 * plan->shards,
                        .in_slot = in_slot,
                        .events = events,
                        .max = max};

    for (int32_t visit = 0; visit < p.visits; visit++)
        make_visit(&p, visit);
    return p.count;
}

int dpo_plan_check(const struct dp_offload_plan *plan)
{
    if (plan->shards < 1 || plan->shards > INT32_MAX / 8)
        return dp_fail(DP_EINVAL, "offload: %d shards, expected at least 1", plan->shards);
    if (plan->slots < 1)
        return dp_fail(DP_EINVAL, "offload: %d slots, expected at least 1", plan->slots);
    if (plan->distance < 0 || plan->distance >= plan->slots)
        return dp_fail(DP_EINVAL, "offload: %d shards loaded ahead, expected 0 to %d with %d slots",
                       plan->distance, plan->slots - 1, plan->slots);
    return 0;
}

int dp_offload_plan(const struct dp_offload_plan *plan, struct dp_offload_event *events, size_t max,
                    size_t *count)
{
    int err = dpo_plan_check(plan);
    if (err)
        return err;

    int32_t *in_slot = malloc((size_t)plan->slots * sizeof(*in_slot));
    if (!in_slot)
        return dp_fail(DP_ENOMEM, "offload: no memory for a plan of %d slots", plan->slots);
    for (int32_t slot = 0; slot < plan->slots; slot++)
        in_slot[slot] = -1;
    *count = dpo_plan(plan, in_slot, events, max);
    free(in_slot);
    return 0;
}
