/* SPDX-License-Identifier: Apache-2.0
 *
 * copies.c - copies of CUDA's runtime and driver, counted by direction; large ones of pageable
 * memory are staged (stage.h). Otherwise nothing is changed: the real function is called with the
 * same arguments, and what it returns is returned. The names with _ptds and _ptsz are those that
 * programs built for per-thread default streams call: the stream 0 is the thread's own there.
 */
#include "offload/preload/driver.h"
#include "offload/preload/node.h"
#include "offload/preload/real.h"
#include "offload/preload/ring.h"
#include "offload/preload/stage.h"
#include "offload/preload/state.h"

#include <errno.h>

#define EXPORT __attribute__((visibility("default")))

static void count(size_t bytes, int kind)
{
    static const enum dpo_value counters[] = {
        DPO_COPIES_OTHER,
        DPO_COPIES_TO_DEVICE,
        DPO_COPIES_TO_HOST,
    };
    const bool is_known = kind == DPO_COPY_TO_DEVICE || kind == DPO_COPY_TO_HOST;
    const enum dpo_value c = is_known ? counters[kind] : DPO_COPIES_OTHER;

    dpo_count(c, 1);
    dpo_count(c + 1, bytes);
}

/* Whether the outermost call is one that the ring has carried out. */
static bool try_stage(const struct dpo_copy *copy, const void *caller)
{
    const int error = errno;

    if (dpo_depth || copy->bytes < dpo_least_copy())
        return false;
    dpo_depth++;
    const bool is_staged = dpo_stage(copy, caller);
    dpo_depth--;
    errno = error;
    return is_staged;
}

/* Behind the call: keeps the caller's errno. */
static int finish(int status, size_t bytes, int kind)
{
    const int error = errno;

    if (!dpo_depth && !status && dpo_preload_options())
        count(bytes, kind);
    errno = error;
    return status;
}

/* direction: of cudaMemcpyKind. The last are the real call's arguments; it is made between two that
 * count how deep it is. */
