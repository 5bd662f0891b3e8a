/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_api.h - what NCCL calls of CUDA's runtime and driver, declared in our own words: names,
 * numbers and layouts as NVIDIA's manuals give them, no more than is needed. Errors are plain int,
 * 0 is success.
 */
#ifndef DP_TESTS_SIMCUDA_CUDA_API_H
#define DP_TESTS_SIMCUDA_CUDA_API_H

#include <stddef.h>
#include <stdint.h>

#define SIM_EXPORT __attribute__((visibility("default")))

enum sim_error {
    SIM_INVALID_VALUE = 1,
    SIM_OUT_OF_MEMORY = 2,
    SIM_INVALID_DEVICE = 101,
    SIM_CANNOT_MAP = 205,
    SIM_NOT_READY = 600,
    SIM_NOT_REGISTERED = 713,
    SIM_CAPTURE_UNSUPPORTED = 900,
    SIM_NOT_SUPPORTED = 801,
};

struct sim_stream;
struct sim_event;
/* cudaStreamLegacy, which 0 and 1 mean, and cudaStreamPerThread. */
#define SIM_STREAM_LEGACY     ((struct sim_stream *)1)
#define SIM_STREAM_PER_THREAD ((struct sim_stream *)2)

/* cudaPointerAttributes: what all releases of CUDA have. */
struct sim_pointer_attributes {
    enum { SIM_UNREGISTERED, SIM_HOST, SIM_DEVICE } type;
    int device;
    void *device_pointer, *host_pointer;
};

/* cudaDeviceProp as far as NCCL reads it. */
struct sim_properties {
    char name[256];
    char skipped_uuid[32];
    size_t memory_bytes;
    char skipped_sizes[64];
    int major, minor;
};
_Static_assert(offsetof(struct sim_properties, memory_bytes) == 288, "totalGlobalMem");
_Static_assert(offsetof(struct sim_properties, major) == 360, "major");

/* cudaFuncAttributes as far as NCCL reads it. */
struct sim_function_attributes {
    size_t shared_bytes, const_bytes, local_bytes;
    int max_threads_per_block, registers, ptx_version, binary_version, caches,
        max_dynamic_shared_bytes;
};

struct sim_ipc_handle {
    char bytes[64];
};

/* CUlaunchConfig. */
struct sim_launch {
    unsigned grid[3], block[3], shared_bytes;
    struct sim_stream *stream;
    void *attributes;
    unsigned attribute_count;
};
_Static_assert(offsetof(struct sim_launch, stream) == 32, "hStream");

/* CU_LAUNCH_PARAM_*: how the arguments of a kernel are given. */
enum { SIM_PARAM_END = 0, SIM_PARAM_BUFFER = 1, SIM_PARAM_BYTES = 2 };

/* cudaDeviceAttr and CUdevice_attribute share their numbers. */
enum sim_attribute {
    SIM_MAX_THREADS_PER_BLOCK = 1,
    SIM_MAX_SHARED_PER_BLOCK = 8,
    SIM_WARP_SIZE = 10,
    SIM_CLOCK_KHZ = 13,
    SIM_MULTIPROCESSORS = 16,
    SIM_CAN_MAP_HOST_MEMORY = 19,
    SIM_UNIFIED_ADDRESSING = 41,
    SIM_MAJOR = 75,
    SIM_MINOR = 76,
    SIM_MAX_SHARED_PER_MULTIPROCESSOR = 81,
    SIM_HOST_NATIVE_ATOMICS = 86,
    SIM_MAX_SHARED_OPTIN = 97,
    SIM_GPUDIRECT_WITH_VMM = 110,
    SIM_MEMORY_POOLS = 115,
    SIM_GPUDIRECT = 116,
    SIM_FLUSH_OPTIONS = 117,
    SIM_DMABUF = 124,
};

/* What the test program calls; the rest is called by NCCL alone, through redirected functions. */
SIM_EXPORT int cudaSetDevice(int device);
SIM_EXPORT int cudaMalloc(void **out, size_t bytes);
SIM_EXPORT int cudaFree(void *ptr);
SIM_EXPORT int cudaMemcpy(void *dst, const void *src, size_t bytes, int kind);
SIM_EXPORT int cudaStreamCreateWithFlags(struct sim_stream **out, unsigned flags);
SIM_EXPORT int cudaStreamDestroy(struct sim_stream *stream);
SIM_EXPORT int cudaStreamQuery(struct sim_stream *stream);
SIM_EXPORT int cudaStreamSynchronize(struct sim_stream *stream);

/* What sim_driver.c has under other names. */
SIM_EXPORT int cudaGetDeviceCount(int *out);
SIM_EXPORT int cudaDeviceGetPCIBusId(char *out, int len, int device);
SIM_EXPORT int cuCtxGetCurrent(void **out);
SIM_EXPORT int cuCtxSetCurrent(void *context);
SIM_EXPORT int cudaEventElapsedTime(float *out_ms, struct sim_event *from, struct sim_event *to);
SIM_EXPORT int cudaHostAlloc(void **out, size_t bytes, unsigned flags);
SIM_EXPORT int cudaFreeHost(void *ptr);
SIM_EXPORT int cudaHostRegister(void *ptr, size_t bytes, unsigned flags);
SIM_EXPORT int cudaHostUnregister(void *ptr);
SIM_EXPORT int cudaMemcpyAsync(void *dst, const void *src, size_t bytes, int kind,
                               struct sim_stream *stream);
