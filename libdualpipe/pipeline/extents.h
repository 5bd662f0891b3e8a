/* SPDX-License-Identifier: Apache-2.0
 *
 * extents.h - borders whose tensors are smaller in some micro-batches than declared: uneven
 * micro-batches, shorter sequences.
 *
 *      declared    max_extents {4, 512}     tensor [4, 512, 64], extent {1, 2, 0}
 *      in a step   extents {3, 384}         tensor [3, 384, 64]
 */
#ifndef DP_PIPELINE_EXTENTS_H
#define DP_PIPELINE_EXTENTS_H

#include <dualpipe/pipeline.h>

/* The border as it is with these extents: a dimension that follows one is scaled by it. */
void dp_extents_apply(const struct dp_border *declared, const int64_t *max, const int64_t *now,
                      struct dp_border *out);

/* DP_EINVAL: more than declared, or one that a dimension cannot be scaled by exactly. */
int dp_extents_check(const struct dp_border *declared, const int64_t *max, const int64_t *now,
                     int32_t mb_global);

/* Known extents of a spec, and a maximum for each. DP_EINVAL. */
int dp_extents_check_spec(const struct dp_tensor_spec *spec, const int64_t *max, const char *what);

#endif
