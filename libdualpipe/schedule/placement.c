/* SPDX-License-Identifier: Apache-2.0
 *
 * placement.c - which slot holds which stage, and from that its neighbours.
 */

#include "base/fail.h"
#include "schedule/build.h"

#include <stdlib.h>
#include <string.h>

void dp_place_line(const struct dp_schedule_spec *spec, int rank, struct dp_slot *slots)
{
    slots[0] = (struct dp_slot){.stage = rank, .prev = rank - 1,
                                .next = rank + 1 < spec->ranks ? rank + 1 : -1, .mirror = -1};
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

/* Which slot holds a stage of a stream. rank -1: none. */
struct holder {
    int32_t rank, slot;
};

static int note_holder(const struct dp_schedule *s, int rank, int at, struct holder *holders)
{
    const struct dp_slot *slot = dp_schedule_slot(s, rank, at);

    if (slot->stage < 0 || slot->stage >= s->stages)
        return dp_fail_quietly(DP_EINVAL, "rank %d, slot %d: stage %d, expected 0 to %d", rank, at,
                               slot->stage, s->stages - 1);
    if (slot->stream < 0 || slot->stream >= s->streams)
        return dp_fail_quietly(DP_EINVAL, "rank %d, slot %d: stream %d, expected 0 to %d", rank,
                               at, slot->stream, s->streams - 1);
    struct holder *holder = &holders[slot->stream * s->stages + slot->stage];
    if (holder->rank >= 0)
        return dp_fail_quietly(DP_EINVAL,
                               "rank %d, slot %d: stage %d of stream %d, which rank %d holds",
                               rank, at, slot->stage, slot->stream, holder->rank);
    *holder = (struct holder){rank, at};
    return 0;
}

static int fill_holders(const struct dp_schedule *s, struct holder *holders)
{
    int err = 0;

    memset(holders, -1, (size_t)(s->streams * s->stages) * sizeof(*holders));
    for (int rank = 0; rank < s->ranks && !err; rank++)
        for (int at = 0; at < dp_schedule_slot_count(s, rank) && !err; at++)
            err = note_holder(s, rank, at, holders);
    return err;
}

static void point_at(const struct holder *holder, int32_t *rank, int32_t *slot)
{
    *rank = holder ? holder->rank : -1;
    *slot = holder && holder->rank >= 0 ? holder->slot : 0;
}

static void link_slot(const struct dp_schedule *s, const struct holder *holders,
                      struct dp_slot *slot)
{
    const struct holder *stream = holders + slot->stream * s->stages;
    const struct holder *other = holders + (1 - slot->stream) * s->stages;
    int stage = slot->stage;

    point_at(stage > 0 ? &stream[stage - 1] : NULL, &slot->prev, &slot->prev_slot);
    point_at(stage < s->stages - 1 ? &stream[stage + 1] : NULL, &slot->next, &slot->next_slot);
    point_at(s->streams == 2 ? &other[stage] : NULL, &slot->mirror, &slot->mirror_slot);
}

/* Every stage of every stream held once, and nothing else held: then counts must agree. */
static int new_holders(const struct dp_schedule *s, struct holder **out)
{
    size_t slots = s->first_slot[s->ranks];
    struct holder *holders;
    int err;

    if (slots != (size_t)s->streams * (size_t)s->stages)
        return dp_fail_quietly(DP_EINVAL, "%d ranks with %zu slots together, expected a slot for "
                               "each of %d stages", s->ranks, slots, s->streams * s->stages);
    holders = malloc((slots + 1) * sizeof(*holders));
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
    struct holder *holders;
    int err = new_holders(s, &holders);

    if (err)
        return err;
    for (size_t i = 0; i < s->first_slot[s->ranks]; i++)
        link_slot(s, holders, &s->slots[i]);
    free(holders);
    return 0;
}

bool dp_slots_equal(const struct dp_slot *a, const struct dp_slot *b)
{
    return a->stage == b->stage && a->stream == b->stream && a->phase == b->phase &&
           a->location == b->location && a->prev == b->prev && a->next == b->next &&
           a->mirror == b->mirror &&
           (a->prev < 0 || a->prev_slot == b->prev_slot) &&
           (a->next < 0 || a->next_slot == b->next_slot) &&
           (a->mirror < 0 || a->mirror_slot == b->mirror_slot);
}

int dp_placement_check(const struct dp_schedule *s)
{
    struct holder *holders;
    int err = new_holders(s, &holders);

    if (err)
        return err;
    for (size_t i = 0; i < s->first_slot[s->ranks] && !err; i++) {
        struct dp_slot linked = s->slots[i];
        link_slot(s, holders, &linked);
        int rank = dp_slots_equal(&linked, &s->slots[i]) ? -1 : dp_schedule_rank_of(s, i);
        if (rank >= 0)
            err = dp_fail_quietly(DP_EINVAL, "rank %d, slot %zu: neighbours do not hold the stages "
                                  "beside stage %d", rank, i - s->first_slot[rank], linked.stage);
    }
    free(holders);
    return err;
}
