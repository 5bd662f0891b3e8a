/* SPDX-License-Identifier: Apache-2.0
 *
 * rule.h - a rule, value by value: each column has a name, and takes a text. Every form that a table
 * has in a file hands its texts to this.
 */
#ifndef DP_TUNING_RULE_H
#define DP_TUNING_RULE_H

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

/* NULL-terminated, in the order of their enums. */
extern const char *const dp_tuning_functions[];
extern const char *const dp_tuning_algorithms[];
extern const char *const dp_tuning_protocols[];

/* Where every column is open; the collective is missing. */
extern const struct dp_tuning_rule dp_tuning_rule_open;

/* Quiet: what was wrong goes to `why` ("max_bytes: '12q', expected ..."). */
enum { DP_RULE_WHY = 256 };
bool dp_tuning_rule_set(struct dp_tuning_rule *rule, enum dp_tuning_column column, const char *text,
                        char why[DP_RULE_WHY]);
/* Do its values go together? */
bool dp_tuning_rule_check(const struct dp_tuning_rule *rule, char why[DP_RULE_WHY]);

/* What a reader of a table fills. */
struct dp_tuning_draft {
    const char *name;
    struct dp_tuning_rule *rules;
    size_t count, capacity;
};
/* DP_EINVAL with "NAME:LINE: ..." if its values do not go together, DP_ENOMEM. */
int dp_tuning_draft_add(struct dp_tuning_draft *draft, const struct dp_tuning_rule *rule);

int dp_tuning_read_csv(const char *text, size_t len, struct dp_tuning_draft *draft);
int dp_tuning_read_json(const char *text, size_t len, struct dp_tuning_draft *draft);

#endif