SIM_EXPORT int cudaMemsetAsync(void *dst, int value, size_t bytes, struct sim_stream *stream);
SIM_EXPORT int cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
SIM_EXPORT int cudaStreamCreateWithPriority(struct sim_stream **out, unsigned flags, int priority);
SIM_EXPORT int cudaStreamWaitEvent(struct sim_stream *stream, struct sim_event *event,
                                   unsigned flags);
SIM_EXPORT int cudaLaunchHostFunc(struct sim_stream *stream, void (*run)(void *user), void *user);
SIM_EXPORT int cudaEventCreateWithFlags(struct sim_event **out, unsigned flags);
SIM_EXPORT int cudaEventDestroy(struct sim_event *event);
SIM_EXPORT int cudaEventRecord(struct sim_event *event, struct sim_stream *stream);
SIM_EXPORT int cudaEventQuery(struct sim_event *event);

/* For tests: from now on the function is counted anew, and its call of that number (1 is the next;
 * 0: none) returns the status and does nothing; how often it was called. Only functions that begin
 * with SIM_BEGIN. `name` lives on. */
SIM_EXPORT void sim_fail(const char *name, int call, int status);
SIM_EXPORT int sim_calls(const char *name);

/* For tests: count from now on how often the program asked or waited for work through the driver, and
 * then queued more (in whatever thread): that many times the device may have run dry. What it waits for
 * after the last of the work does not count. */
SIM_EXPORT void sim_count_waits(void);
SIM_EXPORT int sim_waits_inside(void);

/* What the tests of the preload library call. */
SIM_EXPORT int cudaMallocManaged(void **out, size_t bytes, unsigned flags);
SIM_EXPORT int cudaDeviceReset(void);
SIM_EXPORT int cuCtxDestroy_v2(void *context);
SIM_EXPORT int cudaDeviceSynchronize(void);
SIM_EXPORT int cudaStreamBeginCapture(struct sim_stream *stream, int mode);
SIM_EXPORT int cudaStreamEndCapture(struct sim_stream *stream, void **graph);
SIM_EXPORT int cudaMemcpy_ptds(void *dst, const void *src, size_t bytes, int kind);
SIM_EXPORT int cudaMemcpyAsync_ptsz(void *dst, const void *src, size_t bytes, int kind,
                                    struct sim_stream *stream);
SIM_EXPORT int cuMemcpyHtoD_v2(uintptr_t dst, const void *src, size_t bytes);
SIM_EXPORT int cuMemcpyHtoD_v2_ptds(uintptr_t dst, const void *src, size_t bytes);
SIM_EXPORT int cuMemcpyHtoDAsync_v2(uintptr_t dst, const void *src, size_t bytes,
                                    struct sim_stream *stream);
SIM_EXPORT int cuMemcpyHtoDAsync_v2_ptsz(uintptr_t dst, const void *src, size_t bytes,
                                         struct sim_stream *stream);
SIM_EXPORT int cuMemcpyDtoH_v2(void *dst, uintptr_t src, size_t bytes);
SIM_EXPORT int cuMemcpyDtoH_v2_ptds(void *dst, uintptr_t src, size_t bytes);
SIM_EXPORT int cuMemcpyDtoHAsync_v2(void *dst, uintptr_t src, size_t bytes,
                                    struct sim_stream *stream);
SIM_EXPORT int cuMemcpyDtoHAsync_v2_ptsz(void *dst, uintptr_t src, size_t bytes,
                                         struct sim_stream *stream);
SIM_EXPORT int cuMemcpy(uintptr_t dst, uintptr_t src, size_t bytes);
SIM_EXPORT int cuMemcpy_ptds(uintptr_t dst, uintptr_t src, size_t bytes);
SIM_EXPORT int cuMemcpyAsync(uintptr_t dst, uintptr_t src, size_t bytes, struct sim_stream *stream);
SIM_EXPORT int cuMemcpyAsync_ptsz(uintptr_t dst, uintptr_t src, size_t bytes,
                                  struct sim_stream *stream);
SIM_EXPORT int cudaEventSynchronize(struct sim_event *event);
SIM_EXPORT int cudaStreamIsCapturing(struct sim_stream *stream, int *out);
SIM_EXPORT int cudaThreadExchangeStreamCaptureMode(int *mode);

/* Make the libnccl that holds this address use the functions of this library from now on; before
 * anything else of it is called. 0, or -1 after saying why not. */
SIM_EXPORT int sim_attach(const void *in_libnccl);
/* NULL if the kernels of this version of NCCL can be simulated, else those whose can, in words. */
SIM_EXPORT const char *sim_known_instead(int nccl_version);

#endif
