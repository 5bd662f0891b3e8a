/* SPDX-License-Identifier: Apache-2.0
 *
 * internal.h - what other layers of the library call of this one, and its users do not.
 */
#ifndef DP_MIXING_INTERNAL_H
#define DP_MIXING_INTERNAL_H

#include <dualpipe/mixer.h>
#include <dualpipe/mixing.h>

/* A graph for another number of workers, each on a node of its own: of the same kind where that exists;
 * otherwise directed-exp for push-sum, torus for one round, hypercube for several. The caller frees.
 * DP_EINVAL for less than one worker; DP_ENOMEM. Any thread. */
int dp_graph_of_size(const struct dp_graph *g, int workers, struct dp_graph **out);
/* W[to][from] of round t. */
double dp_graph_weight(const struct dp_graph *g, int64_t t, int32_t to, int32_t from);
/* "d-psgd", "local-sgd"; NULL for anything else. */
const char *dp_mixer_algorithm_name(enum dp_mixer_algorithm algorithm);
const char *dp_graph_rule_name(enum dp_graph_rule rule); /* "row"; no rule: "?" */

/* A piece of memory of one element type. */
struct dp_mixer_piece {
    DLDataType type;
    size_t elements;
    char *at;
};

struct dp_replicas;
/* Values i of those that follow each other in the memory of a device, on all ranks; false: there is no
 * number i. */
bool dp_replicas_row(const struct dp_replicas *r, int32_t i, struct dp_mixer_piece *out);
/* The shard, and behind it that of the replica before, if there is another one. */
const struct dp_parameter *dp_replicas_held(const struct dp_replicas *r, int32_t *count);

#endif
