/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_cudart.h - CUDA's declarations, as far as the fake runtime has them, and what tests ask of
 * it.
 */
#ifndef DP_TESTS_PRELOAD_FAKE_CUDART_H
#define DP_TESTS_PRELOAD_FAKE_CUDART_H

#include <stdbool.h>
#include <stddef.h>

int cudaGetDevice(int *device);
int cudaDeviceGetPCIBusId(char *out, int len, int device);
int cudaHostAlloc(void **out, size_t bytes, unsigned flags);
int cudaMallocHost(void **out, size_t bytes);
int cudaHostRegister(void *at, size_t bytes, unsigned flags);
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind);
int cudaMemcpy_ptds(void *to, const void *from, size_t bytes, int kind);
int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream);
int cudaMemcpyAsync_ptsz(void *to, const void *from, size_t bytes, int kind, void *stream);
int cuCtxGetDevice(int *device);
int cuDeviceGetPCIBusId(char *out, int len, int device);
int cuMemHostAlloc(void **out, size_t bytes, unsigned flags);
int cuMemAllocHost_v2(void **out, size_t bytes);
int cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags);
int cuMemAllocHost(void **out, unsigned bytes);
int cuMemHostRegister(void *at, size_t bytes, unsigned flags);

/* MPOL_* of the calling thread when pages were last taken. */
int fake_policy_of_last_call(void);
/* The next call fails: 2 of an allocation or registration, 1 of a copy. */
void fake_fail_next(void);

#endif
