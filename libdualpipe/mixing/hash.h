/* SPDX-License-Identifier: Apache-2.0
 *
 * hash.h - what all ranks must have in common, as lines that are compared (dp_comm_agree_on_lines).
 */
#ifndef DP_MIXING_HASH_H
#define DP_MIXING_HASH_H

#include <dualpipe/comm.h>
#include <dualpipe/mixing.h>
#include <dualpipe/parameter.h>

struct dp_text;

/* Type and number of elements, "float32[6]". */
void dp_add_elements(struct dp_text *lines, const DLTensor *tensor);
/* Names, types, sizes and flags of a sound list. */
void dp_add_parameters(struct dp_text *lines, const struct dp_parameter *parameters, int32_t count);
/* Collective: is the list the same on all ranks? DP_EMISMATCH on every one, with the first parameter
 * that is not; errors of comm.h. */
int dp_agree_on_parameters(struct dp_comm *comm, const struct dp_parameter *parameters, int32_t count);
/* The same of a graph, after lines for all that belongs to it, which are freed. */
int dp_agree_on_graph(struct dp_comm *comm, const struct dp_graph *g, struct dp_text *options);

#endif
