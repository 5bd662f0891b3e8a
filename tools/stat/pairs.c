/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "stat/pairs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct stat_seen {
    int page; /* of those mapped */
    uint32_t number;
    struct stat_pair pair;
};

/* ---- looking --------------------------------------------------------------------------------- */

/* 192.0.2.1:4000 and [fe80::1]:4000, without the port. */
static void cut_port(char *peer)
{
    char *colon = strrchr(peer, ':');

    if (colon && (strchr(peer, ':') == colon || (colon > peer && colon[-1] == ']')))
        *colon = '\0';
}

static struct stat_seen *find(struct stat_pairs *p, int page, uint32_t number)
{
    for (int i = p->count - 1; i >= 0; i--)
        if (p->seen[i].page == page && p->seen[i].number == number)
            return &p->seen[i];
    struct stat_seen *more = realloc(p->seen, ((size_t)p->count + 1) * sizeof(*more));
    if (!more)
        return NULL;
    p->seen = more;
    more[p->count] = (struct stat_seen){.page = page, .number = number};
    return &more[p->count++];
}

static double sum_times(const struct stat_counts *c)
{
    double sum = 0;

    for (int i = 0; i < DPN_STAT_TIMES; i++)
        sum += (double)c->times[i];
    return sum;
}

static void see(struct stat_pairs *p, int page, const struct stat_process *process,
                const struct stat_connection *c)
{
    const double timed = sum_times(&c->counted);
    struct stat_seen *seen =
        c->way == DPN_STAT_SEND && timed > 0 ? find(p, page, c->number) : NULL;

    if (!seen)
        return;
    snprintf(seen->pair.device, sizeof(seen->pair.device), "%s", process->devices[c->device].name);
    snprintf(seen->pair.transport, sizeof(seen->pair.transport), "%s", c->transport);
    snprintf(seen->pair.peer, sizeof(seen->pair.peer), "%s", c->peer);
    cut_port(seen->pair.peer);
    seen->pair.bytes = (double)c->counted.counts[DPN_STAT_BYTES];
    seen->pair.ns = (double)c->counted.counts[DPN_STAT_TIMED_NS] / timed *
                    (double)c->counted.counts[DPN_STAT_MESSAGES];
}

void stat_pairs_look(struct stat_pairs *p, const struct stat_mapped *m)
{
    struct stat_process *process = m->count ? stat_process_new() : NULL;

    for (int i = 0; process && i < m->count; i++)
        if (!stat_page_read((const void *)m->pages[i].head, process))
            for (int c = 0; c < process->connection_count; c++)
                see(p, i, process, &process->connections[c]);
    if (process)
        stat_process_free(process);
}

/* ---- adding up ------------------------------------------------------------------------------- */

static bool is_same(const struct stat_pair *a, const struct stat_pair *b)
{
    return !strcmp(a->peer, b->peer) && !strcmp(a->device, b->device) &&
           !strcmp(a->transport, b->transport);
}

void stat_pairs_sum(struct stat_pairs *p)
{
    p->pairs = calloc((size_t)p->count + 1, sizeof(*p->pairs));
    p->pair_count = 0;
    for (int i = 0; p->pairs && i < p->count; i++) {
        int k = 0;
        while (k < p->pair_count && !is_same(&p->pairs[k], &p->seen[i].pair))
            k++;
        if (k < p->pair_count) {
            p->pairs[k].bytes += p->seen[i].pair.bytes;
            p->pairs[k].ns += p->seen[i].pair.ns;
        } else {
            p->pairs[p->pair_count++] = p->seen[i].pair;
        }
    }
}

void stat_pairs_fini(struct stat_pairs *p)
{
    free(p->seen);
    free(p->pairs);
    *p = (struct stat_pairs){0};
}
