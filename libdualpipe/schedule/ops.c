/* SPDX-License-Identifier: Apache-2.0
 *
 * ops.c - what ops are called, and lists of them.
 */
#include "base/array.h"
#include "schedule/build.h"
#include "schedule/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ----------------------------------------------------------------------------------- */

const char *dp_op_kind_name(enum dp_op_kind kind)
{
    static const char *const names[DP_OP_KINDS] = {
        [DP_OP_NONE] = "NONE",     [DP_OP_F] = "F",           [DP_OP_B] = "B",
        [DP_OP_I] = "I",           [DP_OP_W] = "W",           [DP_OP_RECV_F] = "RECV_F",
        [DP_OP_RECV_B] = "RECV_B", [DP_OP_SEND_F] = "SEND_F", [DP_OP_SEND_B] = "SEND_B",
        [DP_OP_COMMIT] = "COMMIT", [DP_OP_FREE] = "FREE",     [DP_OP_REDUCE] = "REDUCE",
        [DP_OP_RECV_SKIP_F] = "RECV_SKIP_F", [DP_OP_RECV_SKIP_B] = "RECV_SKIP_B",
        [DP_OP_SEND_SKIP_F] = "SEND_SKIP_F", [DP_OP_SEND_SKIP_B] = "SEND_SKIP_B",
        [DP_OP_EVICT] = "EVICT",   [DP_OP_FETCH] = "FETCH",   [DP_OP_RECOMPUTE] = "RECOMPUTE",
        [DP_OP_REDUCE_WAIT] = "REDUCE_WAIT",
    };
    return (unsigned)kind < DP_OP_KINDS ? names[kind] : "?";
}

const char *dp_op_token(enum dp_op_kind kind)
{
    static const char *const tokens[DP_OP_KINDS] = {
        [DP_OP_NONE] = "none",     [DP_OP_F] = "F",       [DP_OP_B] = "B",
        [DP_OP_I] = "I",           [DP_OP_W] = "W",       [DP_OP_RECOMPUTE] = "re",
        [DP_OP_RECV_F] = "rF",     [DP_OP_RECV_B] = "rB", [DP_OP_SEND_F] = "sF",
        [DP_OP_SEND_B] = "sB",     [DP_OP_COMMIT] = "c",  [DP_OP_FREE] = "x",
        [DP_OP_EVICT] = "ev",      [DP_OP_FETCH] = "fe",  [DP_OP_REDUCE] = "R",
        [DP_OP_REDUCE_WAIT] = "Rw",
        [DP_OP_RECV_SKIP_F] = "rkF", [DP_OP_RECV_SKIP_B] = "rkB",
        [DP_OP_SEND_SKIP_F] = "skF", [DP_OP_SEND_SKIP_B] = "skB",
    };
    return (unsigned)kind < DP_OP_KINDS ? tokens[kind] : "?";
}

const char *dp_op_text(struct dp_op op, char text[DP_OP_TEXT_LEN])
{
    const char *token = dp_op_token((enum dp_op_kind)op.kind);

    if (op.kind == DP_OP_COMMIT)
        snprintf(text, DP_OP_TEXT_LEN, "%s%u", token, op.mb);
    else if (!dp_op_has_mb((enum dp_op_kind)op.kind) && op.kind != DP_OP_NONE)
        snprintf(text, DP_OP_TEXT_LEN, "%s%u", token, op.slot);
    else if (dp_op_argument(op) || dp_op_is_skip((enum dp_op_kind)op.kind))
        snprintf(text, DP_OP_TEXT_LEN, "%s%u.%u:%u", token, op.slot, op.mb, dp_op_argument(op));
    else
        snprintf(text, DP_OP_TEXT_LEN, "%s%u.%u", token, op.slot, op.mb);
    return text;
}

/* ---- lists of ops ---------------------------------------------------------------------------- */

bool dp_op_list_grow(struct dp_op_list *list, size_t more)
{
    if (list->failed)
        return false;

    size_t capacity = list->borrowed ? 0 : list->capacity;
    struct dp_op *ops = dp_array_grow(list->borrowed ? NULL : list->ops, &capacity,
                                      list->count + more, sizeof(*ops));
    if (!ops) {
        list->failed = true;
        return false;
    }
    if (list->borrowed)
        memcpy(ops, list->ops, list->count * sizeof(*ops));
    list->borrowed = false;
    list->ops = ops;
    list->capacity = capacity;
    return true;
}

void dp_op_list_append(struct dp_op_list *list, const struct dp_op *ops, size_t count)
{
    if (!count || !dp_op_list_reserve(list, count))
        return;
    memcpy(list->ops + list->count, ops, count * sizeof(*ops));
    list->count += count;
}

void dp_op_list_fini(struct dp_op_list *list)
{
    if (!list->borrowed)
        free(list->ops);
    *list = (struct dp_op_list){0};
}

const struct dp_op *dp_schedule_first_message(const struct dp_schedule *s)
{
    for (size_t i = 0; i < s->first[s->ranks]; i++)
        if (dp_op_is_message((enum dp_op_kind)s->ops[i].kind) || s->ops[i].kind == DP_OP_COMMIT)
            return &s->ops[i];
    return NULL;
}

bool dp_schedule_has(const struct dp_schedule *s, enum dp_op_kind kind)
{
    for (size_t i = 0; i < s->first[s->ranks]; i++)
        if (s->ops[i].kind == kind)
            return true;
    return false;
}
