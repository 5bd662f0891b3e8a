/* SPDX-License-Identifier: Apache-2.0
 *
 * tensor.h - views, copies and new tensors for split and merge.
 */
#ifndef DP_MICROBATCH_TENSOR_H
#define DP_MICROBATCH_TENSOR_H

#include "base/tensor.h"
#include "microbatch/arena.h"

#include <dualpipe/microbatch.h>

/* dp_tensor_window of a tensor, dimension and window known to be good. */
void dp_tensor_view(const DLTensor *t, int dim, int64_t begin, int64_t size, int64_t *dims,
                    DLTensor *out);
/* A compact tensor in host memory of the arena, its elements not set; NULL: no memory. */
DLTensor *dp_tensor_new(struct dp_arena *arena, DLDataType dtype, int ndim, const int64_t *shape);

/* Both on the host, of the same shape, elements of the same whole number of bytes. */
void dp_tensor_copy_elements(const DLTensor *dst, const DLTensor *src);
bool dp_tensor_same_elements(const DLTensor *a, const DLTensor *b);

#endif
