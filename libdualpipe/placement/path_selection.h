/* SPDX-License-Identifier: Apache-2.0
 *
 * path_selection.h - once it is known which worker is on which GPU: the NICs and the rail of every
 * flow between hosts, and the memory of every GPU. Flows go the default route unless another makes
 * the busiest links less busy.
 */
#ifndef DP_PLACEMENT_PATH_SELECTION_H
#define DP_PLACEMENT_PATH_SELECTION_H

#include "placement/search.h"

/* Fill in the routes of p->flows and the memory and NICs of p->workers, whose gpu is set; s->loads
 * become those of all links. */
int dp_paths_choose(const struct dp_search *s, struct dp_placement *p);

#endif
