/* SPDX-License-Identifier: Apache-2.0
 *
 * internal.h - what other layers of the library call of this one, and its users do not.
 */
#ifndef DP_TOPOLOGY_INTERNAL_H
#define DP_TOPOLOGY_INTERNAL_H

#include <dualpipe/topology.h>

/* "host", "numa", "root", "switch", "gpu", "nic", "nvswitch", "rail", "spine". */
const char *dp_topo_kind_name(enum dp_topo_kind kind);
/* "mesh", "pci", "cpu", "nvlink", "xgmi", "c2c", "net". */
const char *dp_topo_link_kind_name(enum dp_topo_link_kind kind);
/* "X", "NV", "XGMI", "C2C", "PIX", "PXB", "PHB", "NODE", "SYS", "NET", "NET*", "-". */
const char *dp_topo_class_name(enum dp_topo_class kind);

/* Are they the same, as JSON? false also without memory to tell. */
bool dp_topology_equal(const struct dp_topology *a, const struct dp_topology *b);

#endif
