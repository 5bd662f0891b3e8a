/* SPDX-License-Identifier: Apache-2.0
 *
 * gpipe.c - all forwards, then all backwards (Huang et al., 2019). P = 3, M = 4:
 *
 *      rank 0  F0 F1 F2 F3 .  .  .  .  B0 .. B3
 *      rank 1  .  F0 F1 F2 F3 .  .  B0 .. B3
 *      rank 2  .  .  F0 F1 F2 F3 B0 .. B3
 *
 * Backwards go in the order of the micro-batches, as in all our schedules, so that weight gradients
 * are added in that order.
 */
#include "schedule/build.h"

static void write_rank(const struct dp_rank_view *view, struct dp_op_list *out)
{
    uint32_t count = (uint32_t)view->s->mb_per_stream;

    for (uint32_t mb = 0; mb < count; mb++)
        dp_op_list_add(out, (struct dp_op){.kind = DP_OP_F, .unit = 1, .mb = mb});
    for (uint32_t mb = 0; !view->s->forward_only && mb < count; mb++)
        dp_op_list_add(out, (struct dp_op){.kind = DP_OP_B, .unit = 2, .mb = mb});
}

static int max_activations(const struct dp_rank_view *view)
{
    return view->s->mb_per_stream;
}

const struct dp_builder dp_build_gpipe = {
    .name = "gpipe",
    .slots_per_rank = 1,
    .stages_per_rank = 1,
    .streams = 1,
    .place = dp_place_line,
    .write = write_rank,
    .max_activations = max_activations,
};
