/* SPDX-License-Identifier: Apache-2.0
 *
 * copy.h - a part of a topology into a builder: what taking out, merging and remapping have in common.
 */
#ifndef DP_TOPOLOGY_COPY_H
#define DP_TOPOLOGY_COPY_H

#include "topology/build.h"

/* Add the nodes of t whose place[i] is 0 or more on entry, with the links, ports and notes among them;
 * a node without its parent is left out, too. place[i] becomes the node's number in the builder, -1
 * for those left out. A port whose rail is left out has none. */
void dp_topo_copy(struct dp_topo_builder *b, const struct dp_topology *t, int32_t *place);

#endif
