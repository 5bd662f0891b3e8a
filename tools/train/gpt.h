/* SPDX-License-Identifier: Apache-2.0
 *
 * gpt.h - a byte-level GPT, cut into the stages of a pipeline.
 *
 * Stage s of S holds the blocks s L/S + 1 .. (s+1) L/S (params.h); the first stage also the
 * embedding, the last also the head. Weights, dropout masks and arithmetic of a group depend on the
 * group alone, so the model is the same however it is cut.
 *
 *      border 0           tokens  uint8 [batch][context]          (no gradient)
 *      border 1 .. S-1    x       real  [batch][context][width]
 *      border S           logits  real  [batch][context][256]
 */
#ifndef DP_TRAIN_GPT_H
#define DP_TRAIN_GPT_H

#include "train/params.h"

#include <dualpipe/stage.h>

struct gpt_stage {
    struct gpt_config config;
    struct block_shape shape;
    int first_block, end_block; /* its blocks: groups first_block .. end_block - 1 */
    int first_group, end_group; /* the same with embedding and head */
    bool has_embedding, has_head;
    struct params params;
    real *weights, *grads;    /* [params.count] */
    size_t save_bytes;        /* of one micro-batch */
    real *residual;           /* scratch [tokens][width] */
    DLTensor *grads_list[1];  /* grads, as the pipeline wants to see them */
    DLTensor grads_tensor;
    int64_t grads_shape[1];
};

/* Make stage `stage` of `stages`, initialised from the seed, gradients zero. 0 or DP_ENOMEM. */
int gpt_stage_new(const struct gpt_config *config, int stage, int stages, struct gpt_stage **out);
void gpt_stage_free(struct gpt_stage *g);

/* What it would take, without making it. */
struct gpt_stage_size {
    size_t param_count, save_bytes, scratch_bytes;
};
struct gpt_stage_size gpt_stage_size(const struct gpt_config *config, int stage, int stages);

/* borders[stages + 1] */
void gpt_borders(const struct gpt_config *config, int stages, struct dp_border *borders);

/* What a stage does; its user is a struct gpt_stage. */
extern const struct dp_stage_ops gpt_stage_ops;
/* Mean cross-entropy of a micro-batch in nats per byte; labels are uint8 [batch][context]. */
extern const struct dp_loss_ops gpt_loss_ops;

/* The stage as the pipeline takes it. */
struct dp_stage gpt_stage_view(struct gpt_stage *g);

#endif
