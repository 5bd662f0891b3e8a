/* SPDX-License-Identifier: Apache-2.0
 *
 * async.c - AsyncPipe's order as a list: fill and drain, backward from the highest micro-batch. The
 * stages are the invocations of a partition; a rank holds those of its stage's locations, and a
 * location that is executed several times is several slots with one set of parameters. P = 2,
 * layers s | a s, M = 2:
 *
 *      rank 0  F0.0 F0.1 .    F1.0 F1.1 B1.1 B1.0 .    .    B0.1 B0.0
 *      rank 1  .    F0.0 F0.1 .    .    .    .    B0.1 B0.0
 *
 * Neighbouring invocations on one rank form a chain, which each micro-batch goes through at once.
 *
 * Source: fairscale's AsyncPipe, whose recorded events (tests/data/golden) are met within each
 * micro-batch; GPipe (Huang et al., 2019), which has the same order but for the backwards.
 */
#include "base/fail.h"
#include "schedule/build.h"
#include <dualpipe/partition.h>

static int stages(const struct dp_schedule_spec *spec)
{
    return spec->partition ? spec->partition->invocation_count : spec->ranks;
}

/* How many invocations before `order` the stage executes. */
static int slots_before(const struct dp_partition *p, int stage, int order)
{
    int count = 0;

    for (int k = 0; k < order; k++)
        count += p->invocations[k].at.stage == stage;
    return count;
}

static int slots(const struct dp_schedule_spec *spec, int rank)
{
    const struct dp_partition *p = spec->partition;
    return p ? slots_before(p, rank, p->invocation_count) : 1;
}

static int check(const struct dp_schedule_spec *spec)
{
    const struct dp_partition *p = spec->partition;

    if (!p)
        return 0;
    if (spec->ranks < p->stages)
        return dp_fail_quietly(DP_EINVAL, "ranks: %d, expected at least one for each of the "
                               "partition's %d stages (A6)", spec->ranks, p->stages);
    for (int rank = 0; rank < p->stages; rank++)
        if (slots(spec, rank) > DP_MAX_SLOTS)
            return dp_fail_quietly(DP_EINVAL, "partition: stage %d is executed %d times, expected "
                                   "at most %d", rank, slots(spec, rank), DP_MAX_SLOTS);
    return 0;
}

static void point_at(const struct dp_partition *p, int order, int32_t *rank, int32_t *slot)
{
    bool there = order >= 0 && order < p->invocation_count;

    *rank = there ? p->invocations[order].at.stage : -1;
    *slot = there ? slots_before(p, *rank, order) : 0;
}

static void place(const struct dp_schedule_spec *spec, int rank, struct dp_slot *slots)
{
    const struct dp_partition *p = spec->partition;

    if (!p)
        dp_place_line(spec, rank, slots);
    for (int k = 0, at = 0; p && k < p->invocation_count; k++) {
        if (p->invocations[k].at.stage != rank)
            continue;
        slots[at] = (struct dp_slot){.stage = k, .phase = at, .mirror = -1,
                                     .location = p->invocations[k].at.index};
        point_at(p, k - 1, &slots[at].prev, &slots[at].prev_slot);
        point_at(p, k + 1, &slots[at].next, &slots[at].next_slot);
        at++;
    }
}

/* The slot after the last of the chain that begins at `first`. */
static int end_of_chain(const struct dp_rank_view *view, int first)
{
    int end = first + 1;

    while (end < view->slot_count && view->slots[end].stage == view->slots[end - 1].stage + 1)
        end++;
    return end;
}

static int begin_of_chain(const struct dp_rank_view *view, int last)
{
    while (last > 0 && view->slots[last - 1].stage + 1 == view->slots[last].stage)
        last--;
    return last;
}

static void write_rank(const struct dp_rank_view *view, struct dp_op_list *out)
{
    int mbs = view->s->mb_per_stream;

    for (int first = 0, end; first < view->slot_count; first = end) {
        end = end_of_chain(view, first);
        for (int mb = 0; mb < mbs; mb++)
            for (int slot = first; slot < end; slot++)
                dp_op_list_compute(out, DP_OP_F, 1, slot, mb);
    }
    for (int last = view->slot_count - 1, first; !view->s->forward_only && last >= 0;
         last = first - 1) {
        first = begin_of_chain(view, last);
        for (int mb = mbs - 1; mb >= 0; mb--)
            for (int slot = last; slot >= first; slot--)
                dp_op_list_compute(out, DP_OP_B, 2, slot, mb);
    }
}

static int max_activations(const struct dp_rank_view *view)
{
    return view->s->mb_per_stream * view->slot_count;
}

const struct dp_builder dp_build_async = {
    .name = "async",
    .streams = 1,
    .placed_by_file = true,
    .check = check,
    .stages = stages,
    .slots = slots,
    .place = place,
    .write = write_rank,
    .max_activations = max_activations,
};
