/* SPDX-License-Identifier: Apache-2.0
 *
 * sample.h - let the trained model write.
 */
#ifndef DP_TRAIN_SAMPLE_H
#define DP_TRAIN_SAMPLE_H

#include "train/engine.h"

#include <dualpipe/checkpoint.h>

/* What is to be written. Random numbers follow from the model's seed. */
struct sample_spec {
    size_t count;       /* bytes */
    double temperature; /* below 1 likely bytes become likelier; 0: always the likeliest */
    const char *prompt; /* what the text goes on from; NULL: nothing */
};

/* Collective: bring the weights to rank 0 and let it write text[spec->count] there, byte by byte,
 * each drawn from what the model expects after the ones before. 0 or a negative errno. */
int sample_text(struct engine *e, const struct sample_spec *spec, uint8_t *text);

/* The same with parameters by their names in checkpoints, in this process alone. DP_ENOMEM. */
int sample_tensors(const struct gpt_config *config, const struct dp_named_tensor *tensors,
                   int32_t count, const struct sample_spec *spec, uint8_t *text);

/* The same with the weights of the checkpoint at `path`, in this process alone. Errors of
 * checkpoint.h, DP_ENOMEM. */
int sample_saved(const struct gpt_config *config, const char *path, const struct sample_spec *spec,
                 uint8_t *text);

#endif
