/* SPDX-License-Identifier: Apache-2.0
 *
 * one_f_one_b.c - one forward, one backward in turn (PipeDream-Flush, Narayanan et al., 2021): as
 * fast as GPipe, with P - rank instead of M activation sets alive. P = 3, M = 4, B two wide:
 *
 *      rank 0  F0 F1 F2 .  .  .  B0 B0 F3 B1 B1 ...
 *      rank 1  .  F0 F1 .  B0 B0 F2 B1 B1 F3 ...
 *      rank 2  .  .  F0 B0 B0 F1 B1 B1 F2 ...
 */
#include "schedule/build.h"

enum { WARM_UP = 1, STEADY = 2, DRAIN = 3 };

static void add(struct dp_op_list *out, enum dp_op_kind kind, uint32_t unit, int mb)
{
    dp_op_list_add(out, (struct dp_op){.kind = kind, .unit = unit, .mb = (uint32_t)mb});
}

static void write_rank(const struct dp_rank_view *view, struct dp_op_list *out)
{
    int count = view->s->mb_per_stream;
    int ahead = view->s->ranks - 1 - view->rank; /* forwards before the first backward */
    bool training = !view->s->forward_only;

    if (ahead > count)
        ahead = count;
    for (int mb = 0; mb < ahead; mb++)
        add(out, DP_OP_F, WARM_UP, mb);
    for (int mb = ahead; mb < count; mb++) {
        add(out, DP_OP_F, STEADY, mb);
        if (training)
            add(out, DP_OP_B, STEADY, mb - ahead);
    }
    for (int mb = count - ahead; training && mb < count; mb++)
        add(out, DP_OP_B, DRAIN, mb);
}

static int max_activations(const struct dp_rank_view *view)
{
    return view->s->ranks - view->rank;
}

static int max_weight_queue(const struct dp_rank_view *view)
{
    (void)view;
    return 0;
}

const struct dp_builder dp_build_1f1b = {
    .name = "1f1b",
    .slots_per_rank = 1,
    .stages_per_rank = 1,
    .streams = 1,
    .place = dp_place_line,
    .write = write_rank,
    .max_activations = max_activations,
    .max_weight_queue = max_weight_queue,
};
