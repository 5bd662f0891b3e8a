/* SPDX-License-Identifier: Apache-2.0
 *
 * form.h - the forms of a topology, one writer and one reader a file.
 */
#ifndef DP_TOPOLOGY_FORM_H
#define DP_TOPOLOGY_FORM_H

#include "base/text.h"

#include <dualpipe/topology.h>

enum { DP_TOPO_JSON_VERSION = 1 };

void dp_topo_write_json(const struct dp_topology *t, struct dp_text *out);
int dp_topo_read_json(const char *text, size_t len, struct dp_topology **out);

#endif
