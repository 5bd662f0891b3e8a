/* SPDX-License-Identifier: Apache-2.0
 *
 * net_devices.h - what NCCL is offered: a device per network interface in use. Within a host the
 * bytes of any of them go through shared memory.
 */
#ifndef DPN_NET_DEVICES_H
#define DPN_NET_DEVICES_H

#include "nccl-plugin/net_interfaces.h"
#include "nccl-plugin/net_options.h"

enum { DPN_MAX_DEVICES = 32 };

struct dpn_device {
    struct dpn_interface interface;
    char *pci_path; /* of its PCI function in sysfs, NULL if it has none */
    int speed_mbps;
};

struct dpn_devices {
    int count;
    struct dpn_device list[DPN_MAX_DEVICES];
};

/* Look around, once per process; the strings are never freed, as NCCL keeps them. root: where /sys
 * is, "" as a rule. */
void dpn_devices_find(const char *root, const struct dpn_net_options *options,
                      struct dpn_devices *out);

#endif
