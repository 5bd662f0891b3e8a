/* SPDX-License-Identifier: Apache-2.0
 *
 * image.h - the kernels as nvcc compiled them into this program.
 */
#ifndef DP_TRAIN_CUDA_IMAGE_H
#define DP_TRAIN_CUDA_IMAGE_H

/* A fatbin; NULL: configure found no nvcc. */
extern const void *const cuda_image;
/* For which devices, in words. */
extern const char *const cuda_image_architectures;

#endif
