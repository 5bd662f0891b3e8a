/* SPDX-License-Identifier: Apache-2.0
 *
 * sim_launch.c - launches, and the driver's functions that NCCL asks the runtime for by name.
 */
#include "simcuda/host_grid.h"
#include "simcuda/sim.h"

#include <stdlib.h>
#include <string.h>

struct launch {
    void (*kernel)(const void *args); /* one of the program's own; NULL: NCCL's */
    unsigned blocks[3], threads;
    size_t shared_bytes;
    _Alignas(64) char args[];
};

static void carry_out(void *arg)
{
    struct launch *launch = arg;

    if (launch->kernel)
        host_grid_run(launch->kernel, launch->args, launch->blocks, launch->threads,
                      launch->shared_bytes);
    else
        kernel_run(launch->blocks[0], launch->args);
}

/* The arguments are copied now: the caller uses the memory again. */
static int give(struct sim_stream *stream, const struct launch *how, void **extra)
{
    const void *args = NULL;
    size_t bytes = 0;

    for (; extra && (uintptr_t)extra[0] != SIM_PARAM_END; extra += 2) {
        if ((uintptr_t)extra[0] == SIM_PARAM_BUFFER)
            args = extra[1];
        else if ((uintptr_t)extra[0] == SIM_PARAM_BYTES)
            bytes = *(const size_t *)extra[1];
    }
    if (!args)
        return SIM_NOT_SUPPORTED;
    size_t len = (sizeof(struct launch) + bytes + 63) & ~(size_t)63;
    struct launch *launch = aligned_alloc(64, len);
    if (!launch)
        return SIM_OUT_OF_MEMORY;
    *launch = *how;
    memcpy(launch->args, args, bytes);
    sim_say("launch of %u blocks, %zu bytes of arguments", launch->blocks[0], bytes);
    sim_stream_give(stream, carry_out, launch, sizeof(*launch) + bytes);
    free(launch);
    return 0;
}

SIM_EXPORT int cuLaunchKernelEx(const struct sim_launch *launch, void *function, void **params,
                                void **extra)
{
    (void)function, (void)params;
    return give(launch->stream, &(struct launch){.blocks = {launch->grid[0], 1, 1}}, extra);
}

SIM_EXPORT int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                              unsigned block_x, unsigned block_y, unsigned block_z,
                              unsigned shared_bytes, struct sim_stream *stream, void **params,
                              void **extra)
{
    const struct launch how = {.kernel = host_kernel_of(function),
                               .blocks = {grid_x, grid_y, grid_z},
                               .threads = block_x * block_y * block_z,
                               .shared_bytes = shared_bytes};

    (void)params;
    SIM_BEGIN();
    sim_queued();
    const char *name = how.kernel ? host_kernel_first(function) : NULL;
    if (name)
        sim_module_load(name);
    return give(stream, &how, extra);
}

/* ---- the driver's functions ------------------------------------------------------------------ */

SIM_EXPORT int cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version,
                                                unsigned long long flags, int *status)
{
    enum { SUCCESS, NOT_FOUND };

    (void)version, (void)flags;
    *out = sim_own_function(name);
    if (status)
        *status = *out ? SUCCESS : NOT_FOUND;
    if (!*out)
        sim_say("the driver's %s is not simulated", name);
    return 0;
}

SIM_EXPORT int cudaGetDriverEntryPoint(const char *name, void **out, unsigned long long flags,
                                       int *status)
{
    return cudaGetDriverEntryPointByVersion(name, out, 0, flags, status);
}
