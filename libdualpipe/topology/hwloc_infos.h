/* SPDX-License-Identifier: Apache-2.0
 *
 * hwloc_infos.h - what hwloc's files have no place for, as infos of names of our own, which other
 * programs pass over. Numbers are apart by blanks; the last word may be left out.
 *
 *      of           info                 value
 *      PCIDev       DualpipePCI          generation, width, generation and width it could have, flags
 *      GPU          DualpipeSM           compute capability
 *                   DualpipeNVLink       PCI address of a GPU or "nvswitchN", links, GB/s of all,
 *                                        version, flags, domain
 *                   DualpipeC2C          the kernel's number of the NUMA node, links, GB/s of all, flags
 *      NIC          DualpipePort         number, GB/s, MTU, fabric, 1 if up, subnet
 *      OpenFabrics  DualpipeGIDType      port, index, type; the GIDs are hwloc's own PortNGIDk
 *
 * Flags are those of links in topology.h.
 */
#ifndef DP_TOPOLOGY_HWLOC_INFOS_H
#define DP_TOPOLOGY_HWLOC_INFOS_H

#include "base/text.h"
#include "topology/build.h"

/* Of a GPU, NIC or switch; of the GIDs of a port. */
void dp_hwloc_add_infos(const struct dp_topology *t, int32_t node, struct dp_text *out);
void dp_hwloc_add_gids(const struct dp_topology *t, const struct dp_topo_port *port,
                       struct dp_text *out);

/* Take an info of a device that was added, with all others, before; one that is not ours, or of no use,
 * is passed over. */
void dp_hwloc_take_info(struct dp_topo_builder *b, int32_t node, const char *name, const char *value);
/* Take a GID, or the type of one that was taken, of the port that was added last. hwloc itself does not
 * tell the types: those of Ethernet are taken for RoCE v2 until an info says otherwise. */
void dp_hwloc_take_gid(struct dp_topo_builder *b, const char *name, const char *value);

#endif
