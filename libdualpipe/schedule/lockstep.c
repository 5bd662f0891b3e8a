/* SPDX-License-Identifier: Apache-2.0
 *
 * lockstep.c - messages for lists of computes whose exchanges would otherwise block each other.
 *
 * Ranks do their computes in rounds, each rank at most one call a round. What a compute produces is
 * sent at once, and at once its receive is added to the receiver's list: after what the receiver has
 * done by then, before what it will do.
 *
 *      round      1                  2                       3
 *      rank 0     F0.0 sF0.0         c1 F0.1 sF0.1      rB0.0 c2 B0.0
 *      rank 1         rF0.0          c1 F0.0 sB0.0      rF0.1 c2 F0.1
 *
 * So there is one order of all messages that both ends of each keep: links are FIFO. And of the
 * messages that have not met, the first one's ends have nothing to wait for but each other: no
 * batches of neighbours in that order can block.
 */
#include "base/fail.h"
#include "schedule/build.h"

#include <stdlib.h>

/* What (rank, slot, mb) has. */
enum { INPUT = 1, GRADIENT = 2, FORWARD = 4 };

struct rank_list {
    struct dp_op_list out;
    size_t next;     /* compute to go on with */
    uint32_t posted; /* messages since the last commit */
    bool ready;      /* takes part in this round */
};

struct lockstep {
    const struct dp_schedule *s;
    struct rank_list *lists; /* [ranks] */
    uint8_t *has;       /* [slots of all ranks * mb_per_stream] */
};

static uint8_t *has(const struct lockstep *l, int rank, int slot, uint32_t mb)
{
    size_t at = l->s->first_slot[rank] + (size_t)slot;
    return &l->has[at * (size_t)l->s->mb_per_stream + mb];
}

static bool op_is_ready(const struct lockstep *l, int rank, struct dp_op op)
{
    const struct dp_slot *slot = dp_schedule_slot(l->s, rank, (int)op.slot);
    uint8_t is = *has(l, rank, (int)op.slot, op.mb);

    if (op.kind == DP_OP_F)
        return dp_slot_is_first(slot) || is & INPUT;
    if (op.kind == DP_OP_B || op.kind == DP_OP_I)
        return is & FORWARD && (dp_slot_is_last(slot) || is & GRADIENT);
    return true;
}

/* The computes of a call: two for an overlapped pair. */
static size_t call_length(const struct lockstep *l, int rank)
{
    const struct rank_list *list = &l->lists[rank];
    const struct dp_op *op = dp_schedule_ops(l->s, rank) + list->next;

    return op->flags & DP_OP_OVERLAP && list->next + 1 < dp_schedule_count(l->s, rank) ? 2 : 1;
}

static bool is_ready(const struct lockstep *l, int rank)
{
    const struct rank_list *list = &l->lists[rank];

    if (list->next == dp_schedule_count(l->s, rank))
        return false;
    for (size_t i = 0; i < call_length(l, rank); i++)
        if (!op_is_ready(l, rank, dp_schedule_ops(l->s, rank)[list->next + i]))
            return false;
    return true;
}

static void commit(struct rank_list *list, uint32_t unit)
{
    if (!list->posted)
        return;
    dp_op_list_add(&list->out, (struct dp_op){.kind = DP_OP_COMMIT, .flags = dp_op_flags(unit, 0),
                                              .mb = list->posted});
    list->posted = 0;
}

static void post(struct rank_list *list, struct dp_op op, enum dp_op_kind kind, int slot)
{
    op.kind = (uint8_t)kind;
    op.slot = (uint8_t)slot;
    op.flags &= DP_OP_UNIT | DP_OP_ARGUMENT;
    dp_op_list_add(&list->out, op);
    list->posted++;
}

/* Bring what op made to the slot before or after, by message if that is on another rank. */
static void deliver(struct lockstep *l, int rank, struct dp_op op)
{
    const struct dp_slot *slot = dp_schedule_slot(l->s, rank, (int)op.slot);
    bool forward = op.kind == DP_OP_F;
    int to = forward ? slot->next : slot->prev;
    int to_slot = forward ? slot->next_slot : slot->prev_slot;

    if (!forward && op.kind != DP_OP_B && op.kind != DP_OP_I)
        return;
    *has(l, rank, (int)op.slot, op.mb) |= forward ? FORWARD : 0;
    if (to < 0)
        return;
    *has(l, to, to_slot, op.mb) |= forward ? INPUT : GRADIENT;
    if (to == rank)
        return;
    post(&l->lists[rank], op, forward ? DP_OP_SEND_F : DP_OP_SEND_B, op.slot);
    post(&l->lists[to], op, forward ? DP_OP_RECV_F : DP_OP_RECV_B, to_slot);
}

