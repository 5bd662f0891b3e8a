/* SPDX-License-Identifier: Apache-2.0
 *
 * format.h - the formats of a topology, one writer and one reader a file.
 */
#ifndef DP_TOPOLOGY_FORMAT_H
#define DP_TOPOLOGY_FORMAT_H

#include "base/text.h"

#include <dualpipe/topology.h>

enum { DP_TOPO_JSON_VERSION = 1 };

void dp_topo_write_json(const struct dp_topology *t, struct dp_text *out);
int dp_topo_read_json(const char *text, size_t len, struct dp_topology **out);

/* NCCL's files: of one host. DP_EINVAL. */
int dp_topo_write_nccl(const struct dp_topology *t, struct dp_text *out);
/* DP_EUNSUPPORTED in a build without expat. */
int dp_topo_read_nccl(const char *text, size_t len, struct dp_topology **out);

/* What `nvidia-smi topo -m` prints. */
int dp_topo_read_smi(const char *text, size_t len, struct dp_topology **out);

/* hwloc's files: of one host. xml NULL: this machine. DP_EUNSUPPORTED in a build without hwloc. */
int dp_topo_read_hwloc(const char *xml, size_t len, struct dp_topology **out);

#endif
