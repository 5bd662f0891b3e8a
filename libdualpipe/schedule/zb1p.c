/* SPDX-License-Identifier: Apache-2.0
 *
 * zb1p.c - 1F1B with its backwards split (ZB-H1, Qi et al., 2023; "ZB1P" in DeepSeek's table): the
 * gradient goes on as soon as I is done, and rank r keeps r weight parts back for the time when it
 * would wait for gradients. As much memory as 1F1B's first rank, a third of its bubble where F = I =
 * W. P = 3, M = 4:
 *
 *      rank 0  F0 F1 F2 .  .  I0 W0 F3 I1 W1 I2 W2 I3 W3
 *      rank 1  .  F0 F1 .  I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
 *      rank 2  .  .  F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3
 */
#include "schedule/build.h"

enum { WARM_UP = 1, STEADY = 2, DRAIN = 3 };

static void add(struct dp_op_list *out, enum dp_op_kind kind, uint32_t unit, int mb)
{
    dp_op_list_add(out, (struct dp_op){.kind = kind, .unit = unit, .mb = (uint32_t)mb});
}

/* I of one micro-batch, then W of the one `behind` before it, if there is one. */
static void add_backward(struct dp_op_list *out, uint32_t unit, int mb, int behind)
{
    add(out, DP_OP_I, unit, mb);
    if (mb >= behind)
        add(out, DP_OP_W, unit, mb - behind);
}

static void write_rank(const struct dp_rank_view *view, struct dp_op_list *out)
{
    int count = view->s->mb_per_stream, behind = view->rank < count ? view->rank : count;
    int ahead = view->s->ranks - 1 - view->rank; /* forwards before the first backward */
    bool training = !view->s->forward_only;

    if (ahead > count)
        ahead = count;
    for (int mb = 0; mb < ahead; mb++)
        add(out, DP_OP_F, WARM_UP, mb);
    for (int mb = ahead; mb < count; mb++) {
        add(out, DP_OP_F, STEADY, mb);
        if (training)
            add_backward(out, STEADY, mb - ahead, behind);
    }
    for (int mb = count - ahead; training && mb < count; mb++)
        add_backward(out, DRAIN, mb, behind);
    for (int mb = count - behind; training && mb < count; mb++)
        add(out, DP_OP_W, DRAIN, mb);
}

static int max_activations(const struct dp_rank_view *view)
{
    return view->s->ranks;
}

static int max_weight_queue(const struct dp_rank_view *view)
{
    return view->rank + 1;
}

const struct dp_builder dp_build_zb1p = {
    .name = "zb1p",
    .slots_per_rank = 1,
    .stages_per_rank = 1,
    .streams = 1,
    .place = dp_place_line,
    .write = write_rank,
    .max_activations = max_activations,
    .max_weight_queue = max_weight_queue,
};
