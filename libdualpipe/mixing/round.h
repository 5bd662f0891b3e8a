/* SPDX-License-Identifier: Apache-2.0
 *
 * round.h - a round as messages: whose values a worker takes, with which weights, who takes its own, and
 * the messages of these on their way, on the host or in the order of a device's stream. Members of a
 * group are neighbors of each other.
 */
#ifndef DP_MIXING_ROUND_H
#define DP_MIXING_ROUND_H

#include <dualpipe/comm.h>
#include <dualpipe/device.h>
#include <dualpipe/mixing.h>
#include <dualpipe/parameter.h>

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
/* W_ij = W_ji in all rounds. Otherwise false, with a round and two workers for which it is not so. */
bool dp_graph_is_symmetric(const struct dp_graph *g, int32_t *round, int32_t *i, int32_t *j);

/* What a block is multiplied with before it is sent, and what a worker keeps of its own value beside
 * what came, in round t, push-sum aside. */
double dp_round_share(const struct dp_graph *g, int64_t t, int32_t worker);
double dp_round_self(const struct dp_graph *g, int64_t t, int32_t worker);
/* The worker has no partner in this round. */
bool dp_round_is_alone(const struct dp_graph *g, int64_t t, int32_t worker);

/* ---- messages ---------------------------------------------------------------------------------- */

struct dp_transfers {
    struct dp_comm *comm;
    struct dp_round_transfer {
        struct dp_request request;
        int peer;          /* -1: all */
    } *list;
    int32_t count, done;   /* begun; the first `done` of them are over */
    bool cut_short;        /* one could not be begun */
};
/* The list is empty, its memory stays. */
void dp_transfers_clear(struct dp_transfers *m);
/* The request of the next message, and what beginning it ended with. */
struct dp_request *dp_transfers_next(struct dp_transfers *m, int peer);
int dp_transfers_note(struct dp_transfers *m, int err);
/* One. */
int dp_transfers_receive(struct dp_transfers *m, int peer, uint64_t tag, void *to, size_t len);
int dp_transfers_send(struct dp_transfers *m, int peer, uint64_t tag, const void *from, size_t len);
/* One for each neighbor: what the k-th of them sends arrives at to + k * stride. */
int dp_transfers_gather(struct dp_transfers *m, const struct dp_neighbor *from, int32_t count,
                       uint64_t tag, void *to, size_t stride, size_t len);
int dp_transfers_spread(struct dp_transfers *m, const struct dp_neighbor *to, int32_t count,
                       uint64_t tag, const void *from, size_t len);
/* Until the next one is over: one of this worker is here, or gone there. DP_EAGAIN: not yet, unless it
 * waits. all: the wait ends when any of these has died (dp_comm_wait_alive), or NULL. */
int dp_transfers_end_next(struct dp_transfers *m, bool wait, const struct dp_comm *all);
/* The same of all. DP_ECOMM, after all of those that were begun, where one could not be. */
int dp_transfers_end(struct dp_transfers *m, bool wait, const struct dp_comm *all);

/* ---- in the order of a stream ------------------------------------------------------------------ */

/* The stream waits for messages first .. count - 1. */
int dp_transfers_await(const struct dp_transfers *m, int32_t first, struct dp_device_stream *stream);

/* Memory that messages arrive in: of the device, and known to the communicator. No bytes: NULL. */
int dp_stream_arrivals_new(struct dp_comm *comm, struct dp_device *dev, size_t bytes, char **out);
void dp_stream_arrivals_free(struct dp_comm *comm, struct dp_device *dev, char *arrivals);

/* Tensors that follow each other in memory go as one row, and the rows of all ranks must be alike: one
 * begins at a tensor where it does on any rank. Collective. DP_ENOMEM; errors of comm.h. */
int dp_stream_agree_on_rows(struct dp_comm *comm, bool *begins, int32_t count);

/* Whether it is trained and has elements. */
bool dp_stream_takes(const struct dp_parameter *p);
bool dp_stream_is_on(const struct dp_device *dev, const DLTensor *t);
/* Of all that are taken, with a stream of the device; then of the communicator. `what` is wanted. */
int dp_stream_check(struct dp_comm *comm, struct dp_device *dev, const char *what,
                    const struct dp_parameter *list, int32_t count,
                    int (*check)(const struct dp_parameter *p, const struct dp_device *dev,
                                 struct dp_device_stream *stream));

#endif
