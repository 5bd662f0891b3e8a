/* SPDX-License-Identifier: Apache-2.0
 *
 * sample.h - let the trained model write.
 */
#ifndef DP_TRAIN_SAMPLE_H
#define DP_TRAIN_SAMPLE_H

#include "train/gpt_layers.h"

#include <dualpipe/checkpoint.h>

/* What is to be written. Random numbers follow from the model's seed. */
struct sample_spec {
    size_t count;       /* bytes */
    double temperature; /* below 1 likely bytes become likelier; 0: always the likeliest */
    const char *prompt; /* what the text goes on from; NULL: nothing */
    const char *path;   /* of a checkpoint with the weights; NULL: they are in */
    const struct dp_named_tensor *tensors; /* [tensor_count], by their names in checkpoints */
    int32_t tensor_count;
};

/* Write text[spec->count], byte by byte, each drawn from what the model expects after the ones before.
 * In this process alone. Errors of checkpoint.h, DP_ENOMEM. */
int sample_write(const struct gpt_config *config, const struct sample_spec *spec, uint8_t *text);

#endif
