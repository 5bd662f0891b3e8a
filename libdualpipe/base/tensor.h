/* SPDX-License-Identifier: Apache-2.0
 *
 * tensor.h - shape, strides, size and place of a DLTensor.
 */
#ifndef DP_BASE_TENSOR_H
#define DP_BASE_TENSOR_H

#include <dlpack/dlpack.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DP_TENSOR_TEXT = 160, DP_TENSOR_MAX_NDIM = 64 };

/* What is wrong with it, for the end of a sentence ("has a negative extent"), or NULL. */
const char *dp_tensor_fault(const DLTensor *t);
/* Bytes of an element; 0 if they are not whole. */
size_t dp_tensor_element_bytes(const DLTensor *t);
int64_t dp_tensor_numel(const DLTensor *t);
size_t dp_tensor_bytes(const DLTensor *t); /* of all elements, without gaps */
char *dp_tensor_address(const DLTensor *t);
/* Strides in elements, computed if t leaves them out. */
void dp_tensor_strides(const DLTensor *t, int64_t *strides);
bool dp_tensor_compact(const DLTensor *t);
/* Whether its elements fill one block without gaps, in any order of the dimensions. */
bool dp_tensor_dense(const DLTensor *t);
/* Whether both place the elements of the same shape alike (strides of an extent of 1 do not count). */
bool dp_tensor_same_layout(const DLTensor *a, const DLTensor *b);
/* Whether the CPU reaches its memory. */
bool dp_tensor_on_host(const DLTensor *t);
/* float32, float64, bfloat16 or float16. */
bool dp_tensor_is_real(const DLTensor *t);
bool dp_tensor_same_dtype(const DLTensor *a, const DLTensor *b);
bool dp_tensor_same_shape(const DLTensor *a, const DLTensor *b);
/* "float32[4, 8]", in text[DP_TENSOR_TEXT], which is returned. */
const char *dp_tensor_text(const DLTensor *t, char *text);

#endif
