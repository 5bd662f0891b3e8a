/* SPDX-License-Identifier: Apache-2.0
 *
 * tensor.h - what split and merge ask of a DLTensor.
 */
#ifndef DP_MICROBATCH_TENSOR_H
#define DP_MICROBATCH_TENSOR_H

#include "microbatch/region.h"

#include <dualpipe/microbatch.h>

enum { DP_TENSOR_TEXT = 160 };

/* What is wrong with it, for the end of a sentence ("has a negative extent"), or NULL. */
const char *dp_tensor_fault(const DLTensor *t);
/* Bytes of an element; 0 if they are not whole. */
size_t dp_tensor_element_bytes(const DLTensor *t);
int64_t dp_tensor_numel(const DLTensor *t);
char *dp_tensor_address(const DLTensor *t);
/* Strides in elements, computed if t leaves them out. */
void dp_tensor_strides(const DLTensor *t, int64_t *strides);
bool dp_tensor_compact(const DLTensor *t);
/* Whether the CPU reaches its memory. */
bool dp_tensor_on_host(const DLTensor *t);
bool dp_tensor_same_dtype(const DLTensor *a, const DLTensor *b);
bool dp_tensor_same_shape(const DLTensor *a, const DLTensor *b);
/* "float32[4, 8]", in text[DP_TENSOR_TEXT], which is returned. */
const char *dp_tensor_text(const DLTensor *t, char *text);

/* dp_tensor_window of a tensor, dimension and window known to be good. */
void dp_tensor_view(const DLTensor *t, int dim, int64_t begin, int64_t size, int64_t *dims,
                    DLTensor *out);
/* A compact tensor in host memory of the region, its elements not set; NULL: no memory. */
DLTensor *dp_tensor_new(struct dp_region *region, DLDataType dtype, int ndim, const int64_t *shape);

/* Both on the host, of the same shape, elements of the same whole number of bytes. */
void dp_tensor_copy_elements(const DLTensor *dst, const DLTensor *src);
bool dp_tensor_same_elements(const DLTensor *a, const DLTensor *b);

#endif
