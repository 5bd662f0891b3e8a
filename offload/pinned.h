/* SPDX-License-Identifier: Apache-2.0
 *
 * pinned.h - host memory that a device copies from and to at full speed, on the NUMA node nearest to it,
 * in huge pages where the system has them, all pages there from the start.
 */
#ifndef DPO_PINNED_H
#define DPO_PINNED_H

#include <dualpipe/device.h>

struct dpo_pinned {
    struct dp_device *dev;
    char *start;
    size_t bytes;
    int node;                      /* where it was wanted; -1: anywhere */
    size_t pages, pages_elsewhere; /* 0 where the system does not tell; not on that node */
};

/* node -1: what dp_device_numa_node says. Where the system refuses a wish (the node, huge pages), a
 * warning says so once, and the memory is as the system likes. DP_ENOMEM, also for more than may be
 * locked. */
int dpo_pinned_map(struct dp_device *dev, int node, size_t bytes, struct dpo_pinned *out);
/* Before the device is closed; zeroed, it is none. */
void dpo_pinned_unmap(struct dpo_pinned *p);

#endif
