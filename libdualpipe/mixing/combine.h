/* SPDX-License-Identifier: Apache-2.0
 *
 * combine.h - sums of blocks of one element type; 16-bit types are added up in float32.
 */
#ifndef DP_MIXING_COMBINE_H
#define DP_MIXING_COMBINE_H

#include <dlpack/dlpack.h>
#include <stddef.h>

/* out[elements] = u a + v b, or u a where b is NULL; out may be a or b. */
void dp_combine(DLDataType type, size_t elements, void *out, const void *a, double u, const void *b,
                double v);
/* out += weight (a - b): where a and b are near each other, what is added is as exact as they are. */
void dp_add_difference(DLDataType type, size_t elements, void *out, double weight, const void *a,
                       const void *b);
/* Sum of squares of a - b, in double. */
double dp_squared_distance(DLDataType type, size_t elements, const void *a, const void *b);

#endif
