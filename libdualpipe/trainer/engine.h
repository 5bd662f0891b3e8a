/* SPDX-License-Identifier: Apache-2.0
 *
 * engine.h - what carries out the forwards and backwards of a step, as the trainer sees it: the
 * parameters that this rank holds. model_engine.h has what it does.
 */
#ifndef DP_TRAINER_ENGINE_H
#define DP_TRAINER_ENGINE_H

#include "base/fail.h"
#include "trainer/model.h"

#include <dualpipe/comm.h>
#include <dualpipe/optimizer.h>
#include <dualpipe/schedule.h>
#include <dualpipe/survival.h>
#include <dualpipe/trace.h>
#include <dualpipe/trainer.h>

#include <stdio.h>

struct dp_batch_norm;

/* A batch normalisation of the model: its running statistics are "NAME running_mean" and so on. */
struct engine_norm {
    const char *name;
    int32_t layer, index; /* in the model, and in its layer */
    int32_t channels;
    struct dp_batch_norm *norm; /* NULL: it is on other ranks */
};

/* Of the model, the same on every rank. */
struct engine_norms {
    struct engine_norm *list; /* [count] */
    int32_t count;
};

/* The stage in a slot. */
struct engine_part {
    const struct dp_parameter *parameters; /* [count] in the order of layers */
    int32_t count;
    int32_t streamed;        /* the first so many live on the host, and pass over the device */
    const int32_t *layers;   /* [count]: norms of gradients are added up layer by layer */
    int32_t stage;
    bool second_copy;        /* another rank's stage is the first one (DualPipe) */
};

/* What others see of it. */
struct engine {
    int microbatches;       /* M of a step, of all replicas */
    double loss_scale;      /* of gradients, in the next step */
    size_t stage_bytes, pipeline_bytes;
    struct replica replica; /* count is 1 or more */
    int part_count;
    struct engine_part parts[DP_MAX_SLOTS];
    int32_t layers;         /* of the model */
    struct engine_norms norms;
    bool tied;
    struct dp_comm *comm;               /* of this replica's ranks; NULL: alone */
    int rank;                           /* without comm: the pipeline's */
    const struct dp_schedule *schedule;
    struct dp_recorder *recorder;
    bool reduces;                       /* train sums gradients over all that hold a stage */
    int (*queued)(void *user);          /* when all of a training step is queued; NULL: nothing. 0 or an
                                         * error, which ends the step */
    void *queued_user;
};

/* Not all of a rank is where it computes. */
static inline bool trainer_offloads(const struct dp_trainer_config *c)
{
    return c->offload.parameters || c->offload.activations || c->offload.optimizer;
}

/* The pipeline rank of this process, which a placement may have mapped. */
static inline int engine_rank(const struct engine *e)
{
    int rank = e->comm ? 0 : e->rank;

    while (e->comm && e->schedule->group_rank[rank] != dp_comm_rank(e->comm))
        rank++;
    return rank;
}

/* An error of this rank alone, in the middle of what all do: all ranks of comm end. Returns err. */
static inline int engine_fail(struct dp_comm *comm, int err)
{
    char text[DP_ABORT_TEXT];

    if (!err || err == DP_EABORTED || !comm)
        return err;
    snprintf(text, sizeof(text), "%s", dp_last_error());
    if (dp_comm_survives(comm))
        dp_comm_revoke(comm, err, text);
    else
        dp_comm_abort(comm, err, text);
    return dp_fail_quietly(err, "%s", text);
}

/* What a rank did by itself, as a part of what all do: dp_comm_share_error, but of ranks that survive
 * one that has failed leaves, and the others learn of it as of a death. */
static inline int engine_share_error(struct dp_comm *comm, int err)
{
    return dp_comm_survives(comm) ? engine_fail(comm, err) : dp_comm_share_error(comm, err);
}

/* Micro-batches of one replica in a step, and the place of its first one in the batch of all. */
static inline int engine_own_microbatches(const struct engine *e)
{
    return e->microbatches / e->replica.count;
}

static inline int engine_first_mb(const struct engine *e)
{
    return e->replica.index * engine_own_microbatches(e);
}

#endif
