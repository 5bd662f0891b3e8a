/* SPDX-License-Identifier: Apache-2.0
 *
 * offsets.c - first fit in order of time, into gaps between what lives at the same time.
 */
#include "pipeline/offsets.h"

#include "base/array.h"
#include "base/fail.h"

#include <stdlib.h>
#include <string.h>

/* Of one plan; so that sums of a few cannot overflow. */
#define MAX_BYTES (SIZE_MAX / 64)

/* A stretch of memory and the lifetime that had it last. */
struct stretch {
    size_t begin, end;
    uint32_t id;
};

struct stretches {
    struct stretch *at; /* by begin, without overlap */
    size_t count;
};

struct packing {
    struct dp_lifetime *lifetimes;
    size_t count;
    struct stretches live;   /* those that are alive now */
    struct stretches owners; /* the last owner of every byte that ever had one */
    struct stretch *spare;
    struct dp_offset_owners *before;
};

struct start {
    uint32_t first, id;
};

static int by_start(const void *pa, const void *pb)
{
    const struct start *a = pa, *b = pb;
    if (a->first != b->first)
        return a->first < b->first ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

static struct start *starts_sorted(const struct dp_lifetime *lifetimes, size_t count)
{
    struct start *starts = malloc((count ? count : 1) * sizeof(*starts));
    if (!starts)
        return NULL;
    for (size_t i = 0; i < count; i++)
        starts[i] = (struct start){lifetimes[i].first, (uint32_t)i};
    qsort(starts, count, sizeof(*starts), by_start);
    return starts;
}

static void reap(struct packing *p, uint32_t now)
{
    size_t kept = 0;
    for (size_t i = 0; i < p->live.count; i++)
        if (p->lifetimes[p->live.at[i].id].last >= now)
            p->live.at[kept++] = p->live.at[i];
    p->live.count = kept;
}

/* The lowest gap that is wide enough; returns where in the list its owner belongs. */
static size_t find_gap(const struct packing *p, size_t bytes, size_t *offset)
{
    size_t i, at = 0;
    for (i = 0; i < p->live.count; i++) {
        if (at + bytes <= p->live.at[i].begin)
            break;
        at = p->live.at[i].end;
    }
    *offset = at;
    return i;
}

static void insert(struct packing *p, size_t place, struct stretch s)
{
    struct stretches *live = &p->live;
    memmove(live->at + place + 1, live->at + place, (live->count - place) * sizeof(s));
    live->at[place] = s;
    live->count++;
}

static int note_before(struct dp_offset_owners *before, size_t since, uint32_t id)
{
    for (size_t i = since; i < before->count; i++)
        if (before->ids[i] == id)
            return 0;
    uint32_t *ids = dp_array_grow(before->ids, &before->capacity, before->count + 1, sizeof(*ids));
    if (!ids)
        return dp_fail(DP_ENOMEM, "no memory to plan %zu buffers", before->count);
    before->ids = ids;
    before->ids[before->count++] = id;
    return 0;
}

/* Make s the owner of its bytes: what it covers of others goes, and they are noted. Every stretch
 * of s cuts at most one other in two, so the list never gets longer than twice the number of
 * lifetimes. */
static int cover_owners(struct packing *p, struct stretch s)
{
    struct stretch *out = p->spare;
    size_t since = p->before->count, n = 0;
    bool placed = false;
    int err = 0;

    for (size_t i = 0; i < p->owners.count && !err; i++) {
        struct stretch g = p->owners.at[i];
        if (g.begin < s.begin)
            out[n++] = (struct stretch){g.begin, g.end < s.begin ? g.end : s.begin, g.id};
        if (!placed && g.end > s.begin) {
            out[n++] = s;
            placed = true;
        }
        if (g.end > s.end)
            out[n++] = (struct stretch){g.begin > s.end ? g.begin : s.end, g.end, g.id};
        if (g.begin < s.end && g.end > s.begin)
            err = note_before(p->before, since, g.id);
    }
    if (!placed)
        out[n++] = s;
    p->spare = p->owners.at;
    p->owners = (struct stretches){out, n};
    return err;
}

static int place(struct packing *p, uint32_t id, size_t *total)
{
    struct dp_lifetime *lifetime = &p->lifetimes[id];
    size_t bytes = dp_offset_align(lifetime->bytes < MAX_BYTES ? lifetime->bytes : MAX_BYTES + 1);
    if (!bytes) {
        lifetime->offset = 0;
        return 0;
    }
    reap(p, lifetime->first);
    size_t at = find_gap(p, bytes, &lifetime->offset);
    if (lifetime->offset + bytes > MAX_BYTES)
        return dp_fail(DP_ENOMEM, "no memory for a buffer of %zu bytes beside %zu others",
                       lifetime->bytes, lifetime->offset);
    struct stretch s = {lifetime->offset, lifetime->offset + bytes, id};
    insert(p, at, s);
    if (s.end > *total)
        *total = s.end;
    return cover_owners(p, s);
}

static int packing_init(struct packing *p)
{
    size_t n = 2 * p->count + 1;
    p->live.at = malloc(n * sizeof(struct stretch));
    p->owners.at = malloc(n * sizeof(struct stretch));
    p->spare = malloc(n * sizeof(struct stretch));
    p->before->first = calloc(p->count + 1, sizeof(size_t));
    if (!p->live.at || !p->owners.at || !p->spare || !p->before->first)
        return dp_fail(DP_ENOMEM, "no memory to plan %zu buffers", p->count);
    return 0;
}

/* The lists of `before` were written in order of time: bring them into order of id. */
static int sort_before(struct dp_offset_owners *before, const size_t *end,
                       const struct start *starts, size_t count)
{
    uint32_t *ids = malloc((before->count ? before->count : 1) * sizeof(*ids));
    if (!ids)
        return dp_fail(DP_ENOMEM, "no memory to plan %zu buffers", count);
    for (size_t k = 0; k < count; k++)
        before->first[starts[k].id + 1] = end[k + 1] - end[k];
    for (size_t i = 0; i < count; i++)
        before->first[i + 1] += before->first[i];
    for (size_t k = 0; k < count && before->count; k++)
        memcpy(ids + before->first[starts[k].id], before->ids + end[k],
               (end[k + 1] - end[k]) * sizeof(*ids));
    free(before->ids);
    before->ids = ids;
    before->capacity = before->count;
    return 0;
}

int dp_offsets_plan(struct dp_lifetime *lifetimes, size_t count, size_t *total_bytes,
                    struct dp_offset_owners *before)
{
    struct packing p = {.lifetimes = lifetimes, .count = count, .before = before};
    struct start *starts = starts_sorted(lifetimes, count);
    size_t *end = calloc(count + 1, sizeof(*end)), total = 0;
    int err = starts && end ? 0 : dp_fail(DP_ENOMEM, "no memory to plan %zu buffers", count);

    *before = (struct dp_offset_owners){0};
    if (!err)
        err = packing_init(&p);
    for (size_t k = 0; k < count && !err; k++) {
        err = place(&p, starts[k].id, &total);
        end[k + 1] = before->count;
    }
    if (!err && count)
        err = sort_before(before, end, starts, count);
    if (err)
        dp_offset_owners_fini(before);
    else
        *total_bytes = total;
    free(p.live.at);
    free(p.owners.at);
    free(p.spare);
    free(end);
    free(starts);
    return err;
}

void dp_offset_owners_fini(struct dp_offset_owners *before)
{
    free(before->first);
    free(before->ids);
    *before = (struct dp_offset_owners){0};
}
