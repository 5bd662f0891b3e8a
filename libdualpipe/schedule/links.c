/* SPDX-License-Identifier: Apache-2.0 */
#include "schedule/links.h"

#include "base/fail.h"
#include "schedule/build.h"

#include <stdlib.h>

/* Links leaving a rank have neighbouring numbers: first[rank] .. first[rank + 1] - 1. */
static int find(const struct dp_links *links, const int32_t *first, int from, int to)
{
    for (int32_t i = first[from]; i < first[from + 1]; i++)
        if (links->to[i] == to)
            return i;
    return -1;
}

static void add_link(struct dp_links *links, int32_t *first, int from, int to)
{
    first[from + 1] = links->count;
    if (to < 0 || to == from || find(links, first, from, to) >= 0)
        return;
    links->from[links->count] = from;
    links->to[links->count] = to;
    first[from + 1] = ++links->count;
}

/* A message's name is what its receiver calls it: activation or gradient, slot, micro-batch. */
static uint32_t tag_of(bool gradient, int receiving_slot)
{
    return ((uint32_t)gradient << 4 | (uint32_t)receiving_slot) << 19;
}

static void fill_ports(const struct dp_links *links, const int32_t *first, int rank,
                       const struct dp_slot *slot, int at, struct dp_port *ports)
{
    int prev = dp_slot_has_remote_prev(slot, rank) ? slot->prev : -1;
    int next = dp_slot_has_remote_next(slot, rank) ? slot->next : -1;

    for (int i = 0; i < 4; i++)
        ports[i] = (struct dp_port){-1, 0};
    if (prev >= 0) {
        ports[0] = (struct dp_port){find(links, first, prev, rank), tag_of(false, at)};
        ports[3] = (struct dp_port){find(links, first, rank, prev), tag_of(true, slot->prev_slot)};
    }
    if (next >= 0) {
        ports[1] = (struct dp_port){find(links, first, next, rank), tag_of(true, at)};
        ports[2] = (struct dp_port){find(links, first, rank, next), tag_of(false, slot->next_slot)};
    }
}

static void fill(struct dp_links *links, int32_t *first, const struct dp_schedule *s)
{
    int per_rank = s->slots_per_rank;

    for (int i = 0; i < s->ranks * per_rank; i++) {
        add_link(links, first, i / per_rank, s->slots[i].prev);
        add_link(links, first, i / per_rank, s->slots[i].next);
    }
    for (int i = 0; i < s->ranks * per_rank; i++)
        fill_ports(links, first, i / per_rank, &s->slots[i], i % per_rank, &links->ports[4 * i]);
}

int dp_links_init(struct dp_links *links, const struct dp_schedule *s)
{
    size_t slots = (size_t)s->ranks * (size_t)s->slots_per_rank;
    int32_t *first = calloc((size_t)s->ranks + 1, sizeof(*first));

    *links = (struct dp_links){
        .from = malloc(2 * slots * sizeof(*links->from)),
        .to = malloc(2 * slots * sizeof(*links->to)),
        .ports = malloc(4 * slots * sizeof(*links->ports)),
    };
    if (!first || !links->from || !links->to || !links->ports) {
        free(first);
        dp_links_fini(links);
        return dp_fail(DP_ENOMEM, "no memory for the links of %d ranks", s->ranks);
    }
    fill(links, first, s);
    free(first);
    return 0;
}

void dp_links_fini(struct dp_links *links)
{
    free(links->from);
    free(links->to);
    free(links->ports);
    *links = (struct dp_links){0};
}

static bool grow(struct dp_parcels *q)
{
    uint32_t capacity = q->capacity ? 2 * q->capacity : 4;
    struct dp_parcel *ring = malloc(capacity * sizeof(*ring));

    if (!ring)
        return false;
    for (uint32_t k = 0; k < q->count; k++)
        ring[k] = *dp_parcels_at(q, k);
    free(q->ring);
    q->ring = ring;
    q->head = 0;
    q->capacity = capacity;
    return true;
}

bool dp_parcels_push(struct dp_parcels *q, struct dp_parcel parcel)
{
    if (q->count == q->capacity && !grow(q))
        return false;
    q->ring[(q->head + q->count++) & (q->capacity - 1)] = parcel;
    return true;
}

struct dp_parcel dp_parcels_take(struct dp_parcels *q, uint32_t k)
{
    struct dp_parcel parcel = *dp_parcels_at(q, k);
    uint32_t mask = q->capacity - 1;

    for (; k > 0; k--) /* close the gap from the front: it is short */
        q->ring[(q->head + k) & mask] = q->ring[(q->head + k - 1) & mask];
    q->head = (q->head + 1) & mask;
    q->count--;
    return parcel;
}
