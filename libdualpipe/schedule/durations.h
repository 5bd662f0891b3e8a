/* SPDX-License-Identifier: Apache-2.0
 *
 * durations.h - how long each op of a schedule takes, looked up.
 */
#ifndef DP_SCHEDULE_DURATIONS_H
#define DP_SCHEDULE_DURATIONS_H

#include <dualpipe/schedule.h>

struct dp_durations {
    int slots;           /* max_slots of the schedule */
    int64_t *single_ns;  /* [ranks * slots * 5]: F, B, I, W, RECOMPUTE */
    int64_t *pair_ns;    /* [ranks * slots * slots]: F of one slot with B of another */
    int64_t reduce_ns;
    const int64_t *op_ns; /* dp_cost.op_ns */
    double longest_ns;    /* of all ops */
};

/* DP_EINVAL for a cost that is negative, no number or past what 64 bits hold. cost must outlive it. */
int dp_durations_init(struct dp_durations *d, const struct dp_schedule *s,
                      const struct dp_cost *cost);
void dp_durations_fini(struct dp_durations *d);

/* Of a compute or a REDUCE; an overlapped pair is asked for by its F. */
static inline int64_t dp_duration_ns(const struct dp_durations *d, const struct dp_schedule *s,
                                     int rank, const struct dp_op *op)
{
    size_t at = (size_t)rank * (size_t)d->slots + op->slot;

    if (d->op_ns)
        return d->op_ns[op - s->ops];
    if (op->overlap)
        return d->pair_ns[at * (size_t)d->slots + op[1].slot];
    if (op->kind == DP_OP_REDUCE)
        return d->reduce_ns;
    return d->single_ns[5 * at + (op->kind - DP_OP_F)];
}

#endif
