/* SPDX-License-Identifier: Apache-2.0
 *
 * copy.h - a part of a topology into a builder: what taking out, merging and remapping have in common.
 */
#ifndef DP_TOPOLOGY_COPY_H
#define DP_TOPOLOGY_COPY_H

#include "topology/build.h"

/* What place[i] says of node i of t on entry; else the node of the builder that stands for it. */
enum { DP_TOPO_LEAVE = -1, DP_TOPO_COPY = -2 };

/* Add the nodes of t that are to be copied, with the links, ports and notes among all that are not left
 * out; a node without its parent is left out, too. What belongs to no host of t stands in `home`, a
 * node of the builder by then; -1: in none. place[i] becomes the node's number in the builder, -1 for
 * those left out. A port whose rail is left out has none. */
void dp_topo_copy(struct dp_topo_builder *b, const struct dp_topology *t, int32_t home,
                  int32_t *place);

#endif
