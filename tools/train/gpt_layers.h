/* SPDX-License-Identifier: Apache-2.0
 *
 * gpt_layers.h - a byte-level GPT as a list of layers (dualpipe/model.h): the embedding, the blocks, the
 * head. Weights, dropout masks and arithmetic of a layer depend on the layer alone, so the model is the
 * same however it is cut into stages.
 *
 *      input                        tokens  uint8 [batch][context]          (no gradient)
 *      behind embedding and blocks  x       real  [batch][context][width]
 *      behind the head              logits  real  [batch][context][256]
 */
#ifndef DP_TRAIN_GPT_LAYERS_H
#define DP_TRAIN_GPT_LAYERS_H

#include "train/compute.h"

#include <dualpipe/model.h>
#include <dualpipe/optimizer.h>

enum { GPT_BYTES = 256, GPT_MAX_LAYERS = 1024 };
enum { MLP_FACTOR = 4 }; /* inner width of the MLP over the model's */

struct gpt_config {
    int layers, width, heads, context;
    int batch;     /* sequences of one micro-batch */
    float dropout; /* share of zeroes, [0, 1) */
    uint64_t seed;
    bool tied;             /* the head is the embedding's table */
    const int32_t *blocks; /* [stages] of each stage of a pipeline; NULL: the same number for all */
};

struct gpt_layers;

/* Micro-batches are of config->batch sequences. compute NULL: the CPU computes, with bf16 in reals, with
 * parameters that were rounded (dp_trainer_config.dtype). 0 or DP_ENOMEM. */
int gpt_layers_new(const struct gpt_config *config, const struct compute *compute, bool bf16,
                   struct gpt_layers **out);
void gpt_layers_free(struct gpt_layers *g); /* may be NULL */
/* Valid as long as g. Its loss is the mean cross-entropy in nats; its loss_user the struct compute that
 * takes it, NULL: the CPU. */
const struct dp_model *gpt_layers_model(const struct gpt_layers *g);
/* Stage s of S has the blocks s L/S + 1 .. (s+1) L/S, or as many as config->blocks says; the first one
 * also the embedding, the last one also the head: *first of its layers, returns how many. */
int gpt_layers_of_stage(const struct gpt_config *config, int stage, int stages, int *first);

/* Reals of the whole model, tied ones once. */
size_t gpt_parameter_count(const struct gpt_config *config);

/* Where a tensor's values begin. */
static inline void *gpt_data(const DLTensor *t)
{
    return (char *)t->data + t->byte_offset;
}

/* How it learns best: AdamW; */
struct dp_optimizer_config gpt_optimizer(double decay);
/* and the learning rate of a step, from 0: up to `peak` over the first `warmup` steps, then along half
 * a cosine down to a tenth of it at the last. */
double gpt_rate(uint64_t step, uint64_t steps, uint64_t warmup, double peak);

#endif
