/* SPDX-License-Identifier: Apache-2.0
 *
 * frees.c - the pass that gives outputs back: behind every COMMIT a FREE for each activation that
 * was sent by it. Outputs that stay on the rank, of last stages or for a next stage right here, are
 * not freed by the list.
 */
#include "schedule/build.h"

void dp_add_frees(const struct dp_rank_view *view, const struct dp_op *in, size_t count,
                  struct dp_op_list *out)
{
    size_t batch = 0; /* where the batch to be committed begins */

    (void)view;
    if (!dp_op_list_reserve(out, 2 * count))
        return;
    for (size_t i = 0; i < count; i++) {
        dp_op_list_put(out, in[i]);
        if (in[i].kind != DP_OP_COMMIT)
            continue;
        for (; batch < i; batch++)
            if (in[batch].kind == DP_OP_SEND_F)
                dp_op_list_put(out, (struct dp_op){.kind = DP_OP_FREE, .unit = in[i].unit,
                                                   .slot = in[batch].slot, .mb = in[batch].mb});
    }
}

int dp_schedule_add_frees(struct dp_schedule *s)
{
    return s->return_outputs ? 0 : dp_schedule_rewrite(s, dp_add_frees);
}
