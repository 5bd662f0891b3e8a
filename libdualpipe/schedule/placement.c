/* SPDX-License-Identifier: Apache-2.0
 *
 * placement.c - which slot holds which stage; who comes before and after it follows from that.
 */
#include "schedule/placement.h"

#include "base/fail.h"
#include "schedule/build.h"

#include <stdlib.h>
#include <string.h>

void dp_place_line(int ranks, int rank, struct dp_slot *slots)
{
    slots[0] = (struct dp_slot){.stage = rank, .prev = rank - 1,
                                .next = rank + 1 < ranks ? rank + 1 : -1, .mirror = -1};
}

int dp_permutation_check(const int *map, int count, int *bad)
{
    bool *seen = calloc((size_t)count, sizeof(*seen));
    int i = 0;

    if (!seen)
        return dp_fail_quietly(DP_ENOMEM, "no memory for %d ranks", count);
    for (; i < count && map[i] >= 0 && map[i] < count && !seen[map[i]]; i++)
        seen[map[i]] = true;
    free(seen);
    *bad = i;
    return i < count ? DP_EINVAL : 0;
}

/* Where each (stream, stage) is: an index into slots, -1 nowhere. */
static int fill_holders(const struct dp_schedule *s, int *holders)
{
    int count = s->ranks * s->slots_per_rank;

    memset(holders, -1, (size_t)(s->streams * s->stages) * sizeof(*holders));
    for (int i = 0; i < count; i++) {
        const struct dp_slot *slot = &s->slots[i];
        int rank = i / s->slots_per_rank, at = i % s->slots_per_rank;

        if (slot->stage < 0 || slot->stage >= s->stages)
            return dp_fail_quietly(DP_EINVAL, "rank %d, slot %d: stage %d, expected 0 to %d", rank,
                                   at, slot->stage, s->stages - 1);
        if (slot->stream < 0 || slot->stream >= s->streams)
            return dp_fail_quietly(DP_EINVAL, "rank %d, slot %d: stream %d, expected 0 to %d",
                                   rank, at, slot->stream, s->streams - 1);
        int *holder = &holders[slot->stream * s->stages + slot->stage];
        if (*holder >= 0)
            return dp_fail_quietly(DP_EINVAL,
                                   "rank %d, slot %d: stage %d of stream %d, which rank %d holds",
                                   rank, at, slot->stage, slot->stream,
                                   *holder / s->slots_per_rank);
        *holder = i;
    }
    return 0;
}

static void point_at(const struct dp_schedule *s, int holder, int32_t *rank, int32_t *slot)
{
    *rank = holder < 0 ? -1 : holder / s->slots_per_rank;
    *slot = holder < 0 ? 0 : holder % s->slots_per_rank;
}

static void link_slot(const struct dp_schedule *s, const int *holders, struct dp_slot *slot)
{
    const int *stream = holders + slot->stream * s->stages;
    const int *other = holders + (1 - slot->stream) * s->stages;

    point_at(s, slot->stage > 0 ? stream[slot->stage - 1] : -1, &slot->prev, &slot->prev_slot);
    point_at(s, slot->stage < s->stages - 1 ? stream[slot->stage + 1] : -1, &slot->next,
             &slot->next_slot);
    point_at(s, s->streams == 2 ? other[slot->stage] : -1, &slot->mirror, &slot->mirror_slot);
}

/* Every stage of every stream held once, and nothing else held: then counts must agree. */
static int new_holders(const struct dp_schedule *s, int **out)
{
    int *holders, err;

    if (s->ranks * s->slots_per_rank != s->streams * s->stages)
        return dp_fail_quietly(DP_EINVAL, "%d ranks with %d slots, expected room for %d stages",
                               s->ranks, s->slots_per_rank, s->streams * s->stages);
    holders = malloc((size_t)(s->streams * s->stages) * sizeof(*holders));
    if (!holders)
        return dp_fail(DP_ENOMEM, "no memory for %d stages", s->stages);
    err = fill_holders(s, holders);
    if (err)
        free(holders);
    else
        *out = holders;
    return err;
}

int dp_placement_link(struct dp_schedule *s)
{
    int *holders, err = new_holders(s, &holders);

    if (err)
        return err;
    for (int i = 0; i < s->ranks * s->slots_per_rank; i++)
        link_slot(s, holders, &s->slots[i]);
    free(holders);
    return 0;
}

bool dp_slots_equal(const struct dp_slot *a, const struct dp_slot *b)
{
    return a->stage == b->stage && a->stream == b->stream && a->phase == b->phase &&
           a->prev == b->prev && a->next == b->next && a->mirror == b->mirror &&
           (a->prev < 0 || a->prev_slot == b->prev_slot) &&
           (a->next < 0 || a->next_slot == b->next_slot) &&
           (a->mirror < 0 || a->mirror_slot == b->mirror_slot);
}

int dp_placement_check(const struct dp_schedule *s)
{
    int *holders, err = new_holders(s, &holders);

    if (err)
        return err;
    for (int i = 0; i < s->ranks * s->slots_per_rank && !err; i++) {
        struct dp_slot linked = s->slots[i];
        link_slot(s, holders, &linked);
        if (!dp_slots_equal(&linked, &s->slots[i]))
            err = dp_fail_quietly(DP_EINVAL, "rank %d, slot %d: neighbours do not hold the stages "
                                  "beside stage %d", i / s->slots_per_rank,
                                  i % s->slots_per_rank, linked.stage);
    }
    free(holders);
    return err;
}
