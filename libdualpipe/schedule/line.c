/* SPDX-License-Identifier: Apache-2.0
 *
 * line.c - stage r on rank r. GPipe: all forwards, then all backwards (Huang et al., 2019).
 * P = 3, M = 4:
 *
 *      rank 0  F0 F1 F2 F3 .  .  .  .  B0 .. B3
 *      rank 1  .  F0 F1 F2 F3 .  .  B0 .. B3
 *      rank 2  .  .  F0 F1 F2 F3 B0 .. B3
 *
 * Backwards go in the order of the micro-batches, as in all our schedules, so that weight gradients
 * are added in that order.
 *
 * One forward, one backward in turn: 1F1B, and ZB1P whose backwards are split.
 *
 * 1F1B (PipeDream-Flush, Narayanan et al., 2021) is as fast as GPipe, with P - rank instead of M
 * activation sets alive. P = 3, M = 4, B two wide:
 *
 *      rank 0  F0 F1 F2 .  .  .  .  B0 B0 F3 B1 B1 .  B2 B2 .  B3 B3
 *      rank 1  .  F0 F1 .  .  B0 B0 F2 B1 B1 F3 B2 B2 .  B3 B3
 *      rank 2  .  .  F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3
 *
 * ZB1P (ZB-H1, Qi et al., 2023) sends the gradient on as soon as I is done, and rank r keeps r
 * weight parts back for the time when it would wait for gradients: P activation sets on every rank,
 * and a third of the bubble where F = I = W:
 *
 *      rank 0  F0 F1 F2 .  .  I0 W0 F3 I1 W1 I2 W2 I3 W3
 *      rank 1  .  F0 F1 .  I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
 *      rank 2  .  .  F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3
 */
#include "schedule/build.h"

/* ---- GPipe ----------------------------------------------------------------------------------- */

static void write_gpipe(const struct dp_rank_view *view, struct dp_op_list *out)
{
    const int count = view->s->mb_per_stream;

    for (int mb = 0; mb < count; mb++)
        dp_op_list_compute(out, DP_OP_F, 1, 0, mb);
    for (int mb = 0; !view->s->forward_only && mb < count; mb++)
        dp_op_list_compute(out, DP_OP_B, 2, 0, mb);
}

static int gpipe_activations(const struct dp_rank_view *view)
{
    return view->s->mb_per_stream;
}

const struct dp_builder dp_build_gpipe = {
    .name = "gpipe",
    .slots_per_rank = 1,
    .stages_per_rank = 1,
    .streams = 1,
    .place = dp_place_line,
    .write = write_gpipe,
    .max_activations = gpipe_activations,
};

/* ---- 1F1B and ZB1P --------------------------------------------------------------------------- */

enum { WARM_UP = 1, STEADY = 2, DRAIN = 3 };

static bool is_split(const struct dp_rank_view *view)
{
    return view->s->kind == DP_SCHEDULE_ZB1P;
}

/* The backward of one micro-batch; split, its I and the W of `rank` micro-batches before. */
static void add_backward(const struct dp_rank_view *view, struct dp_op_list *out, uint32_t unit,
                         int mb)
{
    if (!is_split(view)) {
        dp_op_list_compute(out, DP_OP_B, unit, 0, mb);
        return;
    }
    dp_op_list_compute(out, DP_OP_I, unit, 0, mb);
    if (mb >= view->rank)
        dp_op_list_compute(out, DP_OP_W, unit, 0, mb - view->rank);
}

static void write_backwards(const struct dp_rank_view *view, struct dp_op_list *out, int from)
{
    int count = view->s->mb_per_stream, kept = view->rank < count ? view->rank : count;

    for (int mb = from; mb < count; mb++)
        add_backward(view, out, DRAIN, mb);
    for (int mb = count - kept; is_split(view) && mb < count; mb++)
        dp_op_list_compute(out, DP_OP_W, DRAIN, 0, mb);
}

static void write_rank(const struct dp_rank_view *view, struct dp_op_list *out)
{
    int count = view->s->mb_per_stream;
    int ahead = view->s->ranks - 1 - view->rank; /* forwards before the first backward */
    bool training = !view->s->forward_only;

    if (ahead > count)
        ahead = count;
    for (int mb = 0; mb < ahead; mb++)
        dp_op_list_compute(out, DP_OP_F, WARM_UP, 0, mb);
    for (int mb = ahead; mb < count; mb++) {
        dp_op_list_compute(out, DP_OP_F, STEADY, 0, mb);
        if (training)
            add_backward(view, out, STEADY, mb - ahead);
    }
    if (training)
        write_backwards(view, out, count - ahead);
}

static int max_activations(const struct dp_rank_view *view)
{
    return is_split(view) ? view->s->ranks : view->s->ranks - view->rank;
}

static int max_weight_queue(const struct dp_rank_view *view)
{
    return is_split(view) ? view->rank + 1 : 0;
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
