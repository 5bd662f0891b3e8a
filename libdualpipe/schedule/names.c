/* SPDX-License-Identifier: Apache-2.0
 *
 * names.c - what kinds, ops and rules are called, and the table of builders.
 */
#include "base/fail.h"
#include "base/nearest.h"
#include "schedule/build.h"

#include <stdio.h>
#include <string.h>

static const struct dp_builder *const builders[] = {
    [DP_SCHEDULE_USER] = NULL,
    [DP_SCHEDULE_GPIPE] = &dp_build_gpipe,
    [DP_SCHEDULE_1F1B] = &dp_build_1f1b,
    [DP_SCHEDULE_ZB1P] = &dp_build_zb1p,
    [DP_SCHEDULE_DUALPIPE] = &dp_build_dualpipe,
    [DP_SCHEDULE_DUALPIPEV] = &dp_build_dualpipev,
};
_Static_assert(sizeof(builders) / sizeof(builders[0]) == DP_SCHEDULE_KINDS, "a builder each");

const struct dp_builder *dp_builder_of(enum dp_schedule_kind kind)
{
    return (unsigned)kind < DP_SCHEDULE_KINDS ? builders[kind] : NULL;
}

const char *dp_schedule_kind_name(enum dp_schedule_kind kind)
{
    const struct dp_builder *builder = dp_builder_of(kind);
    return builder ? builder->name : "user";
}

int dp_schedule_kind_find(const char *name, enum dp_schedule_kind *kind)
{
    const char *names[DP_SCHEDULE_KINDS];

    for (int k = 0; k < DP_SCHEDULE_KINDS; k++) {
        names[k] = dp_schedule_kind_name((enum dp_schedule_kind)k);
        if (!strcmp(names[k], name)) {
            *kind = (enum dp_schedule_kind)k;
            return 0;
        }
    }
    const char *near = dp_nearest(name, names, DP_SCHEDULE_KINDS);
    return dp_fail_quietly(DP_EINVAL, "schedule '%s', expected one of gpipe, 1f1b, zb1p, dualpipe, "
                           "dualpipev, user%s%s%s", name, near ? "; did you mean " : "",
                           near ? near : "", near ? "?" : "");
}

int dp_schedule_kind_parse(const char *name, enum dp_schedule_kind *kind)
{
    int err = dp_schedule_kind_find(name, kind);
    return err ? dp_fail(err, "%s", dp_last_error()) : 0;
}

const char *dp_op_kind_name(enum dp_op_kind kind)
{
    static const char *const names[DP_OP_KINDS] = {
        [DP_OP_NONE] = "NONE",     [DP_OP_F] = "F",           [DP_OP_B] = "B",
        [DP_OP_I] = "I",           [DP_OP_W] = "W",           [DP_OP_RECV_F] = "RECV_F",
        [DP_OP_RECV_B] = "RECV_B", [DP_OP_SEND_F] = "SEND_F", [DP_OP_SEND_B] = "SEND_B",
        [DP_OP_COMMIT] = "COMMIT", [DP_OP_FREE] = "FREE",     [DP_OP_REDUCE] = "REDUCE",
    };
    return (unsigned)kind < DP_OP_KINDS ? names[kind] : "?";
}

const char *dp_op_text(struct dp_op op, char text[DP_OP_TEXT_LEN])
{
    static const char *const words[DP_OP_KINDS] = {"none", "F",  "B",  "I", "W", "rF",
                                                   "rB",   "sF", "sB", "c", "x", "R"};
    const char *word = op.kind < DP_OP_KINDS ? words[op.kind] : "?";

    if (op.kind == DP_OP_COMMIT)
        snprintf(text, DP_OP_TEXT_LEN, "%s%u", word, op.mb);
    else if (op.kind == DP_OP_REDUCE)
        snprintf(text, DP_OP_TEXT_LEN, "%s%u", word, op.slot);
    else
        snprintf(text, DP_OP_TEXT_LEN, "%s%u.%u", word, op.slot, op.mb);
    return text;
}
