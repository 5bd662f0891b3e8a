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

/* hwloc's files: of one host. DP_EINVAL. */
int dp_topo_write_hwloc(const struct dp_topology *t, struct dp_text *out);
/* xml NULL: this machine. DP_EUNSUPPORTED in a build without hwloc. */
int dp_topo_read_hwloc(const char *xml, size_t len, struct dp_topology **out);

/* ---- pieces of XML (nccl_write.c) ----------------------------------------------------------- */

/* " KEY="VALUE"", escaped. */
void dp_xml_add(struct dp_text *out, const char *key, const char *value);
/* A list of CPUs as groups of 32 bits in hexadecimal, the highest first, each with the prefix:
 * "00000000,0000010f". */
enum { DP_TOPO_CPUS_MAX = 8192 };
/* The next range of a list such as "0-3,8", up to what a topology has of them; false: none is left. */
bool dp_topo_next_cpus(const char **cpus, unsigned long *first, unsigned long *last);
void dp_topo_add_mask(struct dp_text *out, const char *prefix, const char *cpus);
/* The PCI link of a node to the one that it stands in; NULL: none. */
const struct dp_topo_link *dp_topo_uplink(const struct dp_topology *t, int32_t node);

#endif
