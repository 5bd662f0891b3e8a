/* SPDX-License-Identifier: Apache-2.0
 *
 * blas_kernels.h - OpenBLAS on one thread, with kernels for this processor.
 */
#ifndef DP_TRAIN_BLAS_KERNELS_H
#define DP_TRAIN_BLAS_KERNELS_H

/* argv: of a command, whose name is argv[0] and that has done nothing yet. May begin the program
 * again. */
void blas_begin(int argc, char **argv);

#endif
