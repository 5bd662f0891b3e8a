/* SPDX-License-Identifier: Apache-2.0
 *
 * engine.h - how a step is carried out: through the pipeline (pipelined.c), or, to compare with, by
 * a plain loop over the micro-batches (sequential.c). Both give the same numbers to the last bit.
 */
#ifndef DP_TRAIN_ENGINE_H
#define DP_TRAIN_ENGINE_H

#include "train/gpt.h"

/* A whole step's data, the same on every rank: micro-batch after micro-batch, each of batch
 * sequences of context bytes; labels[i] is the byte that follows tokens[i]. */
struct batch {
    uint8_t *tokens, *labels;
};

struct engine;

struct engine_ops {
    const char *name;
    /* Forward and backward of all micro-batches: gradients of the mean loss are added to those of
     * the stages here, which must be zero. losses[M]: of the micro-batches whose loss is taken on
     * this rank; the others stay as they are. 0 or a negative errno. */
    int (*train)(struct engine *e, const struct batch *batch, double *losses);
    /* The same without backward and dropout. */
    int (*evaluate)(struct engine *e, const struct batch *batch, double *losses);
    void (*free)(struct engine *e);
};

/* What every engine begins with: the stages that this rank holds. */
struct engine {
    const struct engine_ops *ops;
    struct gpt_config config;
    int microbatches; /* M of a step */
    int stage_count;
    struct gpt_stage **stages; /* [stage_count] */
};

/* The whole model on this rank. 0 or DP_ENOMEM. */
int sequential_new(const struct gpt_config *config, int microbatches, struct engine **out);

#endif
