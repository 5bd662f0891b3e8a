/* SPDX-License-Identifier: Apache-2.0
 *
 * topology_case.h - what tests of topologies have in common: make one, ask it by names. Whatever does
 * not work fails the test.
 */
#ifndef DP_TESTS_TOPOLOGY_CASE_H
#define DP_TESTS_TOPOLOGY_CASE_H

#include "topology/build.h"

/* Of a description; of a captured tree (tests/data/topology/NAME.tree). */
struct dp_topology *topology_made(const char *description);
struct dp_topology *topology_unpacked(const char *tree);
/* The same with the GPUs that a simulated NVML (tests/fakes/.libs/LIBRARY.so) reads from
 * tests/data/topology/nvml/GPUS.txt, GPUS being `gpus`. */
struct dp_topology *topology_unpacked_with(const char *tree, const char *library, const char *gpus);

/* malloc'ed: a topology in a format; the file tests/data/topology/NAME. */
char *topology_written(const struct dp_topology *t, enum dp_topology_format format);
char *topology_file(const char *name);
/* A topology read from a text, or from a file of one of the formats. */
struct dp_topology *topology_said(const char *text, enum dp_topology_format format);

/* As JSON, read, and written again: it is the same, and so is the text. */
void topology_survives_json(const struct dp_topology *t);

int32_t topology_node(const struct dp_topology *t, const char *name);
struct dp_topo_path topology_way(const struct dp_topology *t, const char *a, const char *b);
int32_t topology_count(const struct dp_topology *t, enum dp_topo_kind kind);
int32_t topology_count_links(const struct dp_topology *t, enum dp_topo_link_kind kind);
/* Whether a note contains that text. */
bool topology_notes(const struct dp_topology *t, const char *what);

/* Errors are expected here, so do not print them. For main. */
void topology_quietly(void);

#endif
