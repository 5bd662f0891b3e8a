/* SPDX-License-Identifier: Apache-2.0
 *
 * names.h - the words of a topology's forms.
 */
#ifndef DP_TOPOLOGY_NAMES_H
#define DP_TOPOLOGY_NAMES_H

#include <dualpipe/topology.h>

/* In the order of their enums, NULL-terminated. */
extern const char *const dp_topo_kind_names[DP_TOPO_KINDS + 1];
extern const char *const dp_topo_link_kind_names[DP_TOPO_LINK_KINDS + 1];
extern const char *const dp_topo_fabric_names[];    /* "ethernet", "infiniband" */
extern const char *const dp_topo_gid_type_names[];  /* "ib", "rocev1", "rocev2" */
extern const char *const dp_topo_note_kind_names[]; /* "missing", "assumed" */

/* The place of name[len] in names (NULL-terminated), -1: it is none. */
int dp_topo_name_index(const char *name, size_t len, const char *const *names);

/* Wi-Fi, by its class or its interface's name: of use only where there is nothing else. */
bool dp_topo_is_wireless(const struct dp_topology *t, const struct dp_topo_port *p);

#endif
