/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "clock.h"
#include "stat/profile.h"

#include "stat/pages.h"

#include <stdlib.h>
#include <string.h>

const struct dp_page_kind stat_profile_kind = {DPN_PROFILE_KIND};

static uint64_t get(const dpn_profile_counter *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

/* ---- communicators --------------------------------------------------------------------------- */

static void read_comm(const struct dpn_profile_comm *from, int place, struct stat_profile *out)
{
    struct stat_profile_comm *c = &out->comms[out->comm_count++];

    *c = (struct stat_profile_comm){.hash = from->hash,
                                    .place = place,
                                    .rank = from->rank,
                                    .ranks = from->ranks,
                                    .nodes = from->nodes};
    stat_text(from->name, c->name, sizeof(c->name));
    for (int i = 0; i < DPN_FUNCTIONS; i++) {
        c->calls[i] = get(&from->calls[i]);
        c->bytes[i] = get(&from->bytes[i]);
    }
}

static int find_comm(const struct stat_profile *p, unsigned place)
{
    for (int i = 0; i < p->comm_count; i++)
        if (p->comms[i].place == (int)place)
            return i;
    return STAT_PROFILE_UNKNOWN;
}

/* ---- flows ----------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
    const struct stat_flow *x = a, *y = b;

    return x->comm != y->comm         ? (x->comm > y->comm) - (x->comm < y->comm)
           : x->is_send != y->is_send ? y->is_send - x->is_send
           : x->peer != y->peer       ? (x->peer > y->peer) - (x->peer < y->peer)
                                      : strcmp(x->rail, y->rail);
}

static void add_flow(const struct dpn_profile_flow *from, struct stat_flow *to)
{
    int64_t waiting = 0;

    to->channels++;
    to->bytes += get(&from->bytes);
    to->operations += get(&from->operations);
    to->chunks += get(&from->chunks);
    for (int i = 0; i < DPN_WAITS; i++) {
        const int64_t now = atomic_load_explicit(&from->waiting[i], memory_order_relaxed);
        to->wait_ns[i] += get(&from->wait_ns[i]);
        to->waiting[i] += now > 0 ? now : 0;
        waiting += now;
    }
    const int64_t still_ns =
        now_ns() - atomic_load_explicit(&from->changed_ns, memory_order_relaxed);
    if (waiting > 0 && still_ns > to->still_ns)
        to->still_ns = still_ns;
}

static void read_flow(const struct dpn_profile_page *page, const struct dpn_profile_flow *from,
                      uint64_t key, struct stat_profile *out)
{
    const uint32_t rail = atomic_load_explicit(&from->rail, memory_order_relaxed);
    struct stat_flow f = {.comm = find_comm(out, dpn_profile_key_comm(key)),
                          .peer = dpn_profile_key_peer(key),
                          .is_send = dpn_profile_key_is_send(key)};

    if (rail && rail <= DPN_PROFILE_RAILS)
        stat_text(page->rails[rail - 1], f.rail, sizeof(f.rail));
    add_flow(from, &f);
    if (atomic_load_explicit(&from->key, memory_order_acquire) == key)
        out->flows[out->flow_count++] = f; /* otherwise it has ended meanwhile */
}

static void merge(struct stat_flow *to, const struct stat_flow *from)
{
    to->channels += from->channels;
    to->bytes += from->bytes;
    to->operations += from->operations;
    to->chunks += from->chunks;
    for (int i = 0; i < DPN_WAITS; i++) {
        to->wait_ns[i] += from->wait_ns[i];
        to->waiting[i] += from->waiting[i];
    }
    if (from->still_ns > to->still_ns)
        to->still_ns = from->still_ns;
}

/* Channels of the same way, peer and rail become one. */
static void merge_all(struct stat_profile *p)
{
    int count = 0;

    qsort(p->flows, (size_t)p->flow_count, sizeof(*p->flows), compare);
    for (int i = 0; i < p->flow_count; i++)
        if (count && !compare(&p->flows[count - 1], &p->flows[i]))
            merge(&p->flows[count - 1], &p->flows[i]);
        else
            p->flows[count++] = p->flows[i];
    p->flow_count = count;
}

void stat_profile_read(const struct dpn_profile_page *page, struct stat_profile *out)
{
    out->pid = page->head.pid;
    stat_text(page->head.command, out->command, sizeof(out->command));
    out->lost = get(&page->lost);
    out->comm_count = out->flow_count = 0;
    for (int i = 0; i < DPN_PROFILE_COMMS; i++)
        if (atomic_load_explicit(&page->comms[i].in_use, memory_order_acquire))
            read_comm(&page->comms[i], i, out);
    for (int i = 0; i < DPN_PROFILE_FLOWS; i++) {
        const uint64_t key = atomic_load_explicit(&page->flows[i].key, memory_order_acquire);
        if (key > 1)
            read_flow(page, &page->flows[i], key, out);
    }
    merge_all(out);
}
