/* SPDX-License-Identifier: Apache-2.0
 *
 * tune.h - what the commands of `dualpipe tune` share.
 */
#ifndef DP_TOOLS_TUNE_H
#define DP_TOOLS_TUNE_H

#include "args.h"
#include <dualpipe/topology.h>
#include <dualpipe/tuning.h>

#include <stdio.h>

/* What the model needs to know of a cluster. */
struct tune_place {
    struct dp_tuning_links links;
    int64_t ranks, nodes; /* GPUs and hosts; 0: not known */
    bool has_nvls;        /* its NVSwitches add up; false: they do not, or it is not known */
};

/* Which cluster, as for `dualpipe topo`; NULL: not given. --topology may be a description, too. */
struct tune_source {
    const char *topology, *synthetic, *sysfs;
};
bool tune_has_source(const struct tune_source *source);
/* 0, else an EXIT_ value; the sentence has been printed. */
int tune_load_topology(const struct tune_source *source, struct dp_topology **out);

/* The cluster of exactly one of them. 0, else an EXIT_ value; the sentence has been printed. */
int tune_read_topology(const struct tune_source *source, struct tune_place *out);

/* The same of the cluster that a placement was made for, as the plugin takes it from there. */
int tune_read_placement(const char *path, struct tune_place *out);

/* "ring/simple". Returns out. */
enum { TUNE_CELL_LEN = 32 };
const char *tune_cell_text(int algorithm, int protocol, char out[TUNE_CELL_LEN]);

/* The place of name in DP_NAMES_FUNCTION, DP_NAMES_ALGORITHM, ...; -1: none. */
int tune_find(enum dp_names names, int count, const char *name, size_t len);

/* ---- rules ----------------------------------------------------------------------------------- */

/* Whether a table has anything to say about a job of this size. */

/* Unless a rule about the collective is for so many ranks on so many nodes: one line that says for
 * which sizes the rules are. */
void tune_warn_of_size(const struct dp_tuning_table *table, int function, int64_t ranks,
                       int64_t nodes, FILE *to);

#endif
