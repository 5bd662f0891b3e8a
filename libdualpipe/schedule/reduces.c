/* SPDX-License-Identifier: Apache-2.0
 *
 * reduces.c - the pass that sums weight gradients with the mirror's: a REDUCE for every slot that
 * has a mirror on another rank, once its last weight gradient is done. It stands before the next
 * compute, behind the messages that others wait for:
 *
 *      B1.3 sB1.3 rB0.2 c2 R1 I0.2
 *
 * The two ranks of a pair run mirror images of one program, so both come to their slots in the same
 * order; dp_schedule_check proves it for any list.
 */
#include "schedule/build.h"

static bool adds_weight_gradient(struct dp_op op)
{
    return op.kind == DP_OP_B || op.kind == DP_OP_W;
}

/* The REDUCE for a weight gradient, if one is due. */
static void flush(struct dp_op *due, struct dp_op_list *out)
{
    if (due->kind != DP_OP_NONE)
        dp_op_list_put(out, (struct dp_op){.kind = DP_OP_REDUCE, .unit = due->unit,
                                           .slot = due->slot});
    due->kind = DP_OP_NONE;
}

void dp_add_reduces(const struct dp_rank_view *view, const struct dp_op *in, size_t count,
                    struct dp_op_list *out)
{
    size_t last[DP_MAX_SLOTS] = {0}; /* index of the slot's last weight gradient */
    struct dp_op due = {.kind = DP_OP_NONE};

    if (!dp_op_list_reserve(out, count + DP_MAX_SLOTS))
        return;
    for (size_t i = 0; i < count; i++)
        if (adds_weight_gradient(in[i]))
            last[in[i].slot] = i;
    for (size_t i = 0; i < count; i++) {
        if (dp_op_is_compute((enum dp_op_kind)in[i].kind))
            flush(&due, out);
        dp_op_list_put(out, in[i]);
        if (adds_weight_gradient(in[i]) && last[in[i].slot] == i &&
            dp_slot_has_remote_mirror(&view->slots[in[i].slot], view->rank))
            due = in[i];
    }
    flush(&due, out);
}

int dp_schedule_add_reduces(struct dp_schedule *s)
{
    return dp_schedule_rewrite(s, dp_add_reduces);
}
