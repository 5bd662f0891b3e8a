/* SPDX-License-Identifier: Apache-2.0
 *
 * pipeline_model.h - a small model for tests of the pipeline: stages of different widths, three
 * tensors at every border (two types that carry gradients, one that does not), dropout; and a plain
 * sequential loop over it, against which everything is compared to the last bit.
 *
 *      border s:  x float32 [rows, width + s % 2]   ids int32 [rows, 1] no_grad   z float64 [rows, 1]
 *      stage s:   x' = dropout(tanh(x W + b))       ids' = ids + 1                z' = z + mean(x')
 *      skips:     where one ends, x' += v / 4; where one begins, v = x' / 2, of two columns
 */
#ifndef DP_TESTS_PIPELINE_MODEL_H
#define DP_TESTS_PIPELINE_MODEL_H

#include <dualpipe/pipeline.h>

enum { MODEL_TENSORS = 3, MODEL_GRADS = 2, MODEL_LOSSES = 2, MODEL_SKIPS = 4, MODEL_SKIP_WIDTH = 2 };

struct model {
    int stages, microbatches;
    int rows, width; /* of one micro-batch; of border 0 */
    float dropout;
    uint64_t seed;
    int batch_dim;
    int order_blocks; /* of fixed order; 0: 2 */
    const struct dp_skip *skips; /* [skip_count] a name that begins with n: without a gradient */
    int skip_count;
    bool absent_skips; /* every third micro-batch puts out none */
    const int *same_as; /* [stages] the stage that begins with the same weights; NULL: the same */
};

/* Skips of the sequential loop. */
struct model_skips {
    DLTensor values[MODEL_SKIPS], gradients[MODEL_SKIPS];
};

/* A stage and its parameters. */
struct model_stage {
    struct model_skips *skips; /* NULL: those of the pipeline */
    const struct model *model;
    int stage;
    float *w, *b, *gw, *gb;
    DLTensor tensors[MODEL_GRADS];
    int64_t shapes[MODEL_GRADS][2];
    DLTensor *grads[MODEL_GRADS], values[MODEL_GRADS];
    struct dp_parameter parameters[MODEL_GRADS];
    char names[MODEL_GRADS][16];
    int (*before)(void *user, const struct dp_stage_call *call, const char *what); /* a test's */
    void *before_user;
};

/* Everything for one stream's batch; tensors NULL where a rank has no use for it. */
struct model_batch {
    void *data[MODEL_TENSORS];
    DLTensor tensors[MODEL_TENSORS];
    int64_t shapes[MODEL_TENSORS][2];
    DLTensor *list[MODEL_TENSORS];
};

/* What the sequential loop makes of one step. */
struct model_result {
    double *losses;   /* [microbatches * MODEL_LOSSES] */
    float *outputs;   /* [microbatches * rows * width of the last border] */
    float **first, **second, **all; /* [stages]: gradients of each half, and of all in order */
    float **blocks; /* [blocks * stages] of fixed order; those of a half are summed pairwise */
};

int model_width(const struct model *m, int border);
size_t model_grad_count(const struct model *m, int stage); /* floats: W, then b */
size_t model_output_count(const struct model *m);

void model_borders(const struct model *m, struct dp_border *borders);
void model_skip_specs(const struct model *m, struct dp_tensor_spec specs[MODEL_SKIPS]);
void model_labels(const struct model *m, struct dp_border *labels);
extern const struct dp_stage_ops model_ops;         /* with the overlap hook */
extern const struct dp_stage_ops model_ops_no_hook;
extern const struct dp_loss_ops model_loss;         /* user: struct model */
/* Waits for what is queued in dp_stage_call.stream; NULL: nothing ever is. */
extern void (*model_sync)(void *stream);

void model_stage_init(struct model_stage *stage, const struct model *m, int index);
void model_stage_fini(struct model_stage *stage);
struct dp_stage model_stage_config(struct model_stage *stage, const struct dp_stage_ops *ops,
                                   bool no_split);

/* Micro-batches first .. first + count - 1 of border `border`; filled for border 0. */
void model_batch_init(struct model_batch *batch, const struct model *m, int border, int first,
                      int count);
/* The labels of those micro-batches, as tensor 0. */
void model_batch_init_label(struct model_batch *batch, const struct model *m, int first, int count);
void model_batch_fini(struct model_batch *batch);
/* Its micro-batches, views along the model's batch_dim: freed with dp_microbatches_free. */
struct dp_microbatches *model_batch_split(const struct model_batch *batch, const struct model *m,
                                          int count);

void model_result_init(struct model_result *result, const struct model *m);
void model_result_fini(struct model_result *result, const struct model *m);
/* One step by a plain loop: every micro-batch forward through all stages and back. */
void model_run_sequential(const struct model *m, uint64_t step, bool training,
                          struct model_result *result);

#endif
