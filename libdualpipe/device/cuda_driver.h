/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_driver.h - the functions of libcuda.so.1 that the CUDA device calls, looked up at run time
 * (cuda.h gives their types and maps names to versions), and its errors in our vocabulary.
 */
#ifndef DP_DEVICE_CUDA_DRIVER_H
#define DP_DEVICE_CUDA_DRIVER_H

#include <dualpipe/dualpipe.h>

#include <cuda.h>

/* X(name) for every function; the name may be a macro of cuda.h for a versioned one. */
#define DP_CUDA_FUNCTIONS(X)                                                                       \
    X(cuCtxGetStreamPriorityRange)                                                                 \
    X(cuCtxPopCurrent)                                                                             \
    X(cuCtxPushCurrent)                                                                            \
    X(cuDeviceGet)                                                                                 \
    X(cuDeviceGetCount)                                                                            \
    X(cuDeviceGetPCIBusId)                                                                         \
    X(cuDevicePrimaryCtxRelease)                                                                   \
    X(cuDevicePrimaryCtxRetain)                                                                    \
    X(cuEventCreate)                                                                               \
    X(cuEventDestroy)                                                                              \
    X(cuEventQuery)                                                                                \
    X(cuEventRecord)                                                                               \
    X(cuGetErrorName)                                                                              \
    X(cuGetErrorString)                                                                            \
    X(cuInit)                                                                                      \
    X(cuMemAlloc)                                                                                  \
    X(cuMemFree)                                                                                   \
    X(cuMemFreeHost)                                                                               \
    X(cuMemHostAlloc)                                                                              \
    X(cuMemHostRegister)                                                                           \
    X(cuMemHostUnregister)                                                                         \
    X(cuMemcpyAsync)                                                                               \
    X(cuMemsetD8Async)                                                                             \
    X(cuStreamCreateWithPriority)                                                                  \
    X(cuStreamDestroy)                                                                             \
    X(cuStreamQuery)                                                                               \
    X(cuStreamWaitEvent)

/* Those that an old driver, or a stand-in for one, may lack: for kernels, graphs and times. */
#define DP_CUDA_OPTIONAL_FUNCTIONS(X)                                                              \
    X(cuEventElapsedTime)                                                                          \
    X(cuFuncSetAttribute)                                                                          \
    X(cuGraphDestroy)                                                                              \
    X(cuGraphExecDestroy)                                                                          \
    X(cuGraphInstantiateWithFlags)                                                                 \
    X(cuGraphLaunch)                                                                               \
    X(cuLaunchKernel)                                                                              \
    X(cuModuleGetFunction)                                                                         \
    X(cuModuleLoadData)                                                                            \
    X(cuModuleUnload)                                                                              \
    X(cuStreamBeginCapture)                                                                        \
    X(cuStreamEndCapture)                                                                          \
    X(cuStreamIsCapturing)

struct dp_cuda_driver {
    int ordinal; /* of the device that sentences are about */
#define DP_CUDA_MEMBER(name) __typeof__(&name) name;
    DP_CUDA_FUNCTIONS(DP_CUDA_MEMBER)
    DP_CUDA_OPTIONAL_FUNCTIONS(DP_CUDA_MEMBER) /* NULL in a driver that lacks them */
#undef DP_CUDA_MEMBER
    /* The same, cuStreamWaitValue32_v2 and cuStreamWriteValue32_v2, also where cuda.h is so old that it
     * gives these names to the first versions, which drivers refuse as a rule. */
    __typeof__(&cuStreamWaitValue32) wait_value;
    __typeof__(&cuStreamWriteValue32) write_value;
};

/* Load `library` (NULL: libcuda.so.1) and initialise it. It stays loaded: it has threads of its
 * own. DP_ENODEV with the reason. */
int dp_cuda_driver_load(const char *library, int ordinal, struct dp_cuda_driver *out);

/* 0 for CUDA_SUCCESS; else the error of ours that is nearest, and a sentence: the device, what it
 * was about, CUDA's name for the failure and its explanation. */
int dp_cuda_check(const struct dp_cuda_driver *cu, CUresult result, const char *fmt, ...)
    DP_PRINTF(3, 4);

/* Until test(arg) is not DP_EAGAIN: what it is; or timeout_ns are over: DP_ETIMEDOUT. */
int dp_cuda_poll(int (*test)(void *arg), void *arg, int64_t timeout_ns);

#endif
