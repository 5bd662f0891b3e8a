/* SPDX-License-Identifier: Apache-2.0
 *
 * params.h - the parameters of the model: which tensors there are, where they lie, how they begin.
 *
 *      group 0          embedding of bytes and positions
 *      group 1 .. L     the blocks (block.h)
 *      group L + 1      final norm and head: 256 logits; a tied head is a copy of the embedding
 *                       of bytes, [256][width]
 *
 * A stage holds consecutive groups in one array. The initial weights of a group depend on seed and
 * group alone, so a model begins the same however it is cut.
 */
#ifndef DP_TRAIN_PARAMS_H
#define DP_TRAIN_PARAMS_H

#include "train/block.h"

#include <stdbool.h>

enum { GPT_BYTES = 256, GPT_MAX_LAYERS = 1024 };

struct gpt_config {
    int layers, width, heads, context;
    int batch;     /* sequences of one micro-batch */
    float dropout; /* share of zeroes, [0, 1) */
    uint64_t seed;
    bool tied;        /* the GPT's head is its token embedding */
    const struct compute *compute; /* what computes; NULL: the CPU */
    const int32_t *blocks; /* [stages] of each stage of a pipeline; NULL: the same number for all */
};

enum embedding_tensor { TABLE, POSITIONS, EMBEDDING_TENSORS };
enum head_tensor { FINAL_GAIN, FINAL_BIAS, HEAD, HEAD_BIAS, HEAD_TENSORS };
enum { MAX_TENSORS = BLOCK_TENSORS }; /* of one group */

/* One parameter tensor. A vector has one row. */
struct tensor {
    const char *name;
    int group, rows, cols;
    float mean, deviation; /* of the initial values */
    size_t offset;         /* in the array, in reals */
    bool tied;             /* one parameter with the other one that is */
};

static inline size_t tensor_count(const struct tensor *t)
{
    return (size_t)t->rows * (size_t)t->cols;
}

/* The tensors of the groups of a stage, in order. */
struct params {
    size_t tensors_len, count; /* tensors; reals */
    struct tensor *tensors;
};

/* A tied tensor other than the first, the owner: it is not updated, saved or counted by itself. */
static inline bool tensor_is_copy(const struct tensor *t)
{
    return t->tied && t->group > 0;
}

/* The tensors of one group, out[MAX_TENSORS], without offsets; returns their number. */
int params_of_group(const struct gpt_config *config, int group, struct tensor *out);

/* List the tensors of groups first .. end - 1. 0 or DP_ENOMEM. */
int params_init(struct params *p, const struct gpt_config *config, int first, int end);
void params_fini(struct params *p);
/* How many reals that would be. */
size_t params_count(const struct gpt_config *config, int first, int end);
/* Of the whole model, tied ones once. */
size_t params_count_model(const struct gpt_config *config);

/* The initial values of a tensor, which is the one of this index in its group. */
void params_draw_tensor(const struct tensor *t, int index, uint64_t seed, real *w);
/* w[p->count]: of all. */
void params_draw(const struct params *p, uint64_t seed, real *w);

/* Where the tensors of a group begin in base, an array of parameters or of their gradients. */
void params_group(const struct params *p, int group, real *base, real *out[]);

#endif
