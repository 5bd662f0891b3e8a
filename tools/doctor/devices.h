/* SPDX-License-Identifier: Apache-2.0
 *
 * devices.h - the GPUs and the RDMA devices of a machine, and where they are on its PCI buses.
 */
#ifndef DP_TOOLS_DOCTOR_DEVICES_H
#define DP_TOOLS_DOCTOR_DEVICES_H

#include "doctor/doctor.h"

struct device {
    char name[64];         /* "GPU 0000:3b:00.0", "mlx5_0" */
    bool gpu;
    struct tree_path path; /* of its PCI function, all links followed; "": a virtual device */
    int node;              /* -1: the kernel does not know */
};

struct devices {
    size_t count;
    struct device *items;
};

/* All of them, GPUs first; free them with devices_free. */
struct devices devices_find(struct doctor *d);
void devices_free(struct devices *devices);
int devices_gpu_count(struct doctor *d);

/* The PCI function above one, "" for the first. */
struct tree_path devices_parent(struct doctor *d, const char *path);

/* The network interface of an RDMA device's first port, or false. */
bool devices_interface(struct doctor *d, const char *name, char interface[static 64]);

#endif
