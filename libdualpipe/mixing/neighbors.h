/* SPDX-License-Identifier: Apache-2.0
 *
 * neighbors.h - a round as messages: whose values a worker takes, with which weights, and who takes its
 * own. Members of a group are neighbors of each other.
 */
#ifndef DP_MIXING_NEIGHBORS_H
#define DP_MIXING_NEIGHBORS_H

#include <dualpipe/comm.h>
#include <dualpipe/mixing.h>

struct dp_neighbor {
    int32_t worker;
    double weight;
};

/* Most neighbors of a worker in a round, either way. */
int32_t dp_neighbors_max(const struct dp_graph *g, int32_t worker);
/* Of round t modulo the period, the worker itself left out; out[dp_neighbors_max]. The count. */
int32_t dp_neighbors_from(const struct dp_graph *g, int64_t t, int32_t worker,
                          struct dp_neighbor *out);
int32_t dp_neighbors_to(const struct dp_graph *g, int64_t t, int32_t worker,
                        struct dp_neighbor *out);
/* Until the message of this worker is here, or gone there; `all`: or until any of these has died, as
 * dp_comm_wait_alive; NULL: dp_comm_wait. */
int dp_neighbor_wait(struct dp_comm *comm, struct dp_request *request, int32_t worker,
                     const struct dp_comm *all);
/* W_ij = W_ji in all rounds. Otherwise false, with a round and two workers for which it is not so. */
bool dp_graph_is_symmetric(const struct dp_graph *g, int32_t *round, int32_t *i, int32_t *j);

#endif
