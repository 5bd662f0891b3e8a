/* SPDX-License-Identifier: Apache-2.0
 *
 * model.h - what a model other than the GPT of gpt.c consists of. It has its groups (params.h), its
 * borders and its loss; a row of it is a sample of config.context features instead of a token.
 */
#ifndef DP_TRAIN_MODEL_H
#define DP_TRAIN_MODEL_H

#include "train/gpt.h"

struct dp_batch_norm;

struct model {
    const char *name;
    int classes; /* 2 .. 256: logits of a row */
    /* The tensors of a group, at most MAX_TENSORS, without offsets; returns their number. */
    int (*tensors)(const struct gpt_config *config, int group, struct tensor *out);
    size_t (*save_count)(const struct gpt_stage *g); /* reals that a micro-batch leaves behind */
    const struct dp_stage_ops *ops;                  /* their user is a struct gpt_stage */
    /* Make, and free, the g->norms of its blocks; fini also after an init that has failed. 0, or
     * errors of dp_batch_norm_new. */
    int (*init)(struct gpt_stage *g);
    void (*fini)(struct gpt_stage *g);
};

/* A classifier: hidden layers with batch normalisation (mlp.c). */
extern const struct model mlp_bn_model;

/* The callbacks of a stage of either. */
static inline const struct dp_stage_ops *model_ops(const struct gpt_config *c)
{
    return c->model ? c->model->ops : &gpt_stage_ops;
}

#endif
