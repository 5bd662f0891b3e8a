/* SPDX-License-Identifier: Apache-2.0
 *
 * graph.h - what the files of the graphs share: the table of built-in graphs, and the written forms.
 */
#ifndef DP_MIXING_GRAPH_H
#define DP_MIXING_GRAPH_H

#include "base/text.h"
#include <dualpipe/mixing.h>

/* A built-in graph. Its build function has been given workers >= 1 and a local that divides it. */
struct dp_graph_builtin {
    const char *name;
    int (*build)(const struct dp_graph_spec *spec, struct dp_graph_builder *b);
};
extern const struct dp_graph_builtin dp_graph_builtins[]; /* ends with a name of NULL */

/* Groups of one for all workers that the last round has not named yet. */
void dp_graph_add_rest_alone(struct dp_graph_builder *b);

/* The readers of one form each. */
int dp_graph_read_words(const char *text, size_t len, struct dp_graph **out);
int dp_graph_read_json(const char *text, size_t len, struct dp_graph **out);
void dp_graph_write_words(const struct dp_graph *g, struct dp_text *t);
void dp_graph_write_json(const struct dp_graph *g, struct dp_text *t);

/* Lines of numbers: a matrix or an edge list. */
struct dp_number_table {
    double *items; /* row after row */
    int *columns;  /* [rows] */
    int *lines;    /* [rows]: where in the file */
    int rows;
    size_t count, capacity;
    int row_capacity;
};
int dp_number_table_read(const char *text, size_t len, struct dp_number_table *out);
void dp_number_table_fini(struct dp_number_table *t);
bool dp_number_table_is_square(const struct dp_number_table *t);

int dp_graph_of_matrix(const struct dp_number_table *t, enum dp_graph_weights weights,
                       struct dp_graph **out);
int dp_graph_of_edges(const struct dp_number_table *t, enum dp_graph_weights weights, int workers,
                      struct dp_graph **out);

/* Colour the edges of a simple graph: ends[2 * i], ends[2 * i + 1] are the ends of edge i, colors[i]
 * receives 0 .. *used - 1, where *used is at most the largest degree + 1. Edges that share an end have
 * different colours. DP_ENOMEM. */
int dp_color_edges(int workers, size_t edges, const int32_t *ends, int32_t *colors, int32_t *used);

#endif
