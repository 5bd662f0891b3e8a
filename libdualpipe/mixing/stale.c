/* SPDX-License-Identifier: Apache-2.0 */
#include "mixing/stale.h"

#include "base/fail.h"
#include "mixing/combine.h"

#include <stdlib.h>
#include <string.h>

/* In the tag of a worker that does not take part. */
#define PASS (UINT64_C(1) << 63)

/* ---- memory ------------------------------------------------------------------------------------ */

static bool make_round(const struct dp_stale *s, struct dp_stale_round *r)
{
    const size_t most = (size_t)dp_neighbors_max(s->graph, dp_comm_rank(s->comm)) + 1;

    r->neighbors = calloc(most, sizeof(*r->neighbors));
    r->requests = calloc(2 * most, sizeof(*r->requests));
    r->arrived = malloc(most * s->bytes + 1);
    return r->neighbors && r->requests && r->arrived;
}

int dp_stale_init(struct dp_stale *s, struct dp_comm *comm, const struct dp_graph *graph,
                  int32_t staleness, DLDataType type, size_t elements)
{
    bool whole;

    *s = (struct dp_stale){.comm = comm, .graph = graph, .staleness = staleness, .type = type,
                           .elements = elements, .bytes = elements * type.bits / 8};
    s->rounds = calloc((size_t)staleness + 1, sizeof(*s->rounds));
    whole = s->rounds;
    for (int32_t k = 0; whole && k <= staleness; k++)
        whole = make_round(s, &s->rounds[k]);
    if (whole)
        return 0;
    dp_stale_fini(s);
    return dp_fail(DP_ENOMEM, "no memory for blocks of %zu bytes that may be %d rounds late",
                   s->bytes, staleness);
}

void dp_stale_fini(struct dp_stale *s)
{
    for (int32_t k = 0; s->rounds && k <= s->staleness; k++) {
        free(s->rounds[k].neighbors);
        free(s->rounds[k].requests);
        free(s->rounds[k].arrived);
    }
    free(s->rounds);
    s->rounds = NULL;
}

/* ---- a round's messages ------------------------------------------------------------------------ */

/* A receive takes the next message of its neighbor, whatever it says. */
static int check_tag(struct dp_stale *s, struct dp_stale_round *r, int32_t k)
{
    struct dp_received got;

    dp_comm_received(s->comm, &r->requests[k], &got);
    if ((got.tag & ~PASS) == r->tag && got.len == (got.tag & PASS ? 0 : s->bytes))
        return 0;
    return dp_fail(DP_EMISMATCH,
                   "rank %d sent message %llx of %zu bytes, expected %llx of %zu, of round %lld",
                   r->neighbors[k].worker, (unsigned long long)got.tag, got.len,
                   (unsigned long long)r->tag, s->bytes, (long long)r->round);
}

static int next_done(struct dp_stale *s, struct dp_stale_round *r, bool wait)
{
    const int32_t k = r->done;
    int err = wait ? dp_comm_wait(s->comm, &r->requests[k], r->neighbors[k % r->count].worker)
                   : dp_comm_test(s->comm, &r->requests[k]);

    if (!err && k < r->count)
        err = check_tag(s, r, k);
    r->done += !err;
    return err;
}

static int finish_round(struct dp_stale *s, struct dp_stale_round *r, bool wait)
{
    int err = 0;

    while (r->done < 2 * r->count && !err)
        err = next_done(s, r, wait);
    return err;
}

/* Where the round that was there before is over by now. */
static int begin_round(struct dp_stale *s, int64_t t, uint64_t tag, const void *block)
{
    struct dp_stale_round *r = &s->rounds[t % (s->staleness + 1)];
    int err = finish_round(s, r, true);

    if (err)
        return err;
    r->round = t;
    r->tag = tag;
    r->done = 0;
    r->count = dp_neighbors_from(s->graph, t, dp_comm_rank(s->comm), r->neighbors);
    for (int32_t k = 0; k < r->count && !err; k++)
        err = dp_comm_irecv_any(s->comm, r->neighbors[k].worker, DP_CHANNEL_REDUCE,
                                r->arrived + (size_t)k * s->bytes, s->bytes, &r->requests[k]);
    for (int32_t k = 0; k < r->count && !err; k++)
        err = dp_comm_isend(s->comm, r->neighbors[k].worker, DP_CHANNEL_REDUCE,
                            block ? tag : tag | PASS, block, block ? s->bytes : 0,
                            &r->requests[r->count + k]);
    s->sent_bytes += block ? (int64_t)s->bytes * r->count : 0;
    return err;
}

int dp_stale_start(struct dp_stale *s, int64_t t, uint64_t tag, const void *block)
{
    int err = begin_round(s, t, tag, block);

    if (err)
        return err;
    s->current = &s->rounds[t % (s->staleness + 1)];
    s->block = block;
    s->in_a_row = 0;
    return 0;
}

int dp_stale_pass(struct dp_stale *s, int64_t t, uint64_t tag)
{
    s->passed++;
    s->in_a_row++;
    s->longest = s->in_a_row > s->longest ? s->in_a_row : s->longest;
    return begin_round(s, t, tag, NULL);
}

/* ---- the end ----------------------------------------------------------------------------------- */

/* The sum over those that took part, too, of W_ij (theirs - own). */
static void sum_differences(struct dp_stale *s, char *out)
{
    const struct dp_stale_round *r = s->current;

    memset(out, 0, s->bytes);
    for (int32_t k = 0; k < r->count; k++) {
        const double weight = r->neighbors[k].weight;
        struct dp_received got;
        dp_comm_received(s->comm, &r->requests[k], &got);
        if (got.tag & PASS)
            continue;
        dp_add_difference(s->type, s->elements, out, weight, r->arrived + (size_t)k * s->bytes,
                          s->block);
    }
}

static int finish_current(struct dp_stale *s, bool wait, void *out)
{
    int err = finish_round(s, s->current, wait);

    if (err)
        return err;
    sum_differences(s, out);
    s->current = NULL;
    return 0;
}

int dp_stale_test(struct dp_stale *s, void *out)
{
    return finish_current(s, false, out);
}

int dp_stale_wait(struct dp_stale *s, void *out)
{
    return finish_current(s, true, out);
}

int dp_stale_drain(struct dp_stale *s)
{
    int err = 0;

    for (int32_t k = 0; k <= s->staleness && !err; k++)
        err = finish_round(s, &s->rounds[k], true);
    return err;
}
