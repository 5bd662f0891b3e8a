/* SPDX-License-Identifier: Apache-2.0
 *
 * interleaved.c - 1F1B with v stages a rank: stage k * P + rank in slot k (Narayanan et al., 2021).
 * Micro-batches go through the slots in groups of P; the bubble is 1/v of 1F1B's, for v times as
 * many messages. P = 2, v = 2, M = 4, F and B of a slot one wide:
 *
 *      rank 0  F0.0 F0.1 F1.0 F1.1 F0.2 B1.0 F0.3 B1.1 F1.2 B0.0 F1.3 B0.1 B1.2 B1.3 B0.2 B0.3
 */
#include "base/fail.h"
#include "schedule/build.h"

static int stages(const struct dp_schedule_spec *spec)
{
    return spec->ranks * dp_virtual_stages(spec);
}

static int slots(const struct dp_schedule_spec *spec, int rank)
{
    (void)rank;
    return dp_virtual_stages(spec);
}

static int check(const struct dp_schedule_spec *spec)
{
    if (dp_virtual_stages(spec) < 1 || dp_virtual_stages(spec) > DP_MAX_SLOTS)
        return dp_fail_quietly(DP_EINVAL, "virtual_stages: %d, expected 1 to %d",
                               spec->virtual_stages, DP_MAX_SLOTS);
    if (spec->microbatches % spec->ranks)
        return dp_fail_quietly(DP_EINVAL, "microbatches: %d, expected a multiple of the ranks, %d",
                               spec->microbatches, spec->ranks);
    return 0;
}

static void place(const struct dp_schedule_spec *spec, int rank, struct dp_slot *slots)
{
    int ranks = spec->ranks, count = dp_virtual_stages(spec);

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
static void add(const struct dp_rank_view *view, struct dp_op_list *out, enum dp_op_kind kind,
                uint32_t unit, int k)
{
    int ranks = view->s->ranks, count = view->slot_count;
    int slot = k / ranks % count, mb = k / (ranks * count) * ranks + k % ranks;

    dp_op_list_compute(out, kind, unit, kind == DP_OP_F ? slot : count - 1 - slot, mb);
}

static int warm_up(const struct dp_rank_view *view)
{
    int ranks = view->s->ranks, total = view->s->mb_per_stream * view->slot_count;
    int ahead = 2 * (ranks - 1 - view->rank) + (view->slot_count - 1) * ranks;

    return ahead < total ? ahead : total;
}

static void write_rank(const struct dp_rank_view *view, struct dp_op_list *out)
{
    int total = view->s->mb_per_stream * view->slot_count, ahead = warm_up(view);
    bool training = !view->s->forward_only;

    for (int k = 0; k < ahead; k++)
        add(view, out, DP_OP_F, 1, k);
    for (int k = ahead; k < total; k++) {
        add(view, out, DP_OP_F, 2, k);
        if (training)
            add(view, out, DP_OP_B, 2, k - ahead);
    }
    for (int k = total - ahead; training && k < total; k++)
        add(view, out, DP_OP_B, 3, k);
}

static int max_activations(const struct dp_rank_view *view)
{
    int total = view->s->mb_per_stream * view->slot_count, ahead = warm_up(view);
    return ahead < total ? ahead + 1 : total;
}

const struct dp_builder dp_build_interleaved = {
    .name = "interleaved",
    .streams = 1,
    .check = check,
    .stages = stages,
    .slots = slots,
    .place = place,
    .write = write_rank,
    .max_activations = max_activations,
};
