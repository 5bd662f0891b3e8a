/* SPDX-License-Identifier: Apache-2.0
 *
 * internal.h - what other layers of the library call of this one, and its users do not.
 */
#ifndef DP_COMM_INTERNAL_H
#define DP_COMM_INTERNAL_H

#include <dualpipe/comm.h>

/* The offset to add to CLOCK_MONOTONIC of this rank to get rank 0's, and half the best round trip
 * as the error. By ping-pong, the quickest of `rounds` >= 1. */
int dp_comm_clock_offset(struct dp_comm *comm, int rounds, int64_t *offset_ns,
                         int64_t *error_ns);
/* dp_comm_busy for as long as it takes: between the two a thread renews a short announcement, so that a
 * rank that is stopped meanwhile is not waited for much longer than elsewhere. The caller makes no call
 * of comm until the end. NULL, which the end takes: comm is NULL, or there is no memory, and nothing is
 * announced. */
struct dp_busy;
struct dp_busy *dp_comm_busy_begin(struct dp_comm *comm);
void dp_comm_busy_end(struct dp_busy *busy);
/* Like allgather, but each rank has its own number of bytes: *all is malloc'ed (never NULL),
 * offsets[size + 1] says where each rank's bytes begin. */
int dp_comm_allgatherv(struct dp_comm *comm, const void *mine, size_t len, void **all,
                       size_t *offsets);

/* Prepare memory of frequent messages, sent or received: NCCL registers it with its transports. No
 * effect on communicators that do not move device memory, and on parts of a communicator. It must stay
 * until it is unregistered or comm is closed; it is registered again after a reset. DP_EINVAL,
 * DP_ENOMEM, DP_EABORTED, and errors of NCCL. */
int dp_comm_register(struct dp_comm *comm, void *ptr, size_t bytes);
/* While no message is in flight. No effect for a ptr that is not registered, or NULL. */
void dp_comm_unregister(struct dp_comm *comm, void *ptr);
/* From now on this rank does `doing`, a number of the caller's, not 0: a pipeline's steps note each of
 * their ops (dp_pipeline_doing_text). The record of an abort or revocation has that of the culprit,
 * also of one that was killed: between processes, what it had told rank 0, or its neighbors in a group
 * that survives, by then, which it does in its calls, every 50 ms at most. Costs a store. */
void dp_comm_note(struct dp_comm *comm, uint64_t doing);
/* This rank's part has failed, as dp_last_error() says: abort. In a group that survives, a rank
 * that has no files or memory leaves it instead, and the others see that as its end. */
void dp_comm_fail(struct dp_comm *comm, int error);
/* The sum over all ranks in place, or one half of it: after the first each rank has the sum of parts of
 * the buffer (dp_sum_part in engine.h), which the second gives to all. Among 2^k ranks in pairs,
 * ((0 + 1) + (2 + 3)), each rounded to the type; otherwise each sums one block, and both halves together
 * are an all-reduce. A collective. A step moves `segment` elements at most; how the parts lie depends on
 * that. */
enum dp_sum_phases {
    DP_SUM_SCATTER = 1,
    DP_SUM_GATHER = 2,
    DP_SUM_ALL = DP_SUM_SCATTER | DP_SUM_GATHER
};
int dp_comm_isum(struct dp_comm *comm, void *buf, size_t count, size_t segment, DLDataType type,
                 enum dp_sum_phases phases, struct dp_request *req);
/* Whether the caller has a poll function, of which a wait elsewhere must take care. */
bool dp_comm_polls(const struct dp_comm *comm);
/* Call the caller's poll function, if there is one: its error aborts the group. */
int dp_comm_poll(struct dp_comm *comm);

#endif
