/* SPDX-License-Identifier: Apache-2.0
 *
 * replicas.h - data parallel training with one model: replicas compute gradients of different data,
 * which are added up here. Either every replica gets the whole sum and updates everything, or each
 * gets its share of the sum, updates that part of the model, and the values are gathered:
 *
 *      sum                              scatter, gather
 *
 *      backward                         backward
 *      dp_replicas_sum                   dp_replicas_scatter
 *      update all parameters            update those of dp_replicas_shard
 *                                       dp_replicas_gather
 *
 * The second form sends as many bytes and needs 1 / size of the optimizer's state on each replica.
 *
 * Order of the sum. Among 2^k replicas gradients are added in pairs, each sum of two the next
 * step's summand: ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)). That is the order of pipeline.h's
 * fixed_order over blocks of micro-batches, so a replica that holds one or more whole blocks in the
 * order of its rank contributes to the sum that one process would compute, to the last bit. Among
 * other numbers the order is that of dp_comm_iallreduce. In both cases all replicas get the same
 * bits. Sums of bfloat16 and float16 are taken in float32 and rounded at each step.
 *
 * Memory: some MiB for pieces in flight, whatever the model; nothing is allocated after
 * dp_replicas_new.
 *
 * Threads: one at a time, that of the communicator. All replicas start the same operations in the
 * same order, also where several of these objects share a communicator: then one after the other is
 * in flight.
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
 * comm. Frozen parameters are left alone; members of a tied group are summed each by itself.
 * DP_ESTATE without a communicator, DP_EINVAL for a list that is not sound, DP_EMISMATCH on every
 * rank if lists differ, DP_EUNSUPPORTED for memory that the host does not reach, DP_ENOMEM; errors
 * of comm.h. */
DP_PUBLIC int dp_replicas_new(const struct dp_parameter *parameters, int32_t count,
                              struct dp_comm *comm, struct dp_replicas **out);
/* What is in flight is waited for, if the communicator still works. May be NULL. */
DP_PUBLIC void dp_replicas_free(struct dp_replicas *replicas);

/* Start to sum the gradients over all replicas: in place, whole. DP_ESTATE while an operation is in
 * flight; errors of comm.h. Until it is over gradients may neither be read nor written. */
DP_PUBLIC int dp_replicas_sum(struct dp_replicas *replicas);
/* The same, but only the elements of this replica's shard are the sum; what the others are is not
 * defined. */
DP_PUBLIC int dp_replicas_scatter(struct dp_replicas *replicas);
/* Start to gather values: each replica's shard to all others. */
DP_PUBLIC int dp_replicas_gather(struct dp_replicas *replicas);
/* 0: what was started is over, or nothing was. DP_EAGAIN: not yet. Errors of comm.h, which end the
 * group. */
DP_PUBLIC int dp_replicas_test(struct dp_replicas *replicas);
/* Test until it is over, with the deadline of comm. */
DP_PUBLIC int dp_replicas_wait(struct dp_replicas *replicas);

/* This replica's part of the model: pieces of the parameters as parameters of one dimension, named
 * "NAME[first:end]" by elements in memory order, with the flags of the whole. They are memory of
 * the values and gradients, and what an optimizer takes. They last as long as it. */
DP_PUBLIC const struct dp_parameter *dp_replicas_shard(const struct dp_replicas *replicas,
                                                       int32_t *count);

/* ---- on a device, in the order of a stream ----------------------------------------------------- */

/* Both forms for gradients in the memory of a GPU, over an NCCL communicator (nccl.h): gradients
 * are sent from where they are and added up by the device, behind what a stream has been given, and
 * the host waits for nothing.
 *
 *      dp_comm_nccl_open(host, &config, &comm);      peers: dp_replicas_nccl_peers
 *      dp_replicas_stream_new(parameters, count, comm, device, &sums);
 *      backward in `stream`
 *      dp_replicas_stream_sum(sums, stream);
 *      norms, optimizer in `stream`
 *      dp_replicas_stream_wait(sums);                once, before the next sum
 *
 * or, in shards, with dp_replicas_stream_scatter, norms and the optimizer of those parameters that
 * dp_replicas_stream_shard names, and dp_replicas_stream_gather. A shard is another one than that of
 * dp_replicas_shard; a sum in it is the same.
 *
 * Order of the sum: among 2^k replicas that of dp_replicas_sum, with the same bits. Among other
 * numbers a part of each tensor is summed by each replica b in the order b + 1, b + 2, ..., b, so that
 * all of them get the same bits, and each run of the same program does; but where parts begin is not
 * where dp_comm_iallreduce has them. Nothing here is left to NCCL, whose own all-reduce would choose an
 * order by the number of ranks, the size and the topology: there are only messages and sums.
 *
 * Memory: up to 32 MiB on the device for pieces that arrive. Gradients that follow each other in memory,
 * as their values do, are summed as one; each gradient for itself takes messages of its own. */
struct dp_replicas_stream;

/* Collective. As dp_replicas_new; device, whose memory all gradients are in, must stay, too.
 * DP_EUNSUPPORTED for other memory, a device that adds nothing up, and a communicator that is not
 * ordered by streams. */
DP_PUBLIC int dp_replicas_stream_new(const struct dp_parameter *parameters, int32_t count,
                                     struct dp_comm *comm, struct dp_device *device,
                                     struct dp_replicas_stream **out);
/* What is in flight is waited for, if the communicator still works. May be NULL. */
DP_PUBLIC void dp_replicas_stream_free(struct dp_replicas_stream *sums);
/* Queue the sum of the gradients behind what `stream` has been given; what it is given from now on is
 * behind the sum. DP_ESTATE while a sum is in flight; errors of comm.h. */
DP_PUBLIC int dp_replicas_stream_sum(struct dp_replicas_stream *sums,
                                     struct dp_device_stream *stream);
/* The same, but only the elements of this replica's shard are the sum; what the others are is not
 * defined. */
DP_PUBLIC int dp_replicas_stream_scatter(struct dp_replicas_stream *sums,
                                         struct dp_device_stream *stream);
/* Queue the gathering of values, each replica's shard to all others. A gather and a scatter may both be
 * in flight, in that order or the other one: DP_ESTATE for a second one of either, and for a sum beside
 * one. */
DP_PUBLIC int dp_replicas_stream_gather(struct dp_replicas_stream *sums,
                                        struct dp_device_stream *stream);
/* As dp_replicas_shard: memory of the device. */
DP_PUBLIC const struct dp_parameter *
dp_replicas_stream_shard(const struct dp_replicas_stream *sums, int32_t *count);
/* Until all messages of what is in flight have come, with the deadline of comm; an abort, or a replica
 * that has died, ends it. Nothing is waited for if the stream has ended. 0 where nothing is in
 * flight. */
DP_PUBLIC int dp_replicas_stream_wait(struct dp_replicas_stream *sums);

/* Which replicas number `rank` of `size` exchanges messages with, for dp_nccl_config: out has room for
 * size - 1. How many; DP_EINVAL. */
DP_PUBLIC int dp_replicas_nccl_peers(int rank, int size, struct dp_nccl_peer *out);

#ifdef __cplusplus
}
#endif
#endif
