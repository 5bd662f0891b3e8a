/* SPDX-License-Identifier: Apache-2.0
 *
 * devices.h - what NCCL is offered: a device per RDMA port, or, where there is none, per network
 * interface in use. NCCL may fuse RDMA ports to further devices.
 */
#ifndef DPN_NET_DEVICES_H
#define DPN_NET_DEVICES_H

#include "nccl-plugin/net/interfaces.h"
#include "nccl-plugin/net/options.h"

/* Plain and fused devices, as many as NCCL's own transport has; a name has room for those of all
 * rails. */
enum { DPN_MAX_PLAIN = 32, DPN_MAX_DEVICES = DPN_MAX_PLAIN + 256 };
enum { DPN_DEVICE_RAILS = 8, DPN_DEVICE_NAME = DPN_DEVICE_RAILS * 80 };

struct dpn_port; /* verbs/device.h */

struct dpn_device {
    char name[DPN_DEVICE_NAME];
    struct dpn_interface interface; /* of the wire */
    char *pci_path; /* of its PCI function in sysfs, NULL if it has none */
    int speed_mbps;
    uint64_t guid; /* guid and port: what has one bandwidth */
    int port;
    int pointers;    /* NCCL_PTR_*: the memory that it reaches */
    int rail, plane; /* -1: not known */
    bool needs_flush; /* it writes to GPUs by a PCI function of their own: see forceFlush of NCCL */
    int rail_count;  /* RDMA ports; 0: an interface */
    struct dpn_port *rails[DPN_DEVICE_RAILS];
    int member_count; /* the devices it is fused of; of a plain one only itself */
    int members[DPN_DEVICE_RAILS];
};

struct dpn_devices {
    int count;
    struct dpn_device list[DPN_MAX_DEVICES];
};

/* Whether the device's messages may have to go to and from GPUs: only its own ports can do that. */
static inline bool dpn_device_reaches_gpus(const struct dpn_device *device)
{
    return device->pointers & ~1; /* more than NCCL_PTR_HOST */
}

/* Look around, once per process; the strings are never freed, as NCCL keeps them. root: where /sys
 * is, "" as a rule. */
void dpn_devices_find(const char *root, const struct dpn_net_options *options,
                      struct dpn_devices *out);

/* ---- where on the PCI bus something is ------------------------------------------------------- */

/* device: a link in sysfs, like /sys/class/net/eth0/device. The directory of the device's PCI
 * function, malloc'ed; NULL if it has none. */
char *dpn_pci_path(const char *device);

#endif
