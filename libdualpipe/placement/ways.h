/* SPDX-License-Identifier: Apache-2.0
 *
 * ways.h - once it is known who sits where: the NICs and the rail of every flow between hosts, and the
 * memory of every GPU. Flows go the usual way unless another makes the busiest links less busy.
 */
#ifndef DP_PLACEMENT_WAYS_H
#define DP_PLACEMENT_WAYS_H

#include "placement/search.h"

/* Fill in the ways of p->flows and the memory and NICs of p->workers, whose gpu is set; s->loads become
 * those of all links. */
int dp_ways_choose(const struct dp_search *s, struct dp_placement *p);

#endif
