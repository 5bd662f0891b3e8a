/* SPDX-License-Identifier: Apache-2.0
 *
 * gpt_layers.h - the GPT as a list of layers, as the library's trainer takes it (dualpipe/model.h): the
 * embedding, the blocks, the head. Parameters, their initial values, their names in checkpoints and the
 * arithmetic are those of gpt.h.
 */
#ifndef DP_TRAIN_GPT_LAYERS_H
#define DP_TRAIN_GPT_LAYERS_H

#include "train/gpt.h"

#include <dualpipe/model.h>
#include <dualpipe/optimizer.h>

struct gpt_layers;

/* Micro-batches are of config->batch sequences. compute NULL: the CPU computes, with bf16 in reals, with
 * parameters that were rounded (dp_trainer_config.dtype). 0 or DP_ENOMEM. */
int gpt_layers_new(const struct gpt_config *config, const struct compute *compute, bool bf16,
                   struct gpt_layers **out);
void gpt_layers_free(struct gpt_layers *g); /* may be NULL */
/* Valid as long as g. */
const struct dp_model *gpt_layers_model(const struct gpt_layers *g);
/* How many of its layers each of `stages` stages has, as config->blocks says. */
void gpt_layers_cut(const struct gpt_config *config, int stages, int32_t *layers_of_stage);

/* How it learns best: AdamW; */
struct dp_optimizer_config gpt_optimizer(double decay);
/* and the learning rate of a step, from 0: up to `peak` over the first `warmup` steps, then along half
 * a cosine down to a tenth of it at the last. */
double gpt_rate(uint64_t step, uint64_t steps, uint64_t warmup, double peak);

#endif
