/* SPDX-License-Identifier: Apache-2.0
 *
 * stale.c - exchanges that need not wait for neighbors that are late.
 */
#include "mixing/exchange.h"

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
    r->messages = (struct dp_transfers){.comm = s->comm};
    r->messages.list = calloc(2 * most, sizeof(*r->messages.list));
    r->arrived = malloc(most * s->bytes + 1);
    r->round = -1;
    return r->neighbors && r->messages.list && r->arrived;
}

int dp_stale_init(struct dp_stale *s, struct dp_comm *comm, const struct dp_comm *all,
                  const struct dp_graph *graph, int32_t staleness, DLDataType type,
                  size_t elements)
{
    bool whole;

    *s = (struct dp_stale){.comm = comm, .all = all, .graph = graph, .staleness = staleness,
                           .type = type, .elements = elements,
                           .bytes = elements * type.bits / 8, .unused = -1};
    s->rounds = calloc((size_t)staleness + 1, sizeof(*s->rounds));
    s->used = malloc((size_t)dp_stale_history(staleness, graph) * sizeof(*s->used));
    whole = s->rounds && s->used;
    for (int64_t k = 0; whole && k < dp_stale_history(staleness, graph); k++)
        s->used[k] = -1;
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
        free(s->rounds[k].messages.list);
        free(s->rounds[k].arrived);
    }
    free(s->rounds);
    free(s->used);
    s->rounds = NULL;
    s->used = NULL;
}

/* ---- a round's messages ------------------------------------------------------------------------ */

/* A receive takes the next message of its neighbor, whatever it says. Of what a rank sent just before
 * its death a block may be lost and a message without content not. */
static int check_tag(struct dp_stale *s, struct dp_stale_round *r, int32_t k)
{
    struct dp_received got;

    dp_comm_received(s->comm, &r->messages.list[k].request, &got);
    if ((got.tag & ~PASS) == r->tag && got.len == (got.tag & PASS ? 0 : s->bytes))
        return 0;
    if (s->all)
        return dp_fail_quietly(DP_ECOMM, "rank %d is dying: a message of round %lld is missing",
                               r->neighbors[k].worker, (long long)r->round);
    return dp_fail(DP_EMISMATCH,
                   "rank %d sent message %llx of %zu bytes, expected %llx of %zu, of round %lld",
                   r->neighbors[k].worker, (unsigned long long)got.tag, got.len,
                   (unsigned long long)r->tag, s->bytes, (long long)r->round);
}

static int finish_round(struct dp_stale *s, struct dp_stale_round *r, bool wait)
{
    int err = 0;

    while (r->messages.done < r->count && r->messages.done < r->messages.count && !err) {
        const int32_t k = r->messages.done;
        err = dp_transfers_end_next(&r->messages, wait, s->all);
        if (!err && (err = check_tag(s, r, k)))
            r->messages.done = k;
    }
    return err ? err : dp_transfers_end(&r->messages, wait, s->all);
}

static int receive_any(struct dp_stale *s, struct dp_stale_round *r, int32_t k)
{
    const int32_t peer = r->neighbors[k].worker;
    struct dp_request *request = dp_transfers_next(&r->messages, peer);

    return dp_transfers_note(&r->messages,
                            dp_comm_irecv_any(s->comm, peer, DP_CHANNEL_REDUCE,
                                              r->arrived + (size_t)k * s->bytes, s->bytes, request));
}

/* Where the round that was there before is over by now. */
static int begin_round(struct dp_stale *s, int64_t t, uint64_t tag, const void *block)
{
    struct dp_stale_round *r = &s->rounds[t % (s->staleness + 1)];
    int err = finish_round(s, r, true);

    if (err)
        return err;
    dp_transfers_clear(&r->messages);
    r->round = t;
    r->tag = tag;
    r->count = dp_neighbors_from(s->graph, t, dp_comm_rank(s->comm), r->neighbors);
    for (int32_t k = 0; k < r->count && !err; k++)
        err = receive_any(s, r, k);
    if (!err)
        err = dp_transfers_spread(&r->messages, r->neighbors, r->count, block ? tag : tag | PASS, block,
                                 block ? s->bytes : 0);
    s->sent_bytes += block ? (int64_t)s->bytes * r->count : 0;
    return err;
}

int dp_stale_start(struct dp_stale *s, int64_t t, uint64_t tag, const void *block)
{
    s->block = block;
    s->in_a_row = 0;
    s->unused = t;
    int err = begin_round(s, t, tag, block);

    if (!err)
        s->current = &s->rounds[t % (s->staleness + 1)];
    return err;
}

int dp_stale_pass(struct dp_stale *s, int64_t t, uint64_t tag)
{
    s->passed++;
    s->in_a_row++;
    s->longest = s->in_a_row > s->longest ? s->in_a_row : s->longest;
    return begin_round(s, t, tag, NULL);
}

/* ---- the end ----------------------------------------------------------------------------------- */

/* out += W_ij (theirs - own), if neighbor k took part, too. */
static void add_neighbor(struct dp_stale *s, struct dp_stale_round *r, int32_t k, void *out)
{
    struct dp_received got;

    dp_comm_received(s->comm, &r->messages.list[k].request, &got);
    if (!(got.tag & PASS))
        dp_add_difference(s->type, s->elements, out, r->neighbors[k].weight,
                          r->arrived + (size_t)k * s->bytes, s->block);
}

int dp_stale_arrive(struct dp_stale *s, bool wait)
{
    return s->current ? finish_round(s, s->current, wait)
                      : dp_fail_quietly(DP_ECOMM, "the exchange could not be begun");
}

void dp_stale_finish(struct dp_stale *s, void *out)
{
    memset(out, 0, s->bytes);
    for (int32_t k = 0; k < s->current->count; k++)
        add_neighbor(s, s->current, k, out);
    s->current = NULL;
}

void dp_stale_note_used(struct dp_stale *s)
{
    if (s->unused >= 0)
        s->used[s->unused % dp_stale_history(s->staleness, s->graph)] = s->unused;
    s->unused = -1;
}

/* Those that have used it have sent all that others need. */
int dp_stale_complete(struct dp_stale *s, int64_t t, const bool *users, void *out)
{
    struct dp_stale_round *r = &s->rounds[t % (s->staleness + 1)];
    int err = 0;

    s->unused = -1;
    if (r->round != t)
        return 0;
    for (int32_t k = r->messages.done; k < r->count && !err; k++) {
        if (users[r->neighbors[k].worker])
            err = dp_comm_wait(s->comm, &r->messages.list[k].request, r->neighbors[k].worker);
        if (users[r->neighbors[k].worker] && !err)
            err = check_tag(s, r, k);
    }
    if (err)
        return err;
    memset(out, 0, s->bytes);
    for (int32_t k = 0; k < r->count; k++)
        if (users[r->neighbors[k].worker])
            add_neighbor(s, r, k, out);
    s->current = NULL;
    return 0;
}

int dp_stale_drain(struct dp_stale *s)
{
    int err = 0;

    for (int32_t k = 0; k <= s->staleness && !err; k++)
        err = finish_round(s, &s->rounds[k], true);
    return err;
}
