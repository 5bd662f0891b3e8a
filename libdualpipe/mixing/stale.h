/* SPDX-License-Identifier: Apache-2.0
 *
 * stale.h - a bucket's block on its way in a mixer that need not wait for neighbors that are late.
 *
 * In every round a worker tells each neighbor at once whether it takes part: its block says that it
 * does, a message without content that it does not. It does unless its last exchange is still under
 * way.
 * Two workers have exchanged their blocks in a round if both took part, and both know when each other's
 * message is there; so either both add W_ij times the difference of the two blocks or neither does,
 * and the mean of all workers stays. A block that comes from a neighbor in a round that this worker
 * leaves out is received and dropped.
 *
 *      worker 0        | round 0: block      | round 1: pass     | round 2: block
 *      worker 1                     | round 0: block  | round 1: block ...
 *                                     ^ here both have what round 0 exchanged; nothing in round 1
 *
 * Messages of a round must be there before the round that is `staleness` + 1 later is begun: no worker
 * is further ahead of a neighbor. The one that is behind all others has nothing to wait for.
 *
 * Where workers may die, an exchange is one of two workers each: what one of them has used the other one
 * completes, whatever becomes of its exchanges with others. So each remembers the rounds that it has
 * used for as long as a neighbor may still be in one of them.
 */
#ifndef DP_MIXING_STALE_H
#define DP_MIXING_STALE_H

#include "mixing/round.h"

#include <dlpack/dlpack.h>

struct dp_stale_round {
    int64_t round;
    uint64_t tag;
    struct dp_neighbor *neighbors; /* [count] */
    struct dp_transfers messages;   /* [2 * count] receives, then sends */
    char *arrived;                 /* [count * bytes] */
    int32_t count;
};

struct dp_stale {
    struct dp_comm *comm;
    const struct dp_graph *graph;
    int32_t staleness;
    DLDataType type;
    size_t elements, bytes;
    struct dp_stale_round *rounds; /* [staleness + 1] round t is at t modulo that */
    struct dp_stale_round *current; /* that this worker took part in; NULL: none is under way */
    const char *block;              /* its block */
    int64_t *used;                  /* [dp_stale_history] round t that was used, at t modulo that */
    int64_t unused;                 /* the last one taken part in, -1: it was used */
    const struct dp_comm *all;
    int64_t passed, longest, in_a_row, sent_bytes;
};

/* A neighbor has sent something in its last `staleness` + 1 rounds at least, of which this worker is in
 * one once a period; and this worker is no further ahead than its own staleness from there. 0 without
 * staleness. */
static inline int64_t dp_stale_history(int32_t staleness, const struct dp_graph *graph)
{
    return staleness ? 2 * ((int64_t)staleness + 1) + graph->period : 0;
}

/* all: any death among these ends a wait; or NULL. */
int dp_stale_init(struct dp_stale *s, struct dp_comm *comm, const struct dp_comm *all,
                  const struct dp_graph *graph, int32_t staleness, DLDataType type,
                  size_t elements);
void dp_stale_fini(struct dp_stale *s);

/* Take part in round t with block[elements], which must stay until it is over. */
int dp_stale_start(struct dp_stale *s, int64_t t, uint64_t tag, const void *block);
/* Do not: one is under way. */
int dp_stale_pass(struct dp_stale *s, int64_t t, uint64_t tag);
/* 0: all messages of the one under way have come and gone; DP_EAGAIN, unless it waits. */
int dp_stale_arrive(struct dp_stale *s, bool wait);
/* After that: out[elements] is what is to be added, and none is under way. */
void dp_stale_finish(struct dp_stale *s, void *out);
/* It was added. */
void dp_stale_note_used(struct dp_stale *s);
/* After a death: out[elements] is what is to be added of the exchanges of round t with those of
 * users[workers], which have used theirs. Where t is not known any more out stays as it is. What is then
 * added does not count as used: others have not. */
int dp_stale_complete(struct dp_stale *s, int64_t t, const bool *users, void *out);
/* For all that neighbors send in rounds that were begun. */
int dp_stale_drain(struct dp_stale *s);

#endif
