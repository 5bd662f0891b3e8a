/* SPDX-License-Identifier: Apache-2.0
 *
 * combine.h - sums of blocks of one element type; 16-bit types are added up in float32.
 */
#ifndef DP_MIXING_COMBINE_H
#define DP_MIXING_COMBINE_H

#include <dlpack/dlpack.h>
#include <stddef.h>

/* out[elements] = sum of weights[k] * in[k][elements], in the order of k; out may be one of the in. */
void dp_combine(DLDataType type, size_t elements, void *out, const void *const *in,
                const double *weights, int count);
/* out += weight (a - b): where a and b are near each other, what is added is as exact as they are. */
void dp_add_difference(DLDataType type, size_t elements, void *out, double weight, const void *a,
                       const void *b);
/* Sum of squares of a - b, in double. */
double dp_squared_distance(DLDataType type, size_t elements, const void *a, const void *b);
/* x[elements] *= factor */
void dp_scale_block(DLDataType type, size_t elements, void *x, double factor);

#endif
