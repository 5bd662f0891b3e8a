/* SPDX-License-Identifier: Apache-2.0
 *
 * batch.h - the caller's whole batch, cut into equal micro-batches along one dimension. Along
 * dimension 0 a micro-batch is a view; along another one its rows are copied.
 *
 *      batch_dim 1, 3 micro-batches:   row 0  |aa|bb|cc|     micro-batch 1  |bb|
 *                                      row 1  |aa|bb|cc|                    |bb|
 */
#ifndef DP_PIPELINE_BATCH_H
#define DP_PIPELINE_BATCH_H

#include <dualpipe/device.h>
#include <dualpipe/stage.h>

/* How `count` micro-batches of `spec` lie in one tensor. */
struct dp_batch_cut {
    const struct dp_tensor_spec *spec;
    int dim, count;
};

/* Is `tensor` such a batch, in memory of `device`? DP_EINVAL: no tensor, strided, elsewhere, or an
 * extent that `count` does not divide; DP_EMISMATCH: another dtype or shape. `what` names it. */
int dp_batch_check(const struct dp_batch_cut *cut, const DLTensor *tensor,
                   const struct dp_device *device, const char *what);

/* Where a micro-batch begins that is a view. */
char *dp_batch_view(const struct dp_batch_cut *cut, const DLTensor *tensor, int mb);

int dp_batch_read(const struct dp_batch_cut *cut, const DLTensor *tensor, int mb, void *dst,
                  const struct dp_device_ops *ops, struct dp_device_stream *stream);
int dp_batch_write(const struct dp_batch_cut *cut, const DLTensor *tensor, int mb, const void *src,
                   const struct dp_device_ops *ops, struct dp_device_stream *stream);

/* The last dimension is contiguous, and so on up; NULL strides are that by definition. */
bool dp_tensor_is_contiguous(const DLTensor *tensor);

#endif
