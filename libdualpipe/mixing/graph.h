/* SPDX-License-Identifier: Apache-2.0
 *
 * graph.h - what the files of the graphs share, and what becomes of a graph when workers go or come.
 */
#ifndef DP_MIXING_GRAPH_H
#define DP_MIXING_GRAPH_H

#include <dualpipe/mixing.h>

/* Groups of one for all workers that the last round has not named yet. */
void dp_graph_add_rest_alone(struct dp_graph_builder *b);

/* The graph of the workers that are left: alive[workers], whose numbers become 0, 1 ... in their
 * order, each on a node of its own. Of the same kind where that exists for so few (ring of 8 with 6
 * left); otherwise each lost worker is taken out of every round: what it took from one goes to
 * those that it gave to, in the same shares, so that rows and columns still sum to one. A pair
 * without its partner keeps its value; rounds that never bring two parts together get one more that
 * does. A graph of push-sum in several rounds becomes directed-exp. The result has passed
 * dp_graph_check. DP_EINVAL if none is alive; DP_ENOMEM. Any thread. */
int dp_graph_without(const struct dp_graph *g, const bool *alive, struct dp_graph **out);

/* Same workers, local, push_sum and rounds; names may differ. */
bool dp_graph_equal(const struct dp_graph *a, const struct dp_graph *b);

/* out = W x of round t, or its transpose, a number a worker: x[workers], out[workers], not the same
 * memory. */
void dp_graph_mix(const struct dp_graph *g, int64_t t, bool back, const double *x, double *out);

#endif
