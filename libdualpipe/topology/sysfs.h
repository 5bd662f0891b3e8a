/* SPDX-License-Identifier: Apache-2.0
 *
 * sysfs.h - small files below a root: "" for this machine's own, or where a tree was captured.
 */
#ifndef DP_TOPOLOGY_SYSFS_H
#define DP_TOPOLOGY_SYSFS_H

#include "topology/build.h"
#include "topology/pci_tree.h"

#include <limits.h>

enum { DP_SYSFS_LINE = 4096 };

/* The first line of root + path without its newline; false, and "", where there is none. */
bool dp_sysfs_line(const char *root, char line[DP_SYSFS_LINE], const char *fmt, ...)
    DP_PRINTF(3, 4);
/* The number that the file begins with, decimal or 0x; `otherwise` where there is none. */
int64_t dp_sysfs_number(const char *root, int64_t otherwise, const char *fmt, ...) DP_PRINTF(3, 4);

/* Names in a directory without the dotted ones, those with numbers by number. count < 0: there is no
 * such directory. */
struct dp_sysfs_names {
    int count;
    char **names;
};
struct dp_sysfs_names dp_sysfs_list(const char *root, const char *fmt, ...) DP_PRINTF(2, 3);
void dp_sysfs_names_fini(struct dp_sysfs_names *n);

/* The functions on the PCI buses, by address. false: sysfs has no PCI. DP_ENOMEM sets b->failed. */
bool dp_sysfs_pci(struct dp_topo_builder *b, const char *root, struct dp_pci_functions *out);
/* Ports of a NIC (a node) from its device's directory, "/sys/devices/pci...". */
void dp_sysfs_ports(struct dp_topo_builder *b, const char *root, const char *dir, int32_t nic);

#endif
