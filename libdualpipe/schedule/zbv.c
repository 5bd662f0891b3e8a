/* SPDX-License-Identifier: Apache-2.0
 *
 * zbv.c - ZB-V: two stages a rank, down the ranks and back up (DualPipeV's placement), backwards
 * split, no bubble where F = I = W. Phase 0 is the way down, phase 1 the way back. P = 2, M = 3:
 *
 *      rank 0  F0 F0 F0 .  f0 i0 w0 f1 i1 w1 I0 W0 f2 i2 w2 I1 W1 I2 W2
 *      rank 1  .  F0 f0 F1 f1 i0 w0 F2 I0 W0 ...
 *
 * Weight parts of the two slots do not come in the order of their I's over both: the queue of each
 * slot is first in, first out, that of the rank is not.
 *
 * Source: Qi et al., "Pipeline Parallelism with Controllable Memory" (2024); the order of PyTorch's
 * ScheduleZBVZeroBubble.
 */
#include "schedule/build.h"

/* Micro-batches beyond M are counted, not written: with fewer than 2P - 1 the order is that of 2P -
 * 1 without them. */
struct emitter {
    const struct dp_rank_view *view;
    struct dp_op_list *out;
    int mbs;
    int next[2][DP_OP_W + 1]; /* by phase and kind */
};

static void emit(struct emitter *e, enum dp_op_kind kind, int phase, uint32_t unit)
{
    int mb = e->next[phase][kind]++;

    if (mb < e->view->s->mb_per_stream && (kind == DP_OP_F || !e->view->s->forward_only))
        dp_op_list_compute(e->out, kind, unit, phase, mb);
}

static void emit_backward(struct emitter *e, int phase, uint32_t unit)
{
    emit(e, DP_OP_I, phase, unit);
    emit(e, DP_OP_W, phase, unit);
}

static void warm_up(struct emitter *e)
{
    int ranks = e->view->s->ranks, rank = e->view->rank;

    for (int i = 0; i < 2 * (ranks - rank) - 1; i++)
        emit(e, DP_OP_F, 0, 1);
    for (int i = 0; i < rank; i++) {
        emit(e, DP_OP_F, 1, 1);
        emit(e, DP_OP_F, 0, 1);
    }
    for (int i = 0; i < ranks - rank; i++) {
        emit(e, DP_OP_F, 1, 1);
        emit_backward(e, 1, 1);
    }
}

static void steady(struct emitter *e)
{
    while (e->next[1][DP_OP_F] < e->next[0][DP_OP_F] || e->next[0][DP_OP_F] < e->mbs) {
        if (e->next[0][DP_OP_F] < e->mbs)
            emit(e, DP_OP_F, 0, 2);
        emit_backward(e, 0, 2);
        emit(e, DP_OP_F, 1, 2);
        emit_backward(e, 1, 2);
    }
}

static void drain(struct emitter *e)
{
    for (int i = 0; i < e->view->rank; i++) {
        emit(e, DP_OP_I, 0, 3);
        emit(e, DP_OP_I, 1, 3);
    }
    for (int i = 0; i < e->view->s->ranks - e->view->rank; i++)
        emit_backward(e, 0, 3);
    for (int phase = 1; phase >= 0; phase--)
        while (e->next[phase][DP_OP_W] < e->next[phase][DP_OP_I])
            emit(e, DP_OP_W, phase, 3);
}

static void write_rank(const struct dp_rank_view *view, struct dp_op_list *out)
{
    int least = 2 * view->s->ranks - 1, mbs = view->s->mb_per_stream;
    struct emitter e = {.view = view, .out = out, .mbs = mbs > least ? mbs : least};

    warm_up(&e);
    steady(&e);
    drain(&e);
}

static int max_activations(const struct dp_rank_view *view)
{
    return 2 * view->s->ranks;
}

static int max_weight_queue(const struct dp_rank_view *view)
{
    return 2 * view->rank + 1;
}

const struct dp_builder dp_build_zbv = {
    .name = "zbv",
    .slots_per_rank = 2,
    .stages_per_rank = 2,
    .streams = 1,
    .place = dp_place_v,
    .write = write_rank,
    .max_activations = max_activations,
    .max_weight_queue = max_weight_queue,
};
