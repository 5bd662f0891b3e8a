/* SPDX-License-Identifier: Apache-2.0
 *
 * sim_driver.c - the driver's functions that libdualpipe's CUDA device calls, under the names of
 * libcuda.so.1: what the runtime has under other names. One context, current everywhere.
 */
#include "simcuda/sim.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

/* A program that knows nothing of the simulation loads NCCL itself, later: by then it is attached. */
static void attach_nccl(void)
{
    const char *file = getenv("SIMCUDA_NCCL");
    void *nccl = file ? dlopen(file, RTLD_NOW | RTLD_LOCAL) : NULL;
    const void *inside = nccl ? dlsym(nccl, "ncclGetVersion") : NULL;

    if (file && (!inside || sim_attach(inside)))
        sim_die("SIMCUDA_NCCL=%s: cannot be attached", file);
}

SIM_EXPORT int cuInit(unsigned flags)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)flags;
    pthread_once(&once, attach_nccl);
    return 0;
}

SIM_EXPORT int cuDeviceGetCount(int *out)
{
    return cudaGetDeviceCount(out);
}

SIM_EXPORT int cuDeviceGetPCIBusId(char *out, int len, int device)
{
    return cudaDeviceGetPCIBusId(out, len, device);
}

/* ---- contexts -------------------------------------------------------------------------------- */

SIM_EXPORT int cuDevicePrimaryCtxRetain(void **out, int device)
{
    (void)device;
    return cuCtxGetCurrent(out);
}

/* PyTorch asks whether there is one before it makes one. */
SIM_EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *is_active)
{
    (void)device;
    *flags = 0;
    *is_active = 1;
    return 0;
}

SIM_EXPORT int cuDevicePrimaryCtxRelease_v2(int device)
{
    (void)device;
    return 0;
}

SIM_EXPORT int cuCtxPushCurrent_v2(void *context)
{
    return cuCtxSetCurrent(context);
}

SIM_EXPORT int cuCtxPopCurrent_v2(void **out)
{
    return cuCtxGetCurrent(out);
}

/* It waits for no stream, as a driver may. Memory that was registered in it is not any more. */
SIM_EXPORT int cuCtxDestroy_v2(void *context)
{
    (void)context;
    sim_memory_forget_registered();
    return 0;
}

/* ---- memory ---------------------------------------------------------------------------------- */

SIM_EXPORT int cuMemAlloc_v2(uintptr_t *out, size_t bytes)
{
    void *ptr;
    SIM_BEGIN();
    int err = cudaMalloc(&ptr, bytes);

    sim_waited();
    if (!err)
        *out = (uintptr_t)ptr;
    return err;
}

SIM_EXPORT int cuMemFree_v2(uintptr_t ptr)
{
    sim_waited();
    return cudaFree((void *)ptr);
}

SIM_EXPORT int cuMemHostAlloc(void **out, size_t bytes, unsigned flags)
{
    SIM_BEGIN();
    sim_waited();
    return cudaHostAlloc(out, bytes, flags);
}

SIM_EXPORT int cuMemFreeHost(void *ptr)
{
    sim_waited();
    return cudaFreeHost(ptr);
}

SIM_EXPORT int cuMemHostRegister_v2(void *ptr, size_t bytes, unsigned flags)
{
    sim_waited();
    return cudaHostRegister(ptr, bytes, flags);
}

SIM_EXPORT int cuMemHostUnregister(void *ptr)
{
    sim_waited();
    return cudaHostUnregister(ptr);
}

SIM_EXPORT int cuMemsetD8Async(uintptr_t dst, unsigned char value, size_t bytes,
                               struct sim_stream *stream)
{
    sim_queued();
    return cudaMemsetAsync((void *)dst, value, bytes, stream);
}

/* One device: there is no other one to reach. */
SIM_EXPORT int cuDeviceCanAccessPeer(int *out, int device, int peer)
{
    *out = device != peer;
    return 0;
}

SIM_EXPORT int cuCtxEnablePeerAccess(void *context, unsigned flags)
{
    (void)context, (void)flags;
    SIM_BEGIN();
    return 0;
}

/* ---- streams and events ---------------------------------------------------------------------- */

SIM_EXPORT int cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    return cudaDeviceGetStreamPriorityRange(least, greatest);
}

