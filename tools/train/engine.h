/* SPDX-License-Identifier: Apache-2.0
 *
 * engine.h - how a step is carried out: through the pipeline (pipelined.c), or, to compare with, by
 * a plain loop over the micro-batches (sequential.c). Both give the same numbers to the last bit.
 */
#ifndef DP_TRAIN_ENGINE_H
#define DP_TRAIN_ENGINE_H

#include "train/gpt.h"

#include <dualpipe/comm.h>
#include <dualpipe/schedule.h>
#include <dualpipe/trace.h>

/* A whole step's data, the same on every rank: micro-batch after micro-batch, each of config.batch
 * sequences of context bytes; labels[i] is the byte that follows tokens[i]. */
struct batch {
    uint8_t *tokens, *labels;
};

struct engine;

/* What an engine implements. All return 0 or a negative errno. */
struct engine_ops {
    const char *name;
    /* Forward and backward of all micro-batches: gradients of the mean loss are added to those of
     * the stages here, which must be zero. losses[M]: of the micro-batches whose loss is taken on
     * this rank; the others stay as they are. */
    int (*train)(struct engine *e, const struct batch *batch, double *losses);
    /* The same without backward and dropout. */
    int (*evaluate)(struct engine *e, const struct batch *batch, double *losses);
    /* Bring all weights to rank 0, as those of a model in one stage; NULL on other ranks. */
    int (*gather)(struct engine *e, real *weights);
    void (*free)(struct engine *e);
};

/* What every engine begins with: the stages that this rank holds. */
struct engine {
    const struct engine_ops *ops;
    struct gpt_config config;
    int microbatches; /* M of a step */
    int stage_count;
    struct gpt_stage *stages[DP_MAX_SLOTS];
    bool second_copy[DP_MAX_SLOTS];     /* another rank's stage is the first one (DualPipe) */
    struct dp_comm *comm;               /* NULL: alone */
    const struct dp_schedule *schedule; /* NULL: sequential */
    struct dp_recorder *recorder;       /* NULL: sequential */
};

/* The whole model on this rank. 0 or DP_ENOMEM. */
int sequential_new(const struct gpt_config *config, int microbatches, struct engine **out);

/* This rank's part of a pipeline. Both schedules, which differ in forward_only, and comm must stay.
 * comm may be NULL for a schedule of one rank. Errors of dp_pipeline_new. */
struct pipelined_config {
    struct gpt_config model;
    const struct dp_schedule *training, *forward;
    struct dp_comm *comm;
    bool any_order; /* do not add gradients up in the fixed order */
};
int pipelined_new(const struct pipelined_config *config, struct engine **out);

#endif
