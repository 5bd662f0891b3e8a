/* SPDX-License-Identifier: Apache-2.0
 *
 * saved_mixing.h - the state of replicas that mix their weights. What a checkpoint has of them:
 *
 *      NAME                           the average of all replicas: the model that others read
 *      replica R/NAME                 the weights of one
 *      replica R stage S/mixer/...    its mixer's state, with what is in flight, and the optimizer's
 */
#ifndef DP_TRAIN_SAVED_MIXING_H
#define DP_TRAIN_SAVED_MIXING_H

#include "train/trainer.h"

#include <dualpipe/checkpoint.h>

enum { SAVED_MIXING_NAME = 112 };

struct saved_mixing {
    struct dp_named_tensor *tensors;
    int32_t count;
    char (*names)[SAVED_MIXING_NAME];
    real *average[DP_MAX_SLOTS]; /* of a slot's weights */
};

/* Collective, between steps: what this rank is the first to hold. The caller ends with
 * saved_mixing_fini, also after an error. Tensors last until the next step. Errors of mixer.h,
 * DP_ENOMEM. */
int saved_mixing_list(struct trainer *t, struct saved_mixing *out);
void saved_mixing_fini(struct saved_mixing *m);

/* Collective, before the first step: go on from the state in a checkpoint, of the same replicas,
 * stages and graph. */
int saved_mixing_read(struct trainer *t, const struct dp_checkpoint *c);

#endif
