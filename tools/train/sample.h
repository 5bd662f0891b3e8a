/* SPDX-License-Identifier: Apache-2.0
 *
 * sample.h - let the trained model write.
 */
#ifndef DP_TRAIN_SAMPLE_H
#define DP_TRAIN_SAMPLE_H

#include "train/engine.h"

/* Collective: bring the weights to rank 0 and let it write text[count] there, byte by byte, each
 * drawn from what the model expects after the ones before. 0 or a negative errno. */
int sample_text(struct engine *e, size_t count, uint8_t *text);

#endif
