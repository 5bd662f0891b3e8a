/* SPDX-License-Identifier: Apache-2.0
 *
 * hash.h - a number for what all ranks must have in common (dp_comm_agree).
 */
#ifndef DP_MIXING_HASH_H
#define DP_MIXING_HASH_H

#include <dualpipe/comm.h>
#include <dualpipe/mixing.h>
#include <dualpipe/parameter.h>

/* Names, types, sizes and flags of a sound list. */
uint64_t dp_hash_parameters(const struct dp_parameter *parameters, int32_t count);
/* Collective: is the list the same on all ranks? DP_EMISMATCH on every one, with the first parameter
 * that is not; errors of comm.h. */
int dp_agree_on_parameters(struct dp_comm *comm, const struct dp_parameter *parameters, int32_t count);
/* The same of a graph, and of a number for all that belongs to it; `what` names both. */
int dp_agree_on_graph(struct dp_comm *comm, const struct dp_graph *g, const char *what,
                      uint64_t options);

#endif
