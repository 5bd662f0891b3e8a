/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_cudart.c - the few functions of CUDA's runtime and driver that the preload library
 * interposes or calls, on host memory: pages are taken in the calling thread, as the real driver
 * does, and the memory policy at that moment is recorded. cudaHostAlloc goes through
 * cuMemHostAlloc, by the global name.
 */
#include "config.h" /* GNU extensions: MAP_ANONYMOUS, syscall */

#include "preload/fake_cudart.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static int policy_mode = -1;
static bool fails;

EXPORT int fake_policy_of_last_call(void)
{
    return policy_mode;
}

EXPORT void fake_fail_next(void)
{
    fails = true;
}

static bool take_failure(void)
{
    const bool failed = fails;

    fails = false;
    return failed;
}

EXPORT int cudaGetDevice(int *device)
{
    *device = 0;
    return 0;
}

EXPORT int cuCtxGetDevice(int *device)
{
    return cudaGetDevice(device);
}

EXPORT int cudaDeviceGetPCIBusId(char *out, int len, int device)
{
    snprintf(out, (size_t)len, "0000:3B:%02X.0", (unsigned)device);
    return 0;
}

EXPORT int cuDeviceGetPCIBusId(char *out, int len, int device)
{
    return cudaDeviceGetPCIBusId(out, len, device);
}

EXPORT int cuMemHostAlloc(void **out, size_t bytes, unsigned flags)
{
    (void)flags;
    syscall(SYS_get_mempolicy, &policy_mode, NULL, 0, NULL, 0);
    if (take_failure())
        return 2;
    *out = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(*out, 0, bytes);
    return 0;
}

EXPORT int cuMemAllocHost_v2(void **out, size_t bytes)
{
    return cuMemHostAlloc(out, bytes, 0);
}

EXPORT int cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags)
{
    (void)at, (void)bytes, (void)flags;
    syscall(SYS_get_mempolicy, &policy_mode, NULL, 0, NULL, 0);
    return take_failure() ? 2 : 0;
}

EXPORT int cuMemAllocHost(void **out, unsigned bytes)
{
    return cuMemHostAlloc(out, bytes, 0);
}

EXPORT int cuMemHostRegister(void *at, size_t bytes, unsigned flags)
{
    return cuMemHostRegister_v2(at, bytes, flags);
}

EXPORT int cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    return cuMemHostAlloc(out, bytes, flags);
}

EXPORT int cudaMallocHost(void **out, size_t bytes)
{
    return cuMemHostAlloc(out, bytes, 0);
}

EXPORT int cudaHostRegister(void *at, size_t bytes, unsigned flags)
{
    return cuMemHostRegister_v2(at, bytes, flags);
}

EXPORT int cudaMemcpy(void *to, const void *from, size_t bytes, int kind)
{
    (void)kind;
    if (bytes)
        memcpy(to, from, bytes);
    return take_failure() ? 1 : 0;
}

EXPORT int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream)
{
    (void)stream;
    return cudaMemcpy(to, from, bytes, kind);
}

EXPORT int cudaMemcpy_ptds(void *to, const void *from, size_t bytes, int kind)
{
    return cudaMemcpy(to, from, bytes, kind);
}

EXPORT int cudaMemcpyAsync_ptsz(void *to, const void *from, size_t bytes, int kind, void *stream)
{
    return cudaMemcpyAsync(to, from, bytes, kind, stream);
}
