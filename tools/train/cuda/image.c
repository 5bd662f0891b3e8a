/* SPDX-License-Identifier: Apache-2.0 */
#include "train/cuda/cuda_rank.h"

#include <stddef.h>

#ifdef CUDA_IMAGE_FILE
__asm__(".section .rodata\n"
        ".balign 64\n"
        ".globl dualpipe_cuda_image\n"
        ".hidden dualpipe_cuda_image\n"
        "dualpipe_cuda_image:\n"
        ".incbin \"" CUDA_IMAGE_FILE "\"\n"
        ".byte 0\n"
        ".previous\n");
extern const char dualpipe_cuda_image[];
const void *const cuda_image = dualpipe_cuda_image;
#else
const void *const cuda_image = NULL;
#endif
