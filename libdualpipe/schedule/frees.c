/* SPDX-License-Identifier: Apache-2.0
 *
 * frees.c - the pass that gives outputs back: behind every COMMIT a FREE for each activation that
 * was sent by it. Outputs that stay on the rank, of last stages or for a next stage right here, are
 * not freed by the list.
 */
#include "schedule/build.h"

/* Append a FREE for each of the `sent` activations that are sent from in[at] on. */
static struct dp_op *free_sent(struct dp_op *to, const struct dp_op *in, size_t sent,
                               uint32_t unit)
{
    for (; sent; in++) {
        struct dp_op op = *in;
        if (op.kind != DP_OP_SEND_F)
            continue;
        op.kind = DP_OP_FREE;
        op.unit = unit;
        *to++ = op;
        sent--;
    }
    return to;
}

void dp_add_frees(const struct dp_rank_view *view, const struct dp_op *in, size_t count,
                  struct dp_op_list *out)
{
    size_t oldest = 0, sent = 0; /* activations sent since the last COMMIT: the first, how many */
    struct dp_op *to;

    (void)view;
    if (!count || !dp_op_list_reserve(out, 2 * count))
        return;
    to = out->ops + out->count;
    for (size_t i = 0; i < count; i++) {
        struct dp_op op = *to++ = in[i];
        if (op.kind == DP_OP_SEND_F && !sent++)
            oldest = i;
        if (op.kind == DP_OP_COMMIT) {
            to = free_sent(to, in + oldest, sent, op.unit);
            sent = 0;
        }
    }
    out->count = (size_t)(to - out->ops);
}

int dp_schedule_add_frees(struct dp_schedule *s)
{
    return s->return_outputs ? 0 : dp_schedule_rewrite(s, dp_add_frees);
}
