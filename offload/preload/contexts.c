/* SPDX-License-Identifier: Apache-2.0
 *
 * contexts.c - calls that end a context of CUDA. What staging has made in it goes before.
 */
#include "offload/preload/node.h"
#include "offload/preload/real.h"
#include "offload/preload/ring.h"
#include "offload/preload/state.h"

#define EXPORT __attribute__((visibility("default")))
#define CALLER __builtin_return_address(0)

/* Where no copy is staged there is nothing to go, and nothing is asked. */
static bool makes_rings(void)
{
    const struct dpo_preload_options *options = dpo_depth ? NULL : dpo_preload_options();

    return options && options->stage;
}

static void drop(const void *context, int device, const void *caller)
{
    const struct dpo_driver *driver = makes_rings() ? dpo_driver(caller) : NULL;

    if (!driver)
        return;
    dpo_depth++;
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
    if (get_device && makes_rings() && !get_device(&device))
        drop(NULL, device, CALLER);
    return real();
}

EXPORT int cuDevicePrimaryCtxReset_v2(int device);
EXPORT int cuDevicePrimaryCtxReset_v2(int device)
{
    int (*real)(int) =
        dpo_real("cuDevicePrimaryCtxReset_v2", (void *)cuDevicePrimaryCtxReset_v2, CALLER);

    if (!real)
        return dpo_driver_api.absent;
    drop(NULL, device, CALLER);
    return real(device);
}

EXPORT int cuCtxDestroy_v2(void *context);
EXPORT int cuCtxDestroy_v2(void *context)
{
    int (*real)(void *) = dpo_real("cuCtxDestroy_v2", (void *)cuCtxDestroy_v2, CALLER);

    if (!real)
        return dpo_driver_api.absent;
    if (context)
        drop(context, -1, CALLER);
    return real(context);
}
