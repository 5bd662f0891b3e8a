/* SPDX-License-Identifier: Apache-2.0
 *
 * tune.h - what the commands of `dualpipe tune` share.
 */
#ifndef DP_TOOLS_TUNE_H
#define DP_TOOLS_TUNE_H

#include "args.h"

#include <dualpipe/tuning.h>

/* The cluster that TEXT means: a file that a tool for topologies wrote, or a description of a few
 * words. Fills what it says of the links, and how many GPUs and hosts it has. 0, else an EXIT_ value;
 * the sentence has been printed. */
int tune_read_topology(const char *text, struct dp_tuning_links *links, int64_t *ranks,
                       int64_t *nodes);

/* The same of the cluster that a placement was made for, as the plugin takes it from there. */
int tune_read_placement(const char *path, struct dp_tuning_links *links, int64_t *ranks,
                        int64_t *nodes);

/* "ring/simple". Returns out. */
enum { TUNE_CELL_LEN = 32 };
const char *tune_cell_text(int algorithm, int protocol, char out[TUNE_CELL_LEN]);

/* The place of name in dp_tuning_function_name, dp_tuning_algorithm_name, ...; -1: none. */
int tune_find(const char *(*name_of)(int), int count, const char *name, size_t len);

#endif
