/* SPDX-License-Identifier: Apache-2.0
 *
 * internal.h - what other layers of the library call of this one, and its users do not.
 */
#ifndef DP_MICROBATCH_INTERNAL_H
#define DP_MICROBATCH_INTERNAL_H

#include <dualpipe/microbatch.h>

/* Copy every element of src to dst: the same shape and dtype, any strides, no overlap. Needs memory
 * that the CPU reaches (host, pinned, managed), else DP_EUNSUPPORTED. DP_EINVAL for malformed
 * tensors, DP_EMISMATCH if shape or dtype differ. */
int dp_tensor_copy(const DLTensor *dst, const DLTensor *src);
/* View of rows begin .. begin + size - 1 of dimension `dim` (negative: from the end): the same
 * memory, the same strides, nothing allocated. dims[2 * t->ndim] holds the view's shape and strides
 * and must live as long as it; strides is NULL if the view is compact. The view begins at another
 * data pointer where the device's memory has addresses (CPU, CUDA, ROCm), at another byte_offset
 * where it has handles. DP_EINVAL for a malformed tensor, a bad dim or window; DP_EUNSUPPORTED if
 * elements are not whole bytes. */
int dp_tensor_window(const DLTensor *t, int dim, int64_t begin, int64_t size,
                     int64_t *dims, DLTensor *out);

#endif
