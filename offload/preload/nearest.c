/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/preload/nearest.h"

#include "offload/preload/node.h"
#include "offload/preload/real.h"

#include <stdatomic.h>

/* cudaErrorInsufficientDriver and CUDA_ERROR_NOT_INITIALIZED. */
const struct dpo_api dpo_runtime_api = {"cudaGetDevice", "cudaDeviceGetPCIBusId", 35};
const struct dpo_api dpo_driver_api = {"cuCtxGetDevice", "cuDeviceGetPCIBusId", 3};

enum { DEVICES = 64, NOT_ASKED = -2 };

static int ask_node(const struct dpo_api *api, const void *caller, int device, const char *root)
{
    int (*get_bus_id)(char *, int, int) = dpo_real(api->get_bus_id, NULL, caller);
    char bus_id[32];

    if (!get_bus_id || get_bus_id(bus_id, sizeof(bus_id), device))
        return DPO_NO_NODE;
    return dpo_node_of_device(root, bus_id);
}

/* Stored is node - NOT_ASKED, so that 0 means not asked. */
int dpo_nearest_node(const struct dpo_api *api, const void *caller,
                     const struct dpo_preload_options *options)
{
    static atomic_int nodes[DEVICES];
    int (*get_device)(int *) = dpo_real(api->get_device, NULL, caller);
    int device;

    if (options->node >= 0)
        return (int)options->node;
    if (!get_device || get_device(&device) || device < 0 || device >= DEVICES)
        return DPO_NO_NODE;
    int known = atomic_load_explicit(&nodes[device], memory_order_relaxed) + NOT_ASKED;
    if (known == NOT_ASKED) {
        known = ask_node(api, caller, device, options->root);
        atomic_store_explicit(&nodes[device], known - NOT_ASKED, memory_order_relaxed);
    }
    return known;
}
