/* SPDX-License-Identifier: Apache-2.0
 *
 * topo.h - what the commands of `dualpipe topo` share: where a topology comes from, hosts that are
 * alike, and words for what it says.
 */
#ifndef DP_TOOLS_TOPO_H
#define DP_TOOLS_TOPO_H

#include "args.h"

#include <dualpipe/topology.h>

#include <stdio.h>

/* ---- arguments ------------------------------------------------------------------------------ */

struct topo_args {
    struct arg_list inputs;
    const char *sysfs, *synthetic, *output, *format;
    const char *convert; /* of place: this file, and no topology is needed */
    bool hwloc;
};

/* --topology, --sysfs, --synthetic, --output: for every command. */
extern const struct arg_group topo_source_group;

/* The topology that the arguments name, this machine's if none does. 0, else an EXIT_ value, the
 * sentence has been printed. The caller frees. */
int topo_load(const struct topo_args *a, struct dp_topology **out);

/* The topology of a file, and the text of any file ("-": standard input) with a NUL behind it, to be
 * freed. EXIT_USAGE and NULL once the sentence has been printed. */
int topo_load_file(const char *path, struct dp_topology **out);
char *topo_read_file(const char *path, size_t *len);

/* Parse, load, write to --output through `write`, which returns 0 or a negative errno. */
typedef int (*topo_write_fn)(const void *values, const struct operands *operands,
                             const struct dp_topology *t, FILE *to);
int topo_run(const struct usage *usage, int argc, char **argv, void *values, topo_write_fn write);

/* A placement of an older release, as lines of text. 0, or a negative errno once the sentence has been
 * printed. */
int topo_convert(const char *path, FILE *to);

/* The host that --host names, or that a node of that name is in; NULL: the first. Else DP_EINVAL, and
 * the sentence has been printed. */
int topo_find_host(const struct dp_topology *t, const char *name, int32_t *host);

/* What has been printed to `to` has arrived: 0 or DP_EIO. */
int topo_finish(FILE *to);

/* ---- hosts that are alike -------------------------------------------------------------------- */

/* first[i]: the number of the first host that host number i is like, but for names, addresses and
 * serial numbers; nodes[i]: its node. NULL: no memory. One block, the caller frees it. */
struct topo_hosts {
    int32_t *first, *nodes;
};
struct topo_hosts *topo_hosts_compare(const struct dp_topology *t);

/* "node0", "node0 to node1023 (1024 hosts)", "node0, node4, node5": those like host number `first`. */
void topo_hosts_put(const struct dp_topology *t, const struct topo_hosts *h, int32_t first, FILE *to);

/* ---- words ----------------------------------------------------------------------------------- */

enum { TOPO_WORD = 128 };

/* "450 GB/s", "~40 GB/s" if assumed, "unlimited", "unknown rate". */
const char *topo_rate(const struct dp_topo_link *l, char out[TOPO_WORD]);
/* "PCIe 5.0 x16", "18 NVLinks", "CPU link", ... */
const char *topo_link(const struct dp_topo_link *l, char out[TOPO_WORD]);
/* "80 GiB" */
const char *topo_size(uint64_t bytes, char out[TOPO_WORD]);
/* "NV18", "PIX", "NET*" */
const char *topo_class(const struct dp_topo_path *p, char out[TOPO_WORD]);
/* "mlx5_0", or a label such as "nic0" where it has no name. */
const char *topo_nic(const struct dp_topology *t, int32_t nic, char label[DP_TOPO_LABEL_LEN]);
/* "400 Gb/s InfiniBand" */
const char *topo_port(const struct dp_topo_port *p, char out[TOPO_WORD]);

#endif