#define COPIES(name, api, parameters, direction, in_stream, is_waited, ...)                        \
    EXPORT int name parameters;                                                                    \
    EXPORT int name parameters                                                                     \
    {                                                                                              \
        const void *const caller = __builtin_return_address(0);                                    \
        const struct dpo_copy copy = {.to = (uintptr_t)to,                                         \
                                      .from = (uintptr_t)from,                                     \
                                      .bytes = bytes,                                              \
                                      .kind = direction,                                           \
                                      .stream = in_stream,                                         \
                                      .is_synchronous = is_waited};                                \
        int(*real) parameters = dpo_real(#name, (void *)name, caller);                             \
        int status = 0;                                                                            \
        if (!real)                                                                                 \
            return (api).absent;                                                                   \
        if (!try_stage(&copy, caller)) {                                                           \
            dpo_depth++;                                                                           \
            status = real(__VA_ARGS__);                                                            \
            dpo_depth--;                                                                           \
        }                                                                                          \
        return finish(status, copy.bytes, copy.kind);                                              \
    }

#define RUNTIME_COPY(name, stream)                                                                 \
    COPIES(name, dpo_runtime_api, (void *to, const void *from, size_t bytes, int kind), kind,      \
           stream, true, to, from, bytes, kind)
#define RUNTIME_COPY_IN_STREAM(name, default_stream)                                               \
    COPIES(name, dpo_runtime_api,                                                                  \
           (void *to, const void *from, size_t bytes, int kind, void *stream), kind,               \
           stream ? stream : (default_stream), false, to, from, bytes, kind, stream)

RUNTIME_COPY(cudaMemcpy, DPO_CUDA_STREAM_LEGACY)
RUNTIME_COPY(cudaMemcpy_ptds, DPO_CUDA_STREAM_PER_THREAD)
RUNTIME_COPY_IN_STREAM(cudaMemcpyAsync, DPO_CUDA_STREAM_LEGACY)
RUNTIME_COPY_IN_STREAM(cudaMemcpyAsync_ptsz, DPO_CUDA_STREAM_PER_THREAD)

/* The driver's: an address of the device is a number of the size of a pointer. */
#define DRIVER_COPY(name, to_type, from_type, direction, stream)                                   \
    COPIES(name, dpo_driver_api, (to_type to, from_type from, size_t bytes), direction, stream,    \
           true, to, from, bytes)
#define DRIVER_COPY_IN_STREAM(name, to_type, from_type, direction, default_stream)                 \
    COPIES(name, dpo_driver_api, (to_type to, from_type from, size_t bytes, void *stream),        \
           direction, stream ? stream : (default_stream), false, to, from, bytes, stream)
#define DRIVER_COPIES(name, in_stream, to_type, from_type, kind)                                   \
    DRIVER_COPY(name, to_type, from_type, kind, DPO_CUDA_STREAM_LEGACY)                            \
    DRIVER_COPY(name##_ptds, to_type, from_type, kind, DPO_CUDA_STREAM_PER_THREAD)                 \
    DRIVER_COPY_IN_STREAM(in_stream, to_type, from_type, kind, DPO_CUDA_STREAM_LEGACY)             \
    DRIVER_COPY_IN_STREAM(in_stream##_ptsz, to_type, from_type, kind, DPO_CUDA_STREAM_PER_THREAD)

DRIVER_COPIES(cuMemcpyHtoD_v2, cuMemcpyHtoDAsync_v2, uintptr_t, const void *, DPO_COPY_TO_DEVICE)
DRIVER_COPIES(cuMemcpyDtoH_v2, cuMemcpyDtoHAsync_v2, void *, uintptr_t, DPO_COPY_TO_HOST)
DRIVER_COPIES(cuMemcpy, cuMemcpyAsync, uintptr_t, uintptr_t, DPO_COPY_ANY)

/* ---- calls that end a context: what staging and pacing have made in it goes before ----------- */

#define CALLER __builtin_return_address(0)

/* Where no copy is staged or paced there is nothing to go, and nothing is asked. Nor in a child, whose
 * locks a thread may have held that it does not have. */
static bool may_have_made(void)
{
    return !dpo_depth && !dpo_is_child() && dpo_least_copy() != SIZE_MAX;
}

static void drop(const void *context, int device, const void *caller)
{
    const struct dpo_driver *driver = may_have_made() ? dpo_driver(caller) : NULL;

    if (!driver)
        return;
    dpo_depth++;
    dpo_pace_drop(context, device);
    dpo_ring_drop(driver, context, device);
    dpo_depth--;
}

EXPORT int cudaDeviceReset(void);
EXPORT int cudaDeviceReset(void)
{
    int (*real)(void) = dpo_real("cudaDeviceReset", (void *)cudaDeviceReset, CALLER);
    int (*get_device)(int *) = dpo_real("cudaGetDevice", NULL, CALLER);
    int device;

    if (!real)
        return dpo_runtime_api.absent;
    if (get_device && may_have_made() && !get_device(&device))
        drop(NULL, device, CALLER);
    return real();
}

/* `of` names what ends; context NULL: all of the device. */
#define ENDS(name, type, context, device)                                                          \
    EXPORT int name(type of);                                                                      \
    EXPORT int name(type of)                                                                       \
    {                                                                                              \
        int (*real)(type) = dpo_real(#name, (void *)name, CALLER);                                 \
        if (!real)                                                                                 \
            return dpo_driver_api.absent;                                                          \
        drop(context, device, CALLER);                                                             \
        return real(of);                                                                           \
    }
ENDS(cuCtxDestroy_v2, void *, of, -1)
ENDS(cuDevicePrimaryCtxReset_v2, int, NULL, of)
/* The last one to let go of it ends it; for the others what has gone is made again. */
ENDS(cuDevicePrimaryCtxRelease_v2, int, NULL, of)
/* The functions of before CUDA 4.0 and 11.0, which the driver still has under these names. */
ENDS(cuCtxDestroy, void *, of, -1)
ENDS(cuDevicePrimaryCtxReset, int, NULL, of)
ENDS(cuDevicePrimaryCtxRelease, int, NULL, of)
