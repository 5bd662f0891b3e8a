/* SPDX-License-Identifier: Apache-2.0
 *
 * line.c - stages along a line of ranks: once for GPipe, 1F1B and ZB1P (stage r on rank r), several
 * times for interleaved 1F1B, there and back for ZB-V.
 *
 * GPipe: all forwards, then all backwards (Huang et al., 2019). P = 3, M = 4:
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
#include "base/fail.h"
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

/* ---- interleaved 1F1B ----------------------------------------------------------------------- */

/* 1F1B with v stages a rank: stage k * P + rank in slot k (Narayanan et al., 2021).
 * Micro-batches go through the slots in groups of P; the bubble is 1/v of 1F1B's, for v times as
 * many messages. P = 2, v = 2, M = 4, F and B of a slot one wide:
 *
 *      rank 0  F0.0 F0.1 F1.0 F1.1 F0.2 B1.0 F0.3 B1.1 F1.2 B0.0 F1.3 B0.1 B1.2 B1.3 B0.2 B0.3
 */
static int virtual_stages(const struct dp_schedule_spec *spec)
{
    return spec->virtual_stages ? spec->virtual_stages : 2;
}

static int count_stages(const struct dp_schedule_spec *spec)
{
    return spec->ranks * virtual_stages(spec);
}

static int count_slots(const struct dp_schedule_spec *spec, int rank)
{
    (void)rank;
    return virtual_stages(spec);
}

static int check_interleaved(const struct dp_schedule_spec *spec)
{
    if (virtual_stages(spec) < 1 || virtual_stages(spec) > DP_MAX_SLOTS)
        return dp_fail_quietly(DP_EINVAL, "virtual_stages: %d, expected 1 to %d",
                               spec->virtual_stages, DP_MAX_SLOTS);
    if (spec->microbatches % spec->ranks)
        return dp_fail_quietly(DP_EINVAL, "microbatches: %d, expected a multiple of the ranks, %d",
                               spec->microbatches, spec->ranks);
    return 0;
}

static void place_interleaved(const struct dp_schedule_spec *spec, int rank, struct dp_slot *slots)
{
    int ranks = spec->ranks, count = virtual_stages(spec);

    for (int at = 0; at < count; at++) {
        bool first = !rank && !at, last = rank == ranks - 1 && at == count - 1;
        slots[at] = (struct dp_slot){
            .stage = at * ranks + rank, .phase = at, .location = at, .mirror = -1,
            .prev = first ? -1 : (rank + ranks - 1) % ranks,
            .prev_slot = first ? 0 : rank ? at : at - 1,
            .next = last ? -1 : (rank + 1) % ranks,
            .next_slot = last ? 0 : rank < ranks - 1 ? at : at + 1};
    }
}

/* The rank's k-th forward or backward: groups of P micro-batches, slot by slot. */
static void add_kth(const struct dp_rank_view *view, struct dp_op_list *out, enum dp_op_kind kind,
                    uint32_t unit, int k)
{
    int ranks = view->s->ranks, count = view->slot_count;
    int slot = k / ranks % count, mb = k / (ranks * count) * ranks + k % ranks;

    dp_op_list_compute(out, kind, unit, kind == DP_OP_F ? slot : count - 1 - slot, mb);
}

static int interleaved_ahead(const struct dp_rank_view *view)
{
    int ranks = view->s->ranks, total = view->s->mb_per_stream * view->slot_count;
    int ahead = 2 * (ranks - 1 - view->rank) + (view->slot_count - 1) * ranks;

    return ahead < total ? ahead : total;
}

static void write_interleaved(const struct dp_rank_view *view, struct dp_op_list *out)
{
    int total = view->s->mb_per_stream * view->slot_count, ahead = interleaved_ahead(view);
    bool training = !view->s->forward_only;

    for (int k = 0; k < ahead; k++)
        add_kth(view, out, DP_OP_F, WARM_UP, k);
    for (int k = ahead; k < total; k++) {
        add_kth(view, out, DP_OP_F, STEADY, k);
        if (training)
            add_kth(view, out, DP_OP_B, STEADY, k - ahead);
    }
    for (int k = total - ahead; training && k < total; k++)
        add_kth(view, out, DP_OP_B, DRAIN, k);
}

static int interleaved_activations(const struct dp_rank_view *view)
{
    int total = view->s->mb_per_stream * view->slot_count, ahead = interleaved_ahead(view);
    return ahead < total ? ahead + 1 : total;
}

const struct dp_builder dp_build_interleaved = {
    .name = "interleaved",
    .streams = 1,
    .check = check_interleaved,
    .stages = count_stages,
    .slots = count_slots,
    .place = place_interleaved,
    .write = write_interleaved,
    .max_activations = interleaved_activations,
};

/* ---- ZB-V ----------------------------------------------------------------------------------- */

/* ZB-V: two stages a rank, down the ranks and back up (DualPipeV's placement), backwards
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

static void emit_warm_up(struct emitter *e)
{
    int ranks = e->view->s->ranks, rank = e->view->rank;

    for (int i = 0; i < 2 * (ranks - rank) - 1; i++)
        emit(e, DP_OP_F, 0, WARM_UP);
    for (int i = 0; i < rank; i++) {
        emit(e, DP_OP_F, 1, WARM_UP);
        emit(e, DP_OP_F, 0, WARM_UP);
    }
    for (int i = 0; i < ranks - rank; i++) {
        emit(e, DP_OP_F, 1, WARM_UP);
        emit_backward(e, 1, WARM_UP);
    }
}

static void emit_steady(struct emitter *e)
{
    while (e->next[1][DP_OP_F] < e->next[0][DP_OP_F] || e->next[0][DP_OP_F] < e->mbs) {
        if (e->next[0][DP_OP_F] < e->mbs)
            emit(e, DP_OP_F, 0, STEADY);
        emit_backward(e, 0, STEADY);
        emit(e, DP_OP_F, 1, STEADY);
        emit_backward(e, 1, STEADY);
    }
}

static void emit_drain(struct emitter *e)
{
    for (int i = 0; i < e->view->rank; i++) {
        emit(e, DP_OP_I, 0, DRAIN);
        emit(e, DP_OP_I, 1, DRAIN);
    }
    for (int i = 0; i < e->view->s->ranks - e->view->rank; i++)
        emit_backward(e, 0, DRAIN);
    for (int phase = 1; phase >= 0; phase--)
        while (e->next[phase][DP_OP_W] < e->next[phase][DP_OP_I])
            emit(e, DP_OP_W, phase, DRAIN);
}

static void write_zbv(const struct dp_rank_view *view, struct dp_op_list *out)
{
    int least = 2 * view->s->ranks - 1, mbs = view->s->mb_per_stream;
    struct emitter e = {.view = view, .out = out, .mbs = mbs > least ? mbs : least};

    emit_warm_up(&e);
    emit_steady(&e);
    emit_drain(&e);
}

static int zbv_activations(const struct dp_rank_view *view)
{
    return 2 * view->s->ranks;
}

static int zbv_weight_queue(const struct dp_rank_view *view)
{
    return 2 * view->rank + 1;
}

const struct dp_builder dp_build_zbv = {
    .name = "zbv",
    .slots_per_rank = 2,
    .stages_per_rank = 2,
    .streams = 1,
    .place = dp_place_v,
    .write = write_zbv,
    .max_activations = zbv_activations,
    .max_weight_queue = zbv_weight_queue,
};
