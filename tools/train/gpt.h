/* SPDX-License-Identifier: Apache-2.0
 *
 * gpt.h - a byte-level GPT, cut into the stages of a pipeline.
 *
 * Stage s of S holds the blocks s L/S + 1 .. (s+1) L/S (params.h), or as many as config.blocks
 * says; the first stage also the embedding, the last also the head. Weights, dropout masks and
 * arithmetic of a group depend on the group alone, so the model is the same however it is cut.
 *
 *      border 0           tokens  uint8 [batch][context]          (no gradient)
 *      border 1 .. S-1    x       real  [batch][context][width]
 *      border S           logits  real  [batch][context][256]
 */
#ifndef DP_TRAIN_GPT_H
#define DP_TRAIN_GPT_H

#include "train/params.h"

#include <dualpipe/stage.h>

/* A parameter tensor in the form that the library takes. */
struct gpt_tensor {
    char name[40]; /* "block 3 qkv" */
    int64_t shape[2];
    DLTensor value, grad;
};

struct gpt_stage {
    struct gpt_config config;
    struct block_shape shape;
    int first_block, end_block; /* its blocks: groups first_block .. end_block - 1 */
    int first_group, end_group; /* the same with embedding and head */
    bool has_embedding, has_head;
    bool bare; /* weights, grads and residual are another's */
    struct params params;
    real *weights, *grads;    /* [params.count] */
    size_t save_bytes;        /* of one micro-batch */
    void *residual;           /* scratch [tokens][width] */
    struct gpt_tensor *tensors;      /* [params.tensors_len] */
    struct dp_parameter *parameters; /* [params.tensors_len] as the pipeline takes them */
    DLTensor **grads_list;           /* [params.tensors_len] their gradients */
};

/* What is the same in all its stages, without scratch memory. */
struct block_shape gpt_shape(const struct gpt_config *config);
/* The blocks of the stages before. A model in one stage has all of them. */
int gpt_blocks_before(const struct gpt_config *config, int stage, int stages);
/* The key of one of the two dropouts of a group. */
struct dp_random_key gpt_dropout_key(uint64_t seed, uint64_t step, int group, int which, int mb);

/* Make stage `stage` of `stages`, initialised from the seed, gradients zero. 0 or
 * DP_ENOMEM. */
int gpt_stage_new(const struct gpt_config *config, int stage, int stages, struct gpt_stage **out);
/* The same without memory: weights, gradients and scratch are to be set, and stay the caller's. */
int gpt_stage_new_bare(const struct gpt_config *config, int stage, int stages,
                       struct gpt_stage **out);
/* All of a bare stage's memory, on the device that computes; its tensors are views of it. */
void gpt_stage_set_memory(struct gpt_stage *g, real *weights, real *grads, void *scratch);
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
/* Mean cross-entropy of a micro-batch in nats per row; labels are uint8 [batch][rows]. Its user is the
 * struct compute that takes it; NULL: the CPU. */
extern const struct dp_loss_ops gpt_loss_ops;

/* Where a tensor's values begin. */
static inline void *gpt_data(const DLTensor *t)
{
    return (char *)t->data + t->byte_offset;
}

/* The group of tied parameters, which is the name of the one that owns them. */
extern const char gpt_tied_name[];
/* The name of a tensor in a checkpoint, where a tied one is once. */
const char *gpt_saved_name(const struct gpt_stage *g, size_t i);

/* The stage as the pipeline takes it. */
struct dp_stage gpt_stage_view(struct gpt_stage *g);

#endif
