/* SPDX-License-Identifier: Apache-2.0
 *
 * pci_tree.h - from a list of PCI functions, bridges included, to roots, switches, GPUs and NICs. Root
 * ports vanish into the links, the two kinds of ports of a switch become one switch:
 *
 *      root bus -- root port -- upstream port -- downstream port -- GPU
 *      ROOT ------------------- SWITCH --------------------------- GPU
 */
#ifndef DP_TOPOLOGY_PCI_TREE_H
#define DP_TOPOLOGY_PCI_TREE_H

#include "topology/build.h"

struct dp_pci_function {
    struct dp_topo_pci id;
    int32_t parent;        /* the bridge it is behind, in the list; -1: on a root bus */
    uint32_t root_domain;
    uint8_t root_bus;
    int32_t numa;          /* the kernel's number; -1: not said */
    int gen, width, gen_max, width_max; /* of its link upwards; 0: not known */
    double rate;           /* of the link, bytes per ns, where gen and width are not known; 0 */
    const char *model;     /* NULL, "": not known */
    char *dir;             /* where sysfs describes it; NULL: nowhere */
    int32_t node;          /* out: its node; -1: none */
};

struct dp_pci_functions {
    int32_t count;
    struct dp_pci_function *list; /* parents may stand anywhere */
};

/* Add the GPUs and NICs of the list, and what they stand in, below the NUMA nodes of `host` (which
 * has some already). Sets the functions' nodes. */
void dp_pci_tree_add(struct dp_topo_builder *b, int32_t host, struct dp_pci_functions *f);
void dp_pci_functions_fini(struct dp_pci_functions *f);

/* What a class code stands for. */
bool dp_pci_is_gpu(const struct dp_topo_pci *id);
bool dp_pci_is_nic(const struct dp_topo_pci *id);
bool dp_pci_is_bridge(const struct dp_topo_pci *id);
enum dp_topo_fabric dp_pci_fabric(const struct dp_topo_pci *id);

#endif
