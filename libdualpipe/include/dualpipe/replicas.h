/* SPDX-License-Identifier: Apache-2.0
 *
 * replicas.h - data parallel training with one model: replicas compute gradients of different data,
 * which are added up here. Either every replica gets the whole sum and updates everything, or each
 * gets its share of the sum, updates that part of the model, and the values are gathered:
 *
 *      sum                              scatter, gather
 *
 *      backward                         backward
 *      dp_replicas_sum                  dp_replicas_scatter
 *      dp_replicas_wait                 dp_replicas_wait
 *      update all parameters            update those of dp_replicas_shard
 *                                       dp_replicas_gather, dp_replicas_wait
 *
 * The second form sends as many bytes and needs 1 / size of the optimizer's state on each replica.
 *
 * Gradients are in the memory of the host, or in that of one device, over an NCCL communicator
 * (nccl.h; dp_replicas_nccl_peers names its peers). There they are sent from where they are and
 * added up by the device, behind what a stream has been given, and the host waits for nothing:
 *
 *      backward in `stream`
 *      dp_replicas_sum(sums, stream);
 *      norms, optimizer in `stream`
 *      dp_replicas_wait(sums);          once, before the next sum
 *
 * Order of the sum. Among 2^k replicas gradients are added in pairs, each sum of two the next
 * step's summand: ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)). That is the order of pipeline.h's
 * fixed_order over blocks of micro-batches, so a replica that holds one or more whole blocks in the
 * order of its rank contributes to the sum that one process would compute, to the last bit,
 * wherever the memory is. Among other numbers the order is that of dp_comm_iallreduce on the host, and
 * on a device, and where only shards are summed, each replica b sums a part in the order b + 1, b + 2,
 * ..., b. In all cases all replicas get the same bits, and each run of the same program does: nothing is
 * left to NCCL, whose own all-reduce would choose an order by the number of ranks, the size and the
 * topology. Sums of bfloat16 and float16 are taken in float32 and rounded at each step; among other
 * numbers than 2^k the host rounds once.
 *
 * Memory: some MiB for what is in flight, on a device up to 40 MiB, whatever the model; nothing is
 * allocated after the first step. On a device gradients that follow each other in memory, as their
 * values do, on all replicas, are summed as one; each gradient for itself takes messages of its own.
 *
 * Threads: one at a time, that of the communicator. All replicas start the same operations in the
 * same order, also where several of these objects share a communicator: then one after the other is
 * in flight, and no other collective of it.
 *
 * Sources: Rabenseifner, "Optimization of collective reduction operations", 2004 (halving and
 * doubling); Rajbhandari et al., "ZeRO", 2020 (sharded optimizer state).
 */
#ifndef DUALPIPE_REPLICAS_H
#define DUALPIPE_REPLICAS_H

#include <dualpipe/comm.h>
#include <dualpipe/device.h>
#include <dualpipe/nccl.h>
#include <dualpipe/parameter.h>

#ifdef __cplusplus
extern "C" {
#endif

struct dp_replicas;

/* Collective. The list is copied; names, tensors and what those point to must stay, and so must
 * comm and device. device: whose memory all gradients and values are in, NULL: the host's. Frozen
 * parameters are left alone; members of a tied group are summed each by itself. DP_ESTATE without a
 * communicator, DP_EINVAL for a list that is not sound, DP_EMISMATCH on every rank if lists differ,
 * DP_EUNSUPPORTED for other memory, a device that adds nothing up, and one with a communicator that
 * is not ordered by streams; DP_ENOMEM; errors of comm.h. */
DP_PUBLIC int dp_replicas_new(const struct dp_parameter *parameters, int32_t count,
                              struct dp_comm *comm, struct dp_device *device,
                              struct dp_replicas **out);
/* What is in flight is waited for, if the communicator still works. May be NULL. */
DP_PUBLIC void dp_replicas_free(struct dp_replicas *replicas);

enum dp_replicas_work { DP_REPLICAS_SCATTER = 1, DP_REPLICAS_GATHER = 2, DP_REPLICAS_SUM = 3 };
/* Start one of the three below. */
DP_PUBLIC int dp_replicas_start(struct dp_replicas *replicas, enum dp_replicas_work work,
                                struct dp_device_stream *stream);

/* Start to sum the gradients over all replicas: in place, whole. On the host, where `stream` is
 * NULL, gradients may neither be read nor written until it is over. On a device it is queued behind
 * what `stream` has been given, and what that is given from now on is behind the sum. DP_EINVAL for
 * a stream where there is no device or none where there is one, DP_ESTATE while an operation is in
 * flight, DP_EUNSUPPORTED where gradients that a device sums as one (see above) have moved away from
 * each other; errors of comm.h. */
static inline int dp_replicas_sum(struct dp_replicas *replicas, struct dp_device_stream *stream)
{
    return dp_replicas_start(replicas, DP_REPLICAS_SUM, stream);
}

/* The same, but only the elements of this replica's shard are the sum; what the others are is not
 * defined. */
static inline int dp_replicas_scatter(struct dp_replicas *replicas, struct dp_device_stream *stream)
{
    return dp_replicas_start(replicas, DP_REPLICAS_SCATTER, stream);
}

/* Start to gather values: each replica's shard to all others. On a device a gather and a scatter
 * may both be in flight, in that order or the other one. */
static inline int dp_replicas_gather(struct dp_replicas *replicas, struct dp_device_stream *stream)
{
    return dp_replicas_start(replicas, DP_REPLICAS_GATHER, stream);
}

/* 0: what was started is over, on a device all its messages have come; or nothing was. DP_EAGAIN:
 * not yet. Errors of comm.h, which end the group. */
DP_PUBLIC int dp_replicas_test(struct dp_replicas *replicas);
/* Test until it is over, with the deadline of comm; an abort or a replica's death ends it. */
DP_PUBLIC int dp_replicas_wait(struct dp_replicas *replicas);

/* This replica's part of the model: pieces of the parameters as parameters of one dimension, named
 * "NAME[first:end]" by elements in memory order, with the flags of the whole. They are memory of
 * the values and gradients, and what an optimizer takes. They last as long as it. A shard on a
 * device may be cut in other places than one on the host; a sum in it is the same. */
DP_PUBLIC const struct dp_parameter *dp_replicas_shard(const struct dp_replicas *replicas,
                                                       int32_t *count);

/* Which replicas number `rank` of `size` exchanges messages with, for dp_nccl_config: out has room for
 * size - 1. How many; DP_EINVAL. */
DP_PUBLIC int dp_replicas_nccl_peers(int rank, int size, struct dp_nccl_peer *out);

#ifdef __cplusplus
}
#endif
#endif
