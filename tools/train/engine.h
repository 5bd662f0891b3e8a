/* SPDX-License-Identifier: Apache-2.0
 *
 * engine.h - how a step is carried out: through the pipeline (pipelined.c).
 */
#ifndef DP_TRAIN_ENGINE_H
#define DP_TRAIN_ENGINE_H

#include "train/gpt.h"

#include <dualpipe/comm.h>
#include <dualpipe/optimizer.h>
#include <dualpipe/pipeline.h>
#include <dualpipe/schedule.h>
#include <dualpipe/trace.h>

/* A whole step's data, the same on every rank: micro-batch after micro-batch, each of config.batch
 * sequences of context bytes, and the labels of their rows (config_rows): labels[i] is the byte
 * that follows tokens[i], or the class of the sample i. */
struct batch {
    uint8_t *tokens, *labels;
};

/* Which of the replicas of the model this is. A replica takes M / count of a step's micro-batches,
 * one after the other in the order of replicas. Zeroed: there is one. */
struct replica {
    int index, count;
    bool apart; /* gradients are of the replica's own loss, not of its share in that of all */
};

struct engine;

/* What an engine implements. All return 0 or a negative errno. */
struct engine_ops {
    const char *name;
    /* Forward and backward of this replica's micro-batches: gradients of the mean loss are added to
     * those of the stages here, which must be zero. losses[M]: of the micro-batches whose loss is
     * taken on this rank; the others stay as they are. */
    int (*train)(struct engine *e, const struct batch *batch, double *losses);
    /* The same without backward and dropout. */
    int (*evaluate)(struct engine *e, const struct batch *batch, double *losses);
    /* Bring all weights to rank 0, as those of a model in one stage; NULL on other ranks. */
    int (*gather)(struct engine *e, real *weights);
    /* Tied parameters (gpt_config.tied): their gradients are summed at the owner and zero at the
     * copies; the owner's values go to all copies. NULL, with owns: no model is tied here. */
    int (*sum_tied)(struct engine *e);
    int (*broadcast_tied)(struct engine *e);
    /* Whether this rank updates a tensor of a slot. */
    bool (*owns)(const struct engine *e, int slot, int tensor);
    /* The number of the next training step, which keys random numbers; 0 at first. */
    void (*seek)(struct engine *e, uint64_t step);
    void (*free)(struct engine *e);
};

/* What every engine begins with: the stages that this rank holds. */
struct engine {
    const struct engine_ops *ops;
    struct gpt_config config;
    int microbatches;       /* M of a step, of all replicas */
    struct replica replica; /* count is 1 or more */
    int stage_count;
    struct gpt_stage *stages[DP_MAX_SLOTS];
    bool second_copy[DP_MAX_SLOTS];     /* another rank's stage is the first one (DualPipe) */
    struct dp_comm *comm;               /* of this replica's ranks; NULL: alone */
    const struct dp_schedule *schedule; /* NULL: sequential */
    struct dp_recorder *recorder;       /* NULL: sequential */
    size_t pipeline_bytes;              /* that dp_pipeline has taken on the device */
    bool reduces;                       /* train sums gradients over all that hold a stage */
};

/* The pipeline rank of this process, which a placement may have mapped; 0 without a schedule. */
static inline int engine_rank(const struct engine *e)
{
    int rank = 0;

    while (e->comm && e->schedule && e->schedule->group_rank[rank] != dp_comm_rank(e->comm))
        rank++;
    return rank;
}

/* Micro-batches of one replica in a step. */
static inline int engine_own_microbatches(const struct engine *e)
{
    return e->microbatches / e->replica.count;
}

/* The place of its first one in the batch of all. */
static inline int engine_first_mb(const struct engine *e)
{
    return e->replica.index * engine_own_microbatches(e);
}

/* What each micro-batch's gradient is multiplied with: the loss is a mean. */
static inline double engine_loss_scale(const struct engine *e)
{
    return 1.0 / (e->replica.apart ? engine_own_microbatches(e) : e->microbatches);
}

/* This rank's part of a pipeline. Both schedules, which differ in forward_only, and comm must stay.
 * comm may be NULL for a schedule of one rank. Errors of dp_pipeline_new. */
struct pipelined_config {
    struct gpt_config model;
    struct dp_schedule *training;
    const struct dp_schedule *forward;
    struct dp_comm *comm;
    const struct dp_reduce_ops
        *reduce; /* of the REDUCEs of `training`; NULL: sum with the mirror's */
    void *reduce_user;
    bool any_order;   /* do not add gradients up in the fixed order */
    int order_blocks; /* of fixed order, of this replica; 0: 2 */
    struct replica replica; /* whose schedules have M / count micro-batches */
    bool by_messages; /* they decide which op comes next, not the schedule's list */
};
int pipelined_new(const struct pipelined_config *config, struct engine **out);

#endif
