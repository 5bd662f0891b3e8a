/* SPDX-License-Identifier: Apache-2.0
 *
 * exchange.h - a bucket's block on its way to the others of a round, and theirs to here.
 *
 *      a pair      the two blocks are swapped
 *      a group     blocks are summed over the group
 *      links       blocks go along the links from this worker, and those that arrive are weighed and
 *                  added up
 *      compressed  differences go to the neighbors of the round (compressed.h); what came is what is to
 *                  be added
 *      stale       the same of blocks, unless one side is still in an exchange before (stale.h)
 *
 * Where workers may die (`survives`), a worker that has used what came knows that every other live one
 * of the round can use it, too: of a pair each has sent its block; a group, or along links all workers,
 * have said that they got everything. So an exchange that was cut off is completed by all, if any of
 * them has used it, or by none. With stale exchanges that holds for each two workers of a round by
 * themselves. A death among all workers ends every wait.
 *
 * An exchange owns two blocks: one that is being sent, or was, and one that holds what came. After each
 * swap they change roles, so that the update may read what came and write what goes next in one sweep.
 */
#ifndef DP_MIXING_EXCHANGE_H
#define DP_MIXING_EXCHANGE_H

#include "mixing/compressed.h"
#include "mixing/stale.h"
#include <dualpipe/mixer.h>

/* What all exchanges of a mixer share. */
struct dp_exchange_group {
    struct dp_comm *comm;
    const struct dp_graph *graph;
    struct dp_comm **of_round; /* [period] where blocks are summed over groups; NULL: this worker's is
                                * none, or a pair. Rounds may share one */
    int32_t links_max;         /* most links to this worker in a round */
    enum dp_mixer_compression compression; /* of all exchanges that are begun after it is set */
    int32_t staleness;         /* above 0: likewise */
    bool survives;             /* comm is this group's own, and closed with it */
    const struct dp_comm *all; /* survives: of all workers, to hear of their deaths */
};
/* Collective. After an error the group must be ended, too. */
int dp_exchange_group_init(struct dp_exchange_group *g, struct dp_comm *comm,
                           const struct dp_graph *graph, bool survives);
/* What is in flight is dropped. */
void dp_exchange_group_fini(struct dp_exchange_group *g);

struct dp_exchange {
    const struct dp_exchange_group *shared;
    DLDataType type;
    size_t elements, bytes;
    char *block[2];     /* [bytes]; block[now] is written by the update and sent */
    int now;
    struct dp_neighbor *neighbors; /* room for those of a round */
    char *arrived;      /* what they send along links, or compressed, one behind the other */
    bool in_flight;
    bool must_confirm;  /* all must say that they got everything, which this worker has not yet */
    int64_t confirmed;  /* what they say so with */
    int32_t confirming; /* messages at the end of the list that do */
    int64_t round;      /* of what is in flight, or was last */
    bool includes_self; /* what came holds this worker's own share */
    struct dp_compressed *compressed; /* NULL: blocks are sent as they are */
    struct dp_stale *stale;           /* NULL: neighbors are waited for */
    int64_t sent_bytes;
    double mass, *arrived_mass; /* push-sum: this worker's weight, and those that came */
    double sent_mass;
    struct dp_transfers transfers;
};

/* blocks[2]: memory of `elements` of the type each, zeroed; it belongs to the caller. Where there is
 * one only, both are that. */
int dp_exchange_init(struct dp_exchange *x, const struct dp_exchange_group *shared, DLDataType type,
                     size_t elements, void *const *blocks);
void dp_exchange_fini(struct dp_exchange *x);

/* Send block[now] by round t. Not while one is in flight. */
int dp_exchange_start(struct dp_exchange *x, int64_t t, uint64_t tag);
/* Only with staleness, and while one is in flight: leave round t out, and say so. */
int dp_exchange_pass(struct dp_exchange *x, int64_t t, uint64_t tag);
/* For all messages of rounds that were begun; after a wait. */
int dp_exchange_drain(struct dp_exchange *x);
/* Until it is over. block[now] then holds what came, to be multiplied with a, and may be written. */
int dp_exchange_wait(struct dp_exchange *x);
/* The same if it is over; DP_EAGAIN otherwise. */
int dp_exchange_test(struct dp_exchange *x);
/* survives: after a death, end what is in flight as the wait does, though others have not confirmed.
 * users[workers]: those that have used the exchange; stale: what came from others is left out. */
int dp_exchange_complete(struct dp_exchange *x, const bool *users);
/* What came was mixed. */
void dp_exchange_note_used(struct dp_exchange *x);
/* As after the wait for round t, with these weights; block[now] is filled in by the caller. */
void dp_exchange_restore(struct dp_exchange *x, int64_t t, double mass, double sent_mass);

/* What came is a difference, to be added to a worker's own values. */
bool dp_exchange_adds(const struct dp_exchange *x);
/* Blocks of an exchange. */
int dp_exchange_blocks(const struct dp_exchange_group *g);

#endif
