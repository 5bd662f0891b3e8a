/* SPDX-License-Identifier: Apache-2.0
 *
 * bfloat16.h - what --dtype bf16 means on the CPU: layers compute in reals, with weights that were
 * rounded to bfloat16, and their gradients are bfloat16 sums. The weights themselves, those that the
 * optimizer updates, are reals.
 */
#ifndef DP_TRAIN_BFLOAT16_H
#define DP_TRAIN_BFLOAT16_H

#include "train/ops.h"

#include <stdint.h>

void bfloat16_load(size_t count, const uint16_t *from, real *to);

#endif
