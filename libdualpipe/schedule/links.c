/* SPDX-License-Identifier: Apache-2.0 */
#include "schedule/links.h"

#include "base/fail.h"
#include "schedule/build.h"

#include <stdlib.h>

/* Links while they are numbered: those that leave a rank have neighbouring numbers. */
struct numbering {
    int32_t *first; /* [ranks + 1] */
    int32_t *to;    /* [links] */
    int32_t count;
};

static int find(const struct numbering *n, int from, int to)
{
    for (int32_t i = n->first[from]; i < n->first[from + 1]; i++)
        if (n->to[i] == to)
            return i;
    return -1;
}

/* Ranks come in order. */
static void add(struct numbering *n, int from, int to)
{
    n->first[from + 1] = n->count;
    if (to < 0 || to == from || find(n, from, to) >= 0)
        return;
    n->to[n->count] = to;
    n->first[from + 1] = ++n->count;
}

/* One end of the messages that `receiver` gets in `slot`. */
static struct dp_port port(const struct dp_schedule *s, int link, int peer, int receiver, int slot,
                           bool gradient)
{
    return (struct dp_port){
        .link = link,
        .peer = peer,
        .flow = 2 * ((int32_t)s->first_slot[receiver] + slot) + gradient,
        .tag = ((uint32_t)gradient << 6 | (uint32_t)slot) << 20,
    };
}

static void fill_ports(const struct numbering *n, const struct dp_schedule *s, int rank, int at,
                       struct dp_port *ports)
{
    const struct dp_slot *slot = dp_schedule_slot(s, rank, at);
    int prev = slot->prev, next = slot->next;

    for (int i = 0; i < 4; i++)
        ports[i].link = -1;
    if (dp_slot_has_remote_prev(slot, rank)) {
        ports[0] = port(s, find(n, prev, rank), prev, rank, at, false);
        ports[3] = port(s, find(n, rank, prev), prev, prev, slot->prev_slot, true);
    }
    if (dp_slot_has_remote_next(slot, rank)) {
        ports[1] = port(s, find(n, next, rank), next, rank, at, true);
        ports[2] = port(s, find(n, rank, next), next, next, slot->next_slot, false);
    }
}

enum { SKIP_BIT = 1 << 30, SKIP_BACK_BIT = 1 << 29 }; /* of tags: no slot's reaches them */

static void add_skips(struct numbering *n, const struct dp_schedule *s, int rank)
{
    for (int i = 0; i < s->streams * s->skip_count; i++) {
        if (s->skip_ends[i].from == rank)
            add(n, rank, s->skip_ends[i].to);
        if (s->skip_ends[i].to == rank)
            add(n, rank, s->skip_ends[i].from);
    }
}

/* A skip's values have a flow, and its gradients. */
static void fill_skip_ports(const struct numbering *n, const struct dp_schedule *s, int i,
                            struct dp_port *ports)
{
    const struct dp_skip_ends *e = &s->skip_ends[i];
    const int32_t flow = 2 * ((int32_t)s->first_slot[s->ranks] + i);
    const uint32_t tag = SKIP_BIT | (uint32_t)(i % s->skip_count) << 20;
    const bool remote = e->from != e->to;
    const int there = remote ? find(n, e->from, e->to) : -1;
    const int back = remote ? find(n, e->to, e->from) : -1;

    ports[0] = (struct dp_port){there, e->from, flow, tag};
    ports[1] = (struct dp_port){back, e->to, flow + 1, tag | SKIP_BACK_BIT};
    ports[2] = (struct dp_port){there, e->to, flow, tag};
    ports[3] = (struct dp_port){back, e->from, flow + 1, tag | SKIP_BACK_BIT};
}

static void fill(struct dp_links *links, struct numbering *n, const struct dp_schedule *s)
{
    for (int rank = 0; rank < s->ranks; rank++) {
        n->first[rank + 1] = n->count;
        for (int at = 0; at < dp_schedule_slot_count(s, rank); at++) {
            add(n, rank, dp_schedule_slot(s, rank, at)->prev);
            add(n, rank, dp_schedule_slot(s, rank, at)->next);
        }
        add_skips(n, s, rank);
    }
    for (int i = 0; i < s->streams * s->skip_count; i++)
        fill_skip_ports(n, s, i, &links->skip_ports[4 * i]);
    for (int rank = 0; rank < s->ranks; rank++)
        for (int at = 0; at < dp_schedule_slot_count(s, rank); at++)
            fill_ports(n, s, rank, at, &links->ports[4 * (s->first_slot[rank] + (size_t)at)]);
    links->count = n->count;
    links->flows = 2 * ((int32_t)s->first_slot[s->ranks] + s->streams * s->skip_count);
}

int dp_links_init(struct dp_links *links, const struct dp_schedule *s)
{
    size_t slots = s->first_slot[s->ranks], skips = (size_t)s->streams * (size_t)s->skip_count;
    struct numbering n = {
        .first = calloc((size_t)s->ranks + 1, sizeof(*n.first)),
        .to = malloc((2 * (slots + skips) + 1) * sizeof(*n.to)),
    };
    int err = 0;

    *links = (struct dp_links){.ports = calloc(4 * slots + 1, sizeof(*links->ports)),
                               .skip_ports = calloc(4 * skips + 1, sizeof(*links->ports))};
    if (n.first && n.to && links->ports && links->skip_ports)
        fill(links, &n, s);
    else
        err = dp_fail(DP_ENOMEM, "no memory for the links of %d ranks", s->ranks);
    free(n.first);
    free(n.to);
    if (err)
        dp_links_fini(links);
    return err;
}

void dp_links_fini(struct dp_links *links)
{
    free(links->ports);
    free(links->skip_ports);
    *links = (struct dp_links){0};
}

bool dp_messages_grow(struct dp_messages *q)
{
    uint32_t capacity = q->capacity ? 2 * q->capacity : 4;
    struct dp_message *ring = malloc(capacity * sizeof(*ring));

    if (!ring)
        return false;
    for (uint32_t k = 0; k < q->count; k++)
        ring[k] = *dp_messages_at(q, k);
    free(q->ring);
    q->ring = ring;
    q->head = 0;
    q->capacity = capacity;
    return true;
}
