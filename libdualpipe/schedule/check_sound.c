/* SPDX-License-Identifier: Apache-2.0
 *
 * check_sound.c - the least that must hold before a list is looked at op by op: ops that index
 * nothing they may not. For the simulator, which does not want to prove everything again.
 */
#include "base/fail.h"
#include "schedule/build.h"
#include "schedule/check.h"

static bool has_partner(const struct dp_schedule *s, int rank, struct dp_op op)
{
    int peer = dp_op_peer(dp_schedule_slot(s, rank, (int)op.slot), op);
    return peer >= 0 && peer != rank;
}

static bool is_sound(const struct dp_schedule *s, int rank, const struct dp_op *op, bool last)
{
    bool talks = dp_op_is_message((enum dp_op_kind)op->kind) || op->kind == DP_OP_REDUCE;

    if (op->kind >= DP_OP_KINDS || (int)op->slot >= s->slots_per_rank)
        return false;
    if (op->overlap && (op->kind != DP_OP_F || last || op[1].kind != DP_OP_B))
        return false;
    return !talks || has_partner(s, rank, *op);
}

int dp_check_sound(const struct dp_schedule *s)
{
    char text[DP_OP_TEXT_LEN];

    for (int rank = 0; rank < s->ranks; rank++) {
        const struct dp_op *ops = dp_schedule_ops(s, rank);
        size_t count = dp_schedule_count(s, rank);
        for (size_t i = 0; i < count; i++)
            if (!is_sound(s, rank, &ops[i], i + 1 == count))
                return dp_fail(DP_EINVAL, "simulate: rank %d, op %zu (%s) makes no sense; expected "
                               "a schedule that passes the checker", rank, i,
                               dp_op_text(ops[i], text));
    }
    return 0;
}
