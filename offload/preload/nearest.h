/* SPDX-License-Identifier: Apache-2.0
 *
 * nearest.h - the NUMA node nearest to the device of the calling thread, asked of CUDA's runtime or
 * of its driver.
 */
#ifndef DPO_PRELOAD_NEAREST_H
#define DPO_PRELOAD_NEAREST_H

#include "offload/preload/options.h"

/* How the two interfaces name the device of the calling thread, and what a function of theirs
 * returns where the program has no CUDA. */
struct dpo_api {
    const char *get_device, *get_bus_id;
    int absent;
};
extern const struct dpo_api dpo_runtime_api, dpo_driver_api;

/* DPO_NO_NODE: it has none, or it is not told. `caller` as of dpo_real. Any thread; asks CUDA once
 * for each device. */
int dpo_nearest_node(const struct dpo_api *api, const void *caller,
                     const struct dpo_preload_options *options);

#endif
