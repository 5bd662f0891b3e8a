/* SPDX-License-Identifier: Apache-2.0
 *
 * lines.h - texts that must be the same on all ranks, and which line of them is not.
 */
#ifndef DP_COMM_LINES_H
#define DP_COMM_LINES_H

#include "base/text.h"

#include <dualpipe/comm.h>
#include <dualpipe/parameter.h>

/* Collective: do all ranks have these lines, "NAME tab VALUE" each? They are freed. DP_EMISMATCH on
 * every rank names the first line that differs and both values, or `what`, all of them, where the names
 * of the lines differ; errors of comm.h. */
int dp_comm_agree_on_lines(struct dp_comm *comm, const char *what, struct dp_text *lines);
/* Collective, where all ranks know that the lines of rank a and rank b differ: that error. Other ranks'
 * arguments are not looked at. a may be b. */
int dp_comm_name_difference(struct dp_comm *comm, const char *what, int a, const struct dp_text *of_a,
                            int b, const struct dp_text *of_b);

/* Type and number of elements, "float32[6]". */
void dp_add_elements(struct dp_text *lines, const DLTensor *tensor);
/* Names, types, sizes and flags of a sound list. */
void dp_add_parameters(struct dp_text *lines, const struct dp_parameter *parameters, int32_t count);
/* Collective: is the list the same on all ranks? DP_EMISMATCH on every one, with the first parameter
 * that is not; errors of comm.h. */
int dp_agree_on_parameters(struct dp_comm *comm, const struct dp_parameter *parameters, int32_t count);

#endif
