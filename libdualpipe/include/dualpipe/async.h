/* SPDX-License-Identifier: Apache-2.0
 *
 * async.h - AsyncPipe out of a list of layers: cut it into stages, make the layers that live on this
 * rank, and build the schedules, all ranks together.
 *
 *      struct dp_async *async;
 *      err = dp_async_new(&(struct dp_async_spec){
 *          .comm = comm, .layer_count = 4, .balance = (int32_t[]){2, 2}, .stages = 2, .chunks = 8,
 *          .build = build_layer, .user = model}, &async);
 *      dp_pipeline_new(&(struct dp_pipeline_config){
 *          .schedule = async->schedule, .also = &async->evaluation, .also_count = 1, ...}, &pipe);
 *
 * A stage of the schedule is an invocation of the partition (partition.h): slot i of this rank runs
 * the layers of one group, and slots of the same dp_slot.location share its parameters.
 *
 * Threads: one at a time, as for the communicator.
 *
 * Source: the constructor of fairscale's AsyncPipe, and its table of errors.
 */
#ifndef DUALPIPE_ASYNC_H
#define DUALPIPE_ASYNC_H

#include <dualpipe/comm.h>
#include <dualpipe/partition.h>
#include <dualpipe/schedule.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The same on every rank but for comm, build and user. Zeroed memory plus comm, layer_count, balance,
 * stages and chunks is the usual one. */
struct dp_async_spec {
    struct dp_comm *comm;   /* NULL: one rank */
    const int32_t *layers;  /* [layer_count], balance[stages]: as in dp_partition_spec */
    int32_t layer_count;
    const int32_t *balance;
    int32_t stages;
    int32_t chunks;         /* micro-batches of a step, at least 1 */
    const char *checkpoint; /* which of them are recomputed: "always", "except_last" or "never"; NULL:
                             * "except_last". By the number of them, whatever the batch. */
    bool return_outputs;
    const struct dp_skip *skips; /* [skip_count] that layers declare: dp_skips_of_layers */
    int32_t skip_count;
    /* Make a layer that lives on this rank, `position` in the list. Called in the order of the list,
     * once for a layer that is used several times; never for those of other ranks. 0, or a negative
     * errno, with dp_callback_error to say why. NULL: all are there. */
    int (*build)(void *user, int32_t position, int32_t layer);
    void *user;
};

struct dp_async {
    struct dp_partition *partition;
    struct dp_schedule *schedule;         /* of training; pipeline rank = rank of comm */
    const struct dp_schedule *evaluation; /* the same without backwards and recomputation */
    int32_t rank;
    bool unused; /* this rank is beyond the stages and holds no layer: it takes part in what is
                  * collective, and dp_pipeline_step_batch returns its input */
    bool final_stage; /* this rank holds the last stage */
    /* What it was made of, to be read: */
    struct dp_comm *comm;
    int32_t *balance; /* [stages] a copy */
    int32_t stages, chunks;
    enum dp_recompute checkpoint;
    const struct dp_layer_group *groups; /* [group_count] of partition: this rank's, in order */
    int32_t group_count;
};

/* Collective over comm. Where it fails it fails on all ranks with the same error and sentence, which
 * begins with the rank that found it, "rank 1: balance[1]: 0, expected at least 1 (A5)"; what `build`
 * has made by then is the caller's. comm stays usable. DP_EINVAL with the row of AsyncPipe's table, in
 * their order: A1 chunks not positive, A2 no such mode of recomputation, A4 the balance's sum is not
 * the number of distinct layers, A5 an entry of it is not positive, A6 fewer ranks than stages, A8 an
 * entry of the list that is no layer; DP_EINVAL also for skips (dp_skips_of_layers); DP_ESTATE (A13)
 * for several stages without a comm; DP_EMISMATCH where ranks have been told different things;
 * DP_ECALLBACK where a layer was not made; DP_ENOMEM. A3 and A9 are legal: a layer that is used several
 * times, and one that is made late and has skips. No layer and no stage is legal, too: every rank is
 * unused. The caller frees. */
DP_PUBLIC int dp_async_new(const struct dp_async_spec *spec, struct dp_async **out);
DP_PUBLIC void dp_async_free(struct dp_async *async); /* may be NULL */

/* How many layers this rank holds. */
static inline int32_t dp_async_len(const struct dp_async *async)
{
    return dp_partition_len(async->partition, async->rank);
}

/* Where in the list the index-th of them stands; negative: from the end, -1 the last. DP_EINVAL (A15)
 * outside; dp_comm_share_error lets all ranks know. */
static inline int dp_async_layer(const struct dp_async *async, int32_t index, int32_t *position)
{
    return dp_partition_layer(async->partition, async->rank, index, position);
}

#ifdef __cplusplus
}
#endif
#endif