SIM_EXPORT int cuStreamCreateWithPriority(struct sim_stream **out, unsigned flags, int priority)
{
    return cudaStreamCreateWithPriority(out, flags, priority);
}

SIM_EXPORT int cuStreamDestroy_v2(struct sim_stream *stream)
{
    return cudaStreamDestroy(stream);
}

SIM_EXPORT int cuStreamQuery(struct sim_stream *stream)
{
    sim_waited();
    return cudaStreamQuery(stream);
}

SIM_EXPORT int cuStreamWaitEvent(struct sim_stream *stream, struct sim_event *event, unsigned flags)
{
    return cudaStreamWaitEvent(stream, event, flags);
}

SIM_EXPORT int cuLaunchHostFunc(struct sim_stream *stream, void (*run)(void *user), void *user)
{
    SIM_BEGIN();
    sim_queued();
    return cudaLaunchHostFunc(stream, run, user);
}

struct value {
    uint32_t *at, is;
};

static void write_value(void *arg)
{
    const struct value *v = arg;

    __atomic_store_n(v->at, v->is, __ATOMIC_RELEASE);
}

static void await_value(void *arg)
{
    const struct value *v = arg;

    while ((int32_t)(__atomic_load_n(v->at, __ATOMIC_ACQUIRE) - v->is) < 0)
        nanosleep(&(struct timespec){0, 20000}, NULL);
}

SIM_EXPORT int cuStreamWriteValue32_v2(struct sim_stream *stream, uintptr_t at, uint32_t value,
                                       unsigned flags)
{
    (void)flags;
    SIM_BEGIN();
    if (sim_memory_find((const void *)at).kind == SIM_MEMORY_NONE)
        return SIM_INVALID_VALUE;
    sim_queued();
    sim_stream_give(stream, write_value, &(struct value){(uint32_t *)at, value}, sizeof(struct value));
    return 0;
}

/* Only "at least", which is 0. */
SIM_EXPORT int cuStreamWaitValue32_v2(struct sim_stream *stream, uintptr_t at, uint32_t value,
                                      unsigned flags)
{
    SIM_BEGIN();
    if (flags)
        sim_die("a stream waits for a value with the flags 0x%x", flags);
    sim_stream_give(stream, await_value, &(struct value){(uint32_t *)at, value}, sizeof(struct value));
    return 0;
}

SIM_EXPORT int cuEventCreate(struct sim_event **out, unsigned flags)
{
    SIM_BEGIN();
    return cudaEventCreateWithFlags(out, flags);
}

SIM_EXPORT int cuEventDestroy_v2(struct sim_event *event)
{
    return cudaEventDestroy(event);
}

SIM_EXPORT int cuEventRecord(struct sim_event *event, struct sim_stream *stream)
{
    SIM_BEGIN();
    return cudaEventRecord(event, stream);
}

SIM_EXPORT int cuEventQuery(struct sim_event *event)
{
    SIM_BEGIN();
    sim_waited();
    return cudaEventQuery(event);
}

SIM_EXPORT int cuEventElapsedTime(float *out_ms, struct sim_event *from, struct sim_event *to)
{
    return cudaEventElapsedTime(out_ms, from, to);
}

/* The same in CUDA 12.8 and later. */
SIM_EXPORT int cuEventElapsedTime_v2(float *out_ms, struct sim_event *from, struct sim_event *to)
{
    return cudaEventElapsedTime(out_ms, from, to);
}

SIM_EXPORT int cuEventSynchronize(struct sim_event *event)
{
    SIM_BEGIN();
    sim_waited();
    return cudaEventSynchronize(event);
}

SIM_EXPORT int cuStreamSynchronize(struct sim_stream *stream)
{
    SIM_BEGIN();
    sim_waited();
    return cudaStreamSynchronize(stream);
}

SIM_EXPORT int cuStreamGetCtx(struct sim_stream *stream, void **out)
{
    (void)stream;
    SIM_BEGIN();
    return cuCtxGetCurrent(out);
}

SIM_EXPORT int cuStreamIsCapturing(struct sim_stream *stream, int *out)
{
    SIM_BEGIN();
    return cudaStreamIsCapturing(stream, out);
}

SIM_EXPORT int cuThreadExchangeStreamCaptureMode(int *mode)
{
    SIM_BEGIN();
    return cudaThreadExchangeStreamCaptureMode(mode);
}
