/* SPDX-License-Identifier: Apache-2.0
 *
 * blas.h - matrix products by cuBLASLt, which is loaded at run time (libcublasLt.so.13 or .12).
 */
#ifndef DP_TRAIN_CUDA_BLAS_H
#define DP_TRAIN_CUDA_BLAS_H

#include "train/cuda/kernels.h"

#include <dualpipe/device.h>

#include <stdbool.h>

struct blas;

/* The device is to stay. DP_ENOENT where there is no such library, with the reason; DP_EIO. */
int blas_open(struct dp_device *dev, bool bf16, struct blas **out);
void blas_close(struct blas *b);
/* The product of product_args, queued in the stream (a CUstream), one of two at most. DP_EUNSUPPORTED
 * where cuBLASLt has no algorithm for this shape at this alignment: nothing is queued; DP_EIO. */
int blas_product(struct blas *b, const struct product_args *p, void *stream);

#endif
