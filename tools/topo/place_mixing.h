/* SPDX-License-Identifier: Apache-2.0
 *
 * place_mixing.h - which replicas mix, as `topo place --mixing` says it.
 */
#ifndef DP_TOOLS_TOPO_PLACE_MIXING_H
#define DP_TOOLS_TOPO_PLACE_MIXING_H

#include <dualpipe/placement.h>

/* For dp_placement_spec. Free pairs. */
struct place_mixing {
    struct dp_replica_pair *pairs;
    int count;
};

/* Pairs ("0-2,1-3"), "none", "all-reduce", the name of a mixing graph or a file with one. The
 * rounds of a graph are averaged over its period; a group of more than two exchanges as a ring
 * does. 0, else an EXIT_ value and the sentence has been printed. */
int place_read_mixing(const char *text, int replicas, struct place_mixing *out);

#endif
