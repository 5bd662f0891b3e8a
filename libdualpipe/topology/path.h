/* SPDX-License-Identifier: Apache-2.0
 *
 * path.h - routes by the thousand: the ways out of a node's host, which are most of what a route between
 * hosts costs, are found once for each node and kept.
 */
#ifndef DP_TOPOLOGY_PATH_H
#define DP_TOPOLOGY_PATH_H

#include <dualpipe/topology.h>

struct dp_topo_exits;

/* NULL: no memory. t outlives it. */
struct dp_topo_exits *dp_topo_exits_new(const struct dp_topology *t);
void dp_topo_exits_free(struct dp_topo_exits *kept);
/* dp_topology_path, with the same answers; not for two threads at once. kept may be NULL. */
int dp_topo_path_by(const struct dp_topology *t, struct dp_topo_exits *kept, int32_t a, int32_t b,
                    struct dp_topo_path *path);

#endif
