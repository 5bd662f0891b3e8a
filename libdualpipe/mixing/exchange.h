/* SPDX-License-Identifier: Apache-2.0
 *
 * exchange.h - a bucket's block on its way to the others of a round, and theirs to here.
 *
 *      a pair      the two blocks are swapped
 *      a group     blocks are summed over the group
 *      links       blocks go along the links from this worker, and those that arrive are weighed and
 *                  added up
 *
 * An exchange owns two blocks: one that is being sent, or was, and one that holds what came. After each
 * swap they change roles, so that the update may read what came and write what goes next in one sweep.
 */
#ifndef DP_MIXING_EXCHANGE_H
#define DP_MIXING_EXCHANGE_H

#include <dualpipe/comm.h>
#include <dualpipe/mixing.h>

#include <dlpack/dlpack.h>

/* What all exchanges of a mixer share. */
struct dp_exchange_group {
    struct dp_comm *comm;
    const struct dp_graph *graph;
    struct dp_comm **of_round; /* [period] where blocks are summed over groups; NULL: this worker's is
                                * none, or a pair. Rounds may share one */
    int32_t peers_max;         /* most links to this worker in a round */
};
/* Collective. */
int dp_exchange_group_init(struct dp_exchange_group *g, struct dp_comm *comm,
                           const struct dp_graph *graph);
void dp_exchange_group_fini(struct dp_exchange_group *g);

struct dp_exchange {
    const struct dp_exchange_group *shared;
    DLDataType type;
    size_t elements, bytes;
    char *block[2];     /* [bytes]; block[now] is written by the update and sent */
    int now;
    char *arrived;      /* [peers_max * bytes]: what links bring */
    bool in_flight;
    int64_t round;      /* of what is in flight, or was last */
    bool includes_self; /* what came holds this worker's own share */
    double mass, *arrived_mass; /* push-sum: this worker's weight, and those that came */
    double sent_mass;
    int32_t request_count, done; /* the first `done` of them are over */
    struct dp_request *requests;
    int32_t *peers;     /* -1: of all */
    struct dp_comm *comm; /* that the requests are of */
};

/* blocks[2]: memory of `elements` of the type each, zeroed; it belongs to the caller. */
int dp_exchange_init(struct dp_exchange *x, const struct dp_exchange_group *shared, DLDataType type,
                     size_t elements, void *const *blocks);
void dp_exchange_fini(struct dp_exchange *x);

/* Send block[now] by round t. Not while one is in flight. */
int dp_exchange_start(struct dp_exchange *x, int64_t t, uint64_t tag);
/* Until it is over. block[now] then holds what came, to be multiplied with a, and may be written. */
int dp_exchange_wait(struct dp_exchange *x);
/* The same if it is over; DP_EAGAIN otherwise. */
int dp_exchange_test(struct dp_exchange *x);
/* As after the wait for round t, with these weights; block[now] is filled in by the caller. */
void dp_exchange_restore(struct dp_exchange *x, int64_t t, double mass, double sent_mass);

/* What a block is multiplied with before it is sent, and what a worker keeps of its own value beside
 * what came, in round t, push-sum aside. */
double dp_exchange_share(const struct dp_graph *g, int64_t t, int32_t worker);
double dp_exchange_self(const struct dp_graph *g, int64_t t, int32_t worker);
/* The worker has no partner in this round. */
bool dp_exchange_is_alone(const struct dp_graph *g, int64_t t, int32_t worker);

#endif
