/* SPDX-License-Identifier: Apache-2.0
 *
 * reduces.c - the pass that sums weight gradients with the mirror's: a REDUCE right after the last
 * weight gradient of every slot that has a mirror. The two ranks of a pair run mirror images of one
 * program, so both come to their slots in the same order; dp_schedule_check proves it for any list.
 */
#include "schedule/build.h"

static bool adds_weight_gradient(struct dp_op op)
{
    return op.kind == DP_OP_B || op.kind == DP_OP_W;
}

void dp_add_reduces(const struct dp_rank_view *view, const struct dp_op *in, size_t count,
                    struct dp_op_list *out)
{
    size_t last[DP_MAX_SLOTS] = {0}; /* index behind the slot's last weight gradient */

    if (!dp_op_list_reserve(out, count + DP_MAX_SLOTS))
        return;
    for (size_t i = 0; i < count; i++)
        if (adds_weight_gradient(in[i]))
            last[in[i].slot] = i + 1;
    for (size_t i = 0; i < count; i++) {
        dp_op_list_put(out, in[i]);
        if (last[in[i].slot] == i + 1 && view->slots[in[i].slot].mirror >= 0)
            dp_op_list_put(out, (struct dp_op){.kind = DP_OP_REDUCE, .unit = in[i].unit,
                                               .slot = in[i].slot});
    }
}

int dp_schedule_add_reduces(struct dp_schedule *s)
{
    return dp_schedule_rewrite(s, dp_add_reduces);
}
