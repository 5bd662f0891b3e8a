/* SPDX-License-Identifier: Apache-2.0
 *
 * mlp_args.h - what `--model mlp-bn` takes of the command line.
 */
#ifndef DP_TRAIN_MLP_ARGS_H
#define DP_TRAIN_MLP_ARGS_H

#include "train/settings.h"

/* Check what was asked for and set the defaults of this model. false after one line that has said
 * what was wrong. */
bool mlp_args_take(struct settings *s);

#endif
