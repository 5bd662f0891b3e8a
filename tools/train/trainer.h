/* SPDX-License-Identifier: Apache-2.0
 *
 * trainer.h - one rank's share of training: a step from data to better weights, and the held-out
 * loss. Collective: every rank calls the same functions with the same arguments.
 */
#ifndef DP_TRAIN_TRAINER_H
#define DP_TRAIN_TRAINER_H

#include "train/data.h"
#include "train/optimizer.h"

struct trainer_config {
    int sequences;   /* of a step, over all micro-batches */
    uint64_t steps, warmup;
    double rate, decay, clip;
};

struct trainer {
    struct trainer_config config;
    const struct data *data;
    struct engine *engine;
    int ranks;
    struct optimizer optimizers[DP_MAX_SLOTS];
    struct batch batch;
    /* What ranks tell each other after a step: the losses of all micro-batches, then the sum of
     * squared gradients of each group. A rank leaves zero what it does not know. */
    size_t sums_len;
    double *sums, *all_sums; /* [sums_len], [ranks][sums_len] */
};

/* What a step was like; the same on every rank. */
struct step_result {
    double loss; /* mean over its bytes, in nats, before the update */
    double norm; /* of the whole gradient, before clipping */
    double rate;
    bool skipped; /* the gradient was not finite, the weights are as they were */
};

/* data and engine must stay; the engine is not freed with the trainer. 0 or DP_ENOMEM. */
int trainer_init(struct trainer *t, const struct trainer_config *config, const struct data *data,
                 struct engine *engine);
void trainer_fini(struct trainer *t);

/* Step number `step`, from 0. 0, or the errors of the engine. */
int trainer_step(struct trainer *t, uint64_t step, struct step_result *result);
/* Mean loss over some held-out batches, always the same ones. */
int trainer_evaluate(struct trainer *t, double *held_out);

#endif
