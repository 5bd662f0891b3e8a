/* SPDX-License-Identifier: Apache-2.0
 *
 * finding.c - what the checker says: the rule that is broken, where, and why.
 */
#include "schedule/check.h"

#include <stdarg.h>
#include <stdio.h>

const char *dp_rule_name(enum dp_rule rule)
{
    static const char *const names[DP_RULES] = {
        [DP_RULE_NONE] = "none",
        [DP_RULE_SHAPE] = "shape",
        [DP_RULE_ONCE] = "once",
        [DP_RULE_DEPENDENCY] = "dependency",
        [DP_RULE_FIFO] = "fifo",
        [DP_RULE_DEADLOCK] = "deadlock",
        [DP_RULE_WEIGHT] = "weight",
        [DP_RULE_ACTIVATION] = "activation",
        [DP_RULE_COMMIT] = "commit",
    };
    return (unsigned)rule < DP_RULES ? names[rule] : "?";
}

static size_t describe_place(const struct dp_checker *c, char *text, size_t len)
{
    const struct dp_finding *f = c->finding;
    char op[DP_OP_TEXT_LEN];

    if (f->rank < 0)
        return 0;
    if (f->index == dp_schedule_count(c->s, f->rank))
        return (size_t)snprintf(text, len, "rank %d, end of list: ", f->rank);
    return (size_t)snprintf(text, len, "rank %d, op %zu (%s): ", f->rank, f->index,
                            dp_op_text(f->op, op));
}

int dp_check_found(struct dp_checker *c, enum dp_rule rule, int rank, size_t index,
                   const char *fmt, ...)
{
    struct dp_finding *f = c->finding;
    va_list args;
    size_t len;

    *f = (struct dp_finding){.rule = rule, .rank = rank, .index = index};
    if (rank >= 0 && index < dp_schedule_count(c->s, rank))
        f->op = dp_schedule_ops(c->s, rank)[index];
    len = describe_place(c, f->text, sizeof(f->text));
    va_start(args, fmt);
    vsnprintf(f->text + len, sizeof(f->text) - len, fmt, args);
    va_end(args);
    return DP_EINVAL;
}
