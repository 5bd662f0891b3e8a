/* SPDX-License-Identifier: Apache-2.0
 *
 * mlp_args.h - what `--model mlp-bn` takes of the command line.
 */
#ifndef DP_TRAIN_MLP_ARGS_H
#define DP_TRAIN_MLP_ARGS_H

#include "train/settings.h"

/* The values of --batch-norm, --batch-norm-variance and --batch-norm-over, each list's first one the
 * default. */
extern const char *const mlp_norm_forms[], *const mlp_norm_variances[], *const mlp_norm_scopes[];

/* Check what was asked for and set the defaults of this model. false after one line that has said
 * what was wrong. */
bool mlp_args_take(struct settings *s);

/* The form of its batch normalisation, from --batch-norm and its like, once the schedule is known; of
 * another model: that they are not there. false after one line. */
bool mlp_args_take_norm(struct settings *s);

#endif
