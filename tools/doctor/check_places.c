/* SPDX-License-Identifier: Apache-2.0
 *
 * check_places.c - GPUs and network cards on different sockets, and whether a card can reach a
 * GPU's memory at all.
 */
#include "config.h"

#include "doctor/doctor.h"
#include "doctor/library.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t node_count(struct doctor *d)
{
    struct tree_list nodes = tree_glob(&d->tree, "/sys/devices/system/node/node[0-9]*");
    size_t count = nodes.count;

    tree_list_free(&nodes);
    return count;
}

/* A card on that node, or just any. */
static const struct device *card_on(const struct devices *devices, int node, bool any)
{
    for (size_t i = 0; i < devices->count; i++)
        if (!devices->items[i].gpu && (any || devices->items[i].node == node))
            return &devices->items[i];
    return NULL;
}

/* With one node only it does not matter which. */
static void add_unknown_node(struct doctor *d, const struct device *gpu, size_t nodes)
{
    doctor_add(d,
               nodes > 1 ? DOCTOR_WARNING
               : nodes   ? DOCTOR_FINE
                         : DOCTOR_UNKNOWN,
               doctor_text(d, "the kernel does not know the NUMA node of %s%s", gpu->name,
                           nodes == 1 ? ", and there is one only" : ""),
               doctor_text(d, "%s/numa_node", gpu->path.text),
               nodes == 1 ? NULL
                          : "threads and buffers end up on any node, and NCCL "
                            "guesses distances",
               nodes == 1 ? NULL : "update the BIOS; in a virtual machine give NCCL_TOPO_FILE");
}

static void look_at_gpu(struct doctor *d, const struct devices *devices, const struct device *gpu,
                        size_t nodes)
{
    const struct device *card = card_on(devices, gpu->node, true);

    if (gpu->node < 0) {
        add_unknown_node(d, gpu, nodes);
        return;
    }
    if (nodes < 2 || !card) {
        doctor_fine(d, doctor_text(d, "%s is on NUMA node %d", gpu->name, gpu->node),
                    doctor_text(d, "%s/numa_node", gpu->path.text));
        return;
    }
    const struct device *near = card_on(devices, gpu->node, false);
    if (near)
        doctor_fine(
            d,
            doctor_text(d, "%s and %s are both on NUMA node %d", gpu->name, near->name, gpu->node),
            doctor_text(d, "%s/numa_node", gpu->path.text));
    else
        doctor_add(d, DOCTOR_WARNING,
                   doctor_text(d, "%s is on NUMA node %d, where no RDMA card is; %s is on %d",
                               gpu->name, gpu->node, card->name, card->node),
                   doctor_text(d, "%s/numa_node, %s/numa_node", gpu->path.text, card->path.text),
                   "its messages cross the link between the sockets, and GPUDirect is not "
                   "used at NCCL's usual level",
                   "move a card to that socket, or let the stages with most traffic run on the "
                   "other GPUs");
}

/* nvidia_peermem, or dma-buf: Linux 5.12 and NVIDIA's open kernel modules. */
static void look_at_gpudirect(struct doctor *d)
{
    size_t len;
    char *modules = tree_read(&d->tree, &len, "/proc/modules"), driver[256] = "", kernel[256] = "";
    int major = 0, minor = 0;

    tree_line(&d->tree, kernel, "/proc/sys/kernel/osrelease");
    sscanf(kernel, "%d.%d", &major, &minor);
    tree_line(&d->tree, driver, "/proc/driver/nvidia/version");
    bool peer = modules && (strstr(modules, "nvidia_peermem ") || strstr(modules, "nv_peer_mem "));
    bool dmabuf =
        strstr(driver, "Open Kernel Module") && (major > 5 || (major == 5 && minor >= 12));
    free(modules);
    if (peer || dmabuf)
        doctor_fine(d, peer ? "GPUDirect through nvidia_peermem" : "GPUDirect through dma-buf",
                    peer ? "/proc/modules" : "/proc/driver/nvidia/version");
    else
        doctor_add(d, DOCTOR_WARNING, "network cards cannot reach the memory of GPUs",
                   "/proc/modules: no nvidia_peermem; /proc/driver/nvidia/version: not the "
                   "open kernel module",
                   "NCCL copies every message through host memory",
                   "modprobe nvidia_peermem, or install the open kernel modules");
}

void doctor_places(struct doctor *d)
{
    struct devices devices = devices_find(d);

    for (size_t i = 0; i < devices.count && devices.items[i].gpu; i++)
        look_at_gpu(d, &devices, &devices.items[i], node_count(d));
    if (devices.count && devices.items[0].gpu && card_on(&devices, 0, true))
        look_at_gpudirect(d);
    devices_free(&devices);
}
