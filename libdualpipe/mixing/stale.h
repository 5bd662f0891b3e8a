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
 */
#ifndef DP_MIXING_STALE_H
#define DP_MIXING_STALE_H

#include "mixing/neighbors.h"
#include <dualpipe/comm.h>

#include <dlpack/dlpack.h>

struct dp_stale_round {
    int64_t round;
    uint64_t tag;
    struct dp_neighbor *neighbors; /* [count] */
    struct dp_request *requests;   /* [2 * count] receives, then sends */
    char *arrived;                 /* [count * bytes] */
    int32_t count, done;
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
    int64_t passed, longest, in_a_row, sent_bytes;
};

int dp_stale_init(struct dp_stale *s, struct dp_comm *comm, const struct dp_graph *graph,
                  int32_t staleness, DLDataType type, size_t elements);
void dp_stale_fini(struct dp_stale *s);

/* Take part in round t with block[elements], which must stay until it is over. */
int dp_stale_start(struct dp_stale *s, int64_t t, uint64_t tag, const void *block);
/* Do not: one is under way. */
int dp_stale_pass(struct dp_stale *s, int64_t t, uint64_t tag);
/* 0: the one under way is over, and out[elements] is what is to be added; DP_EAGAIN. */
int dp_stale_test(struct dp_stale *s, void *out);
int dp_stale_wait(struct dp_stale *s, void *out);
/* For all that neighbors send in rounds that were begun. */
int dp_stale_drain(struct dp_stale *s);

#endif
