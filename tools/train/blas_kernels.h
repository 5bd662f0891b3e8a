/* SPDX-License-Identifier: Apache-2.0
 *
 * blas_kernels.h - OpenBLAS on one thread, with kernels for this processor. It is loaded where it is
 * used only: it makes threads and buffers as it is loaded, for which other commands have no use.
 */
#ifndef DP_TRAIN_BLAS_KERNELS_H
#define DP_TRAIN_BLAS_KERNELS_H

#include <cblas.h>

struct blas_kernels {
    __typeof__(cblas_sgemm) *sgemm;
    __typeof__(cblas_dgemm) *dgemm;
};

/* The first call of a process loads it. NULL: it cannot be loaded, and *why says why. */
const struct blas_kernels *blas_begin(const char **why);

/* The same where blas_begin has succeeded. */
const struct blas_kernels *blas_get(void);

#endif