/* The same for the skips that begin, or, of a backward, end at the slot. */
static void deliver_skips(struct lockstep *l, int rank, struct dp_op op)
{
    const struct dp_slot *slot = dp_schedule_slot(l->s, rank, (int)op.slot);
    bool forward = op.kind == DP_OP_F;

    if (!forward && op.kind != DP_OP_B && op.kind != DP_OP_I)
        return;
    for (int k = 0; k < l->s->skip_count; k++) {
        const struct dp_skip_ends *ends = dp_skip_ends_of(l->s, slot->stream, k);
        if ((forward ? l->s->skips[k].from : l->s->skips[k].to) != slot->stage ||
            ends->from == ends->to)
            continue;
        int to = forward ? ends->to : ends->from, to_slot = forward ? ends->to_slot : ends->from_slot;
        op.flags = dp_op_flags(dp_op_unit(op), (uint32_t)k);
        post(&l->lists[rank], op, forward ? DP_OP_SEND_SKIP_F : DP_OP_SEND_SKIP_B, op.slot);
        post(&l->lists[to], op, forward ? DP_OP_RECV_SKIP_F : DP_OP_RECV_SKIP_B, to_slot);
    }
}

static void call(struct lockstep *l, int rank)
{
    struct rank_list *list = &l->lists[rank];
    const struct dp_op *ops = dp_schedule_ops(l->s, rank) + list->next;
    size_t length = call_length(l, rank);

    commit(list, dp_op_unit(*ops));
    dp_op_list_append(&list->out, ops, length);
    for (size_t i = 0; i < length; i++) {
        deliver(l, rank, ops[i]);
        deliver_skips(l, rank, ops[i]);
    }
    list->next += length;
}

/* False if no rank was ready. */
static bool round_of_all(struct lockstep *l)
{
    bool moved = false;

    for (int rank = 0; rank < l->s->ranks; rank++)
        moved |= l->lists[rank].ready = is_ready(l, rank);
    for (int rank = 0; rank < l->s->ranks; rank++)
        if (l->lists[rank].ready)
            call(l, rank);
    return moved;
}

static int take_lists(struct lockstep *l, struct dp_schedule *s)
{
    size_t *first = calloc((size_t)s->ranks + 1, sizeof(*first));
    struct dp_op_list all = {0};

    for (int rank = 0; first && rank < s->ranks; rank++) {
        struct rank_list *list = &l->lists[rank];
        commit(list, list->out.count ? dp_op_unit(list->out.ops[list->out.count - 1]) : 0);
        dp_op_list_append(&all, list->out.ops, list->out.count);
        all.failed |= list->out.failed;
        first[rank + 1] = all.count;
    }
    return dp_schedule_take_ops(s, &all, first);
}

static bool all_done(const struct lockstep *l)
{
    for (int rank = 0; rank < l->s->ranks; rank++)
        if (l->lists[rank].next < dp_schedule_count(l->s, rank))
            return false;
    return true;
}

static void lockstep_fini(struct lockstep *l)
{
    for (int rank = 0; l->lists && rank < l->s->ranks; rank++)
        dp_op_list_fini(&l->lists[rank].out);
    free(l->lists);
    free(l->has);
}

int dp_add_messages_in_lockstep(struct dp_schedule *s)
{
    size_t ranks = (size_t)s->ranks, slots = s->first_slot[ranks];
    struct lockstep l = {
        .s = s,
        .lists = calloc(ranks, sizeof(*l.lists)),
        .has = calloc(slots * (size_t)s->mb_per_stream + 1, sizeof(*l.has)),
    };
    int err = 0;

    if (!l.lists || !l.has)
        err = dp_fail(DP_ENOMEM, "no memory to add messages to %d ranks", s->ranks);
    while (!err && round_of_all(&l))
        ;
    if (!err)
        err = all_done(&l) ? take_lists(&l, s)
                           : dp_fail_quietly(DP_EINVAL, "the computes wait for each other");
    lockstep_fini(&l);
    return err;
}
