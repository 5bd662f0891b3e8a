/* SPDX-License-Identifier: Apache-2.0
 *
 * reduce.h - element-wise sum, minimum and maximum. 16-bit values are widened to float32, reduced
 * as such and rounded once, at the end; the others are reduced as they are.
 */
#ifndef DP_COMM_REDUCE_H
#define DP_COMM_REDUCE_H

#include "comm/comm_ops.h"

/* Of one type and one operation. `wide` is an array of the type that sums are kept in: float for
 * the 16-bit types, otherwise the type itself. Buffers do not overlap unless a comment says so. */
struct dp_reducer {
    size_t bytes, wide_bytes; /* of an element */
    void (*widen)(void *wide, const void *from, size_t count);
    /* wide = wide op from. */
    void (*add)(void *wide, const void *from, size_t count);
    /* out = a op b, all wide; out may be a or b. The order counts for NaNs and for -0 only. */
    void (*combine)(void *out, const void *a, const void *b, size_t count);
    void (*round)(void *out, const void *wide, size_t count);
};

/* NULL: there is none for this type. */
const struct dp_reducer *dp_reducer_find(DLDataType type, enum dp_reduction op);

#endif
