/* SPDX-License-Identifier: Apache-2.0
 *
 * rules.h - whether a table has anything to say about a job of this size.
 */
#ifndef DP_TOOLS_TUNE_RULES_H
#define DP_TOOLS_TUNE_RULES_H

#include <dualpipe/tuning.h>

#include <stdio.h>

/* Unless a rule about the collective is for so many ranks on so many nodes: one line that says for
 * which sizes the rules are. */
void tune_warn_of_size(const struct dp_tuning_table *table, int function, int64_t ranks,
                       int64_t nodes, FILE *to);

#endif
