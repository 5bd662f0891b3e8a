/* SPDX-License-Identifier: Apache-2.0
 *
 * rule.h - a rule, value by value: each column of a table has a name, takes a text and is written as
 * one.
 */
#ifndef DP_TUNING_RULE_H
#define DP_TUNING_RULE_H

#include "base/text.h"

#include <dualpipe/tuning.h>

/* In the order of a file without a line of names. */
enum dp_tuning_column {
    DP_COLUMN_COLLECTIVE,
    DP_COLUMN_MIN_BYTES,
    DP_COLUMN_MAX_BYTES,
    DP_COLUMN_ALGORITHM,
    DP_COLUMN_PROTOCOL,
    DP_COLUMN_CHANNELS,
    DP_COLUMN_NODES,
    DP_COLUMN_RANKS,
    DP_COLUMN_PIPE_OPS,
    DP_COLUMN_REGISTERED,
    DP_COLUMN_CHUNK_BYTES,
    DP_COLUMN_TIME_US,
    DP_COLUMN_DEFAULT_US,
    DP_COLUMNS
};
extern const char *const dp_tuning_columns[DP_COLUMNS + 1]; /* NULL-terminated */

/* Where every column is open; the collective is missing. */
extern const struct dp_tuning_rule dp_tuning_rule_open;

/* Quiet: what was wrong goes to `why` ("max_bytes: '12q', expected ..."). */
enum { DP_RULE_WHY = 256 };
bool dp_tuning_rule_set(struct dp_tuning_rule *rule, enum dp_tuning_column column, const char *text,
                        char why[DP_RULE_WHY]);
/* Append the text that dp_tuning_rule_set takes for it. */
void dp_tuning_rule_write(const struct dp_tuning_rule *rule, enum dp_tuning_column column,
                          struct dp_text *out);
/* Do its values go together? NULL, or why not. */
const char *dp_tuning_rule_check(const struct dp_tuning_rule *rule);

#endif
