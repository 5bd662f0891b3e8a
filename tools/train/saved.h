/* SPDX-License-Identifier: Apache-2.0
 *
 * saved.h - the state of a training job in a checkpoint: weights, the running statistics of batch
 * normalisation and the optimizer's state by their logical names, so that it is found again
 * whichever rank held it. Random numbers, batches and the learning rate follow from the options and
 * the step, which the checkpoint's text has (resume.h).
 */
#ifndef DP_TRAIN_SAVED_H
#define DP_TRAIN_SAVED_H

#include "train/trainer.h"

/* Collective, between steps: write the checkpoint of `step` steps below `dir`, with `text`. Each
 * rank writes what it is the first to hold, under a name that no file has yet; the index, which
 * makes it a checkpoint, comes last. So at any moment the last whole one stays whole. 0, or errors
 * of checkpoint.h and comm.h. */
int saved_write(struct trainer *t, const char *dir, uint64_t step, const char *text);

/* Read the state of all stages here from the checkpoint at `path`, of which `step` steps were done.
 * Errors of checkpoint.h: DP_ENOENT for a tensor that is missing, DP_EMISMATCH for one of another
 * model, DP_EINVAL for damage. */
int saved_read(struct trainer *t, const char *path, uint64_t step);

#endif
