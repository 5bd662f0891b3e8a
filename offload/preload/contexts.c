/* SPDX-License-Identifier: Apache-2.0
 *
 * contexts.c - calls that end a context of CUDA. What staging and pacing have made in it goes
 * before.
 */
#include "offload/preload/node.h"
#include "offload/preload/real.h"
#include "offload/preload/ring.h"
#include "offload/preload/stage.h"
#include "offload/preload/state.h"

#define EXPORT __attribute__((visibility("default")))
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
