/* SPDX-License-Identifier: Apache-2.0
 *
 * sim_module.c - modules of kernels: whatever the image, its kernels are those of `dualpipe train`,
 * compiled for the CPU (host_kernels.c).
 */
#include "simcuda/host_grid.h"
#include "simcuda/sim.h"

enum { NOT_FOUND = 500 };

/* What keeps the device busy until this process goes on would keep it waiting for ever. */
void sim_module_load(const char *what)
{
    const int longest_s = sim_setting("DP_TEST_LIMIT_S", 300) / 3;

    if (!sim_stream_drain_all_within(longest_s))
        sim_die("%s is loaded, and the device has not been idle for %d s: expected it to be loaded "
                "before something waits in a stream for this process", what, longest_s);
}

SIM_EXPORT int cuModuleLoadData(const void **out, const void *image)
{
    if (!image)
        return SIM_INVALID_VALUE;
    sim_module_load("a module");
    *out = image;
    return 0;
}

SIM_EXPORT int cuModuleUnload(const void *module)
{
    return module ? 0 : SIM_INVALID_VALUE;
}

SIM_EXPORT int cuModuleGetFunction(void **out, const void *module, const char *name)
{
    (void)module;
    *out = host_kernel_named(name);
    return *out ? 0 : NOT_FOUND;
}

SIM_EXPORT int cuFuncSetAttribute(void *function, int attribute, int value)
{
    (void)attribute;
    return host_kernel_of(function) && value >= 0 ? 0 : SIM_INVALID_VALUE;
}
