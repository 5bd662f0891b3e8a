/* SPDX-License-Identifier: Apache-2.0
 *
 * use_sim_cuda.h - point the library at the simulated CUDA (tests/simcuda), from a test program; with
 * DP_TEST_GPU set it stays with the GPU's.
 */
#ifndef DP_TESTS_USE_SIM_CUDA_H
#define DP_TESTS_USE_SIM_CUDA_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* NULL, or why the program is to be skipped. */
static inline const char *use_sim_cuda(void)
{
    const char *build = getenv("DP_TOP_BUILDDIR");
    char file[1024];

#ifdef __SANITIZE_THREAD__
    return "the thread sanitizer does not know the stacks that simulated threads have";
#endif
    snprintf(file, sizeof(file), "%s/tests/simcuda/.libs/libsimcuda.so", build ? build : ".");
    if (getenv("DP_TEST_GPU"))
        return NULL;
    if (access(file, R_OK))
        return "no simulated CUDA in this build";
    setenv("DUALPIPE_DEVICE_CUDA_LIBRARY", file, 1);
    return NULL;
}

#endif
