/* SPDX-License-Identifier: Apache-2.0
 *
 * sim_device.c - one GPU without virtual memory management, multicast or peers: NCCL turns off what
 * is built on those. SIMCUDA_DMABUF=1 gives it GPUDirect with dma-buf.
 */
#include "simcuda/sim.h"
#include "simcuda/sim_gpu.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static _Thread_local int last_error;

static int fails(int err)
{
    last_error = err;
    return err;
}

SIM_EXPORT int cudaGetLastError(void)
{
    int err = last_error;

    last_error = 0;
    return err;
}

SIM_EXPORT int cudaPeekAtLastError(void)
{
    return last_error;
}

SIM_EXPORT const char *cudaGetErrorString(int err)
{
    static _Thread_local char text[48];

    snprintf(text, sizeof(text), "error %d of the simulated CUDA", err);
    return err ? text : "no error";
}

SIM_EXPORT const char *cudaGetErrorName(int err)
{
    return cudaGetErrorString(err);
}

SIM_EXPORT int cudaDriverGetVersion(int *out)
{
    *out = 13000;
    return 0;
}

SIM_EXPORT int cudaRuntimeGetVersion(int *out)
{
    *out = 13000;
    return 0;
}

SIM_EXPORT int cudaGetDeviceCount(int *out)
{
    *out = 1;
    return 0;
}

SIM_EXPORT int cudaGetDevice(int *out)
{
    *out = 0;
    return 0;
}

SIM_EXPORT int cudaSetDevice(int device)
{
    return device == 0 ? 0 : fails(SIM_INVALID_DEVICE);
}

/* Memory stays; events of before are not to be used any more. */
SIM_EXPORT int cudaDeviceReset(void)
{
    sim_stream_drain_all();
    sim_memory_forget_registered();
    return 0;
}

SIM_EXPORT int cudaDeviceGetPCIBusId(char *out, int len, int device)
{
    (void)device;
    snprintf(out, (size_t)len, "%s", SIM_GPU_BUS_ID);
    return 0;
}

SIM_EXPORT int cudaDeviceGetByPCIBusId(int *out, const char *bus_id)
{
    if (strcasecmp(bus_id, SIM_GPU_BUS_ID) != 0)
        return fails(SIM_INVALID_DEVICE);
    *out = 0;
    return 0;
}

static int attribute(int which)
{
    switch (which) {
    case SIM_MAX_THREADS_PER_BLOCK:
        return 1024;
    case SIM_MAX_SHARED_PER_BLOCK:
        return 48 << 10;
    case SIM_MAX_SHARED_OPTIN:
        return 227 << 10;
    case SIM_MAX_SHARED_PER_MULTIPROCESSOR:
        return 228 << 10;
    case SIM_WARP_SIZE:
        return 32;
    case SIM_CLOCK_KHZ:
        return 1400000;
    case SIM_MULTIPROCESSORS:
        return 108;
    case SIM_MAJOR:
        return SIM_GPU_MAJOR;
    case SIM_MINOR:
        return SIM_GPU_MINOR;
    case SIM_CAN_MAP_HOST_MEMORY:
    case SIM_UNIFIED_ADDRESSING:
    case SIM_HOST_NATIVE_ATOMICS:
    case SIM_MEMORY_POOLS:
    case SIM_FLUSH_OPTIONS:
        return 1;
    case SIM_GPUDIRECT:
    case SIM_GPUDIRECT_WITH_VMM:
    case SIM_DMABUF:
        return sim_setting("SIMCUDA_DMABUF", 0);
    default:
        return 0;
    }
}

SIM_EXPORT int cudaDeviceGetAttribute(int *out, int which, int device)
{
    (void)device;
    *out = attribute(which);
    return 0;
}

SIM_EXPORT int cudaGetDeviceProperties(struct sim_properties *out, int device)
{
    (void)device;
    memset(out, 0, sizeof(*out));
    snprintf(out->name, sizeof(out->name), "simulated GPU");
    out->memory_bytes = (size_t)16 << 30;
    out->major = SIM_GPU_MAJOR;
    out->minor = SIM_GPU_MINOR;
    return 0;
}

/* CUDA 12's name for it. */
SIM_EXPORT int cudaGetDeviceProperties_v2(struct sim_properties *out, int device)
{
    return cudaGetDeviceProperties(out, device);
}

SIM_EXPORT int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    *free_bytes = (size_t)8 << 30;
    *total_bytes = (size_t)16 << 30;
    return 0;
}

SIM_EXPORT int cudaDeviceSetLimit(int limit, size_t value)
{
    (void)limit, (void)value;
    return 0;
}

SIM_EXPORT int cudaDeviceGetLimit(size_t *out, int limit)
{
    (void)limit;
    *out = 1024;
    return 0;
}

SIM_EXPORT int cudaDeviceCanAccessPeer(int *out, int device, int peer)
{
    (void)device, (void)peer;
    *out = 0;
    return 0;
}

SIM_EXPORT int cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    (void)peer, (void)flags;
    return fails(SIM_NOT_SUPPORTED);
}

/* ---- functions of the device: there are only NCCL's kernels ---------------------------------- */

SIM_EXPORT int cudaFuncGetAttributes(struct sim_function_attributes *out, const void *function)
{
    (void)function;
    memset(out, 0, sizeof(*out));
    out->max_threads_per_block = 1024;
    out->registers = 96;
    return 0;
}

SIM_EXPORT int cudaFuncSetAttribute(const void *function, int which, int value)
{
    (void)function, (void)which, (void)value;
    return 0;
}

SIM_EXPORT int cudaGetFuncBySymbol(const void **out, const void *symbol)
{
    *out = symbol;
    return 0;
}

/* ---- what CUDA's driver calls it ------------------------------------------------------------- */

static char the_context;

SIM_EXPORT int cuGetErrorString(int err, const char **out)
{
    *out = cudaGetErrorString(err);
    return 0;
}

SIM_EXPORT int cuGetErrorName(int err, const char **out)
{
    return cuGetErrorString(err, out);
}

SIM_EXPORT int cuDeviceGet(int *out, int ordinal)
{
    *out = ordinal;
    return ordinal == 0 ? 0 : SIM_INVALID_DEVICE;
}

SIM_EXPORT int cuDeviceGetAttribute(int *out, int which, int device)
{
    return cudaDeviceGetAttribute(out, which, device);
}

SIM_EXPORT int cuDeviceGetUuid(char out[16], int device)
{
    (void)device;
    memcpy(out, SIM_GPU_UUID, 16);
    return 0;
}

SIM_EXPORT int cuCtxGetCurrent(void **out)
{
    *out = &the_context;
    return 0;
}

SIM_EXPORT int cuCtxSetCurrent(void *context)
{
    (void)context;
    return 0;
}

SIM_EXPORT int cuCtxGetDevice(int *out)
{
    *out = 0;
    return 0;
}

SIM_EXPORT int cuCtxCreate(void **out)
{
    *out = &the_context;
    return 0;
}

SIM_EXPORT int cuCtxDestroy(void *context)
{
    (void)context;
    return 0;
}
