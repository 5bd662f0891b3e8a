/* SPDX-License-Identifier: Apache-2.0
 *
 * use_fake_cuda.h - point the library at the stand-in, from a test program.
 */
#ifndef DP_TESTS_USE_FAKE_CUDA_H
#define DP_TESTS_USE_FAKE_CUDA_H

#include "fakes/fake_cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

/* From now on dp_device_cuda_open finds the stand-in. NULL, with the reason printed, if it is not
 * there. */
static inline const struct fake_cuda *use_fake_cuda(void)
{
    const char *build = getenv("DP_TOP_BUILDDIR");
    char file[1024];

    snprintf(file, sizeof(file), "%s/tests/fakes/.libs/fake_cuda.so", build ? build : ".");
    void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        printf("no stand-in for CUDA: %s\n", dlerror());
        return NULL;
    }
    setenv("DUALPIPE_DEVICE_CUDA_LIBRARY", file, 1);
    return dlsym(handle, "fake_cuda");
}

#endif
