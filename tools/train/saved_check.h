/* SPDX-License-Identifier: Apache-2.0
 *
 * saved_check.h - whether a checkpoint of `dualpipe train` has all that --resume reads under the layout
 * that was saved.
 */
#ifndef DP_TRAIN_SAVED_CHECK_H
#define DP_TRAIN_SAVED_CHECK_H

#include <dualpipe/checkpoint.h>

/* Each fault: "tensor 'head/mean' is missing". 0, or errors of schedule.h and DP_ENOMEM. */
int saved_check(const struct dp_checkpoint *c, const char *path,
                void (*fault)(void *user, const char *sentence), void *user);

#endif
