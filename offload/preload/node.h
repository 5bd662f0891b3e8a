/* SPDX-License-Identifier: Apache-2.0
 *
 * node.h - memory on one NUMA node: which node is nearest to a device, memory of a call placed
 * there, and where pages really are. Uses the system calls of numa(7) directly; a container may
 * refuse them, which is said once, and then nothing is placed.
 */
#ifndef DPO_PRELOAD_NODE_H
#define DPO_PRELOAD_NODE_H

#include "base/bind.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DPO_NODES_MAX = DP_BIND_NODES, DPO_NO_NODE = -1 };

/* The memory policy of a thread, to be put back. */
struct dpo_policy {
    int mode;
    unsigned long mask[DPO_NODES_MAX / (8 * sizeof(unsigned long))];
};

/* Where pages of a range are. */
struct dpo_pages {
    uint64_t total, on_node;
    uint64_t unknown; /* the kernel does not say: not present, or a driver's mapping */
};

/* The node of the PCI device `bus_id` ("0000:3B:00.0", any case) by the /sys below root;
 * DPO_NO_NODE if it has none. */
int dpo_node_of_device(const char *root, const char *bus_id);

/* From now on the calling thread's new pages come from `node`, or from elsewhere if it is full.
 * false: refused; then nothing has changed. */
bool dpo_policy_set(int node, struct dpo_policy *saved);
void dpo_policy_restore(const struct dpo_policy *saved);

/* The same of one range, for as long as it is mapped. */
bool dpo_memory_prefer(void *at, size_t bytes, int node);

/* Move the pages of [at, at + bytes) that are present elsewhere to the node, as far as the kernel
 * does. */
void dpo_pages_move(const void *at, size_t bytes, int node);
/* Count them. */
void dpo_pages_count(const void *at, size_t bytes, int node, struct dpo_pages *pages);

/* ---- the device of the calling thread -------------------------------------------------------- */

/* How the two interfaces name the device of the calling thread, and what a function of theirs
 * returns where the program has no CUDA. */
struct dpo_api {
    const char *get_device, *get_bus_id;
    int absent;
};
extern const struct dpo_api dpo_runtime_api, dpo_driver_api;

/* `wanted` if it is not negative. DPO_NO_NODE: the device has none, or it is not told. `caller` as of
 * dpo_real, root: where /sys is. Any thread; asks CUDA once for each device. */
int dpo_nearest_node(const struct dpo_api *api, const void *caller, int64_t wanted,
                     const char *root);

#endif
