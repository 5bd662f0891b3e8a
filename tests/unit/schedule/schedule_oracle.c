/* SPDX-License-Identifier: Apache-2.0
 *
 * schedule_oracle.c - unlike the checker, which walks each list once with marks, this looks ops up
 * by position, compares positions, counts messages, and lets ranks take turns until nothing moves.
 */
#include "schedule_oracle.h"

#include <stdlib.h>
#include <string.h>

#define RULE(name) (1u << DP_RULE_##name)
#define NOWHERE    1000000

static bool is_receive(struct dp_op op)
{
    return op.kind == DP_OP_RECV_F || op.kind == DP_OP_RECV_B;
}

static bool is_message(struct dp_op op)
{
    return is_receive(op) || op.kind == DP_OP_SEND_F || op.kind == DP_OP_SEND_B;
}

static bool is_of_backward(struct dp_op op)
{
    return op.kind == DP_OP_B || op.kind == DP_OP_I || op.kind == DP_OP_W ||
           op.kind == DP_OP_RECV_B || op.kind == DP_OP_SEND_B || op.kind == DP_OP_RECOMPUTE ||
           op.kind == DP_OP_EVICT || op.kind == DP_OP_FETCH || op.kind == DP_OP_REDUCE ||
           op.kind == DP_OP_REDUCE_WAIT;
}

static bool is_used(const struct dp_schedule *s, enum dp_op_kind kind)
{
    for (size_t i = 0; i < s->first[s->ranks]; i++)
        if (s->ops[i].kind == kind)
            return true;
    return false;
}

/* The position of the op in the rank's list; NOWHERE if it is not there. */
static int position(const struct dp_schedule *s, int rank, enum dp_op_kind kind, int slot, int mb)
{
    const struct dp_op *ops = dp_schedule_ops(s, rank);

    for (int i = 0; i < (int)dp_schedule_count(s, rank); i++)
        if (ops[i].kind == kind && (int)ops[i].slot == slot && (int)ops[i].mb == mb)
            return i;
    return NOWHERE;
}

static int occurrences(const struct dp_schedule *s, int rank, enum dp_op_kind kind, int slot,
                       int mb)
{
    const struct dp_op *ops = dp_schedule_ops(s, rank);
    int n = 0;

    for (int i = 0; i < (int)dp_schedule_count(s, rank); i++)
        n += ops[i].kind == kind && (int)ops[i].slot == slot && (int)ops[i].mb == mb;
    return n;
}

/* Where the commit stands that launches what stands at `at`. */
static int commit_of(const struct dp_schedule *s, int rank, int at)
{
    const struct dp_op *ops = dp_schedule_ops(s, rank);

    for (int i = at; i < (int)dp_schedule_count(s, rank); i++)
        if (ops[i].kind == DP_OP_COMMIT)
            return i;
    return NOWHERE;
}

static bool has_message(const struct dp_schedule *s, int rank, struct dp_op op)
{
    int peer = dp_op_peer(s, dp_schedule_slot(s, rank, (int)op.slot), op);
    return peer >= 0 && peer != rank;
}

/* ---- first round: each list as a set -------------------------------------------------------- */

static unsigned shape_of_op(const struct dp_schedule *s, int rank, const struct dp_op *op,
                            bool last)
{
    unsigned broken = 0;

    if (op->kind == DP_OP_NONE || op->kind >= DP_OP_KINDS)
        return RULE(SHAPE);
    if (dp_op_is_skip((enum dp_op_kind)op->kind)) /* schedules without skips only */
        return RULE(SHAPE);
    if (s->forward_only && is_of_backward(*op))
        return RULE(SHAPE);
    if (op->kind != DP_OP_COMMIT && (int)op->slot >= dp_schedule_slot_count(s, rank))
        return RULE(SHAPE);
    if (op->kind == DP_OP_COMMIT)
        return op->flags & ~DP_OP_UNIT ? RULE(SHAPE) : 0;
    if (op->mb >= (uint32_t)s->mb_per_stream)
        return RULE(SHAPE);
    if (op->flags & DP_OP_ARGUMENT || (op->flags & DP_OP_RECOMPUTED && op->kind != DP_OP_F))
        broken |= RULE(SHAPE);
    if (op->flags & DP_OP_OVERLAP && (op->kind != DP_OP_F || last || op[1].kind != DP_OP_B))
        broken |= RULE(SHAPE);
    else if (op->flags & DP_OP_OVERLAP && op[1].slot == op->slot && op[1].mb == op->mb)
        broken |= RULE(DEPENDENCY);
    if (is_message(*op) && !has_message(s, rank, *op))
        broken |= RULE(SHAPE);
    if (op->kind == DP_OP_FREE && (dp_schedule_slot(s, rank, (int)op->slot)->next < 0 ||
                                   dp_schedule_slot(s, rank, (int)op->slot)->next == rank))
        broken |= RULE(SHAPE);
    if ((op->kind == DP_OP_REDUCE || op->kind == DP_OP_REDUCE_WAIT) && !has_message(s, rank, *op))
        broken |= RULE(SHAPE);
    return broken;
}

static bool once(const struct dp_schedule *s, int rank, enum dp_op_kind kind, int slot, int mb)
{
    return occurrences(s, rank, kind, slot, mb) == 1;
}

static bool once_if(const struct dp_schedule *s, int rank, enum dp_op_kind kind, int slot, int mb,
                    bool wanted)
{
    struct dp_op op = {.kind = kind, .slot = (uint32_t)slot};
    return !wanted || !has_message(s, rank, op) || once(s, rank, kind, slot, mb);
}

static bool backward_is_whole(const struct dp_schedule *s, int rank, int slot, int mb)
{
    int b = occurrences(s, rank, DP_OP_B, slot, mb), i = occurrences(s, rank, DP_OP_I, slot, mb),
        w = occurrences(s, rank, DP_OP_W, slot, mb);
    return s->forward_only || (b == 1 && i == 0 && w == 0) || (b == 0 && i == 1 && w == 1);
}

static int reduces_of(const struct dp_schedule *s, int rank, enum dp_op_kind kind, int slot)
{
    const struct dp_op *ops = dp_schedule_ops(s, rank);
    int n = 0;

    for (size_t i = 0; i < dp_schedule_count(s, rank); i++)
        n += ops[i].kind == kind && (int)ops[i].slot == slot;
    return n;
}

static bool slot_is_complete(const struct dp_schedule *s, int rank, int slot)
{
    bool training = !s->forward_only, frees = is_used(s, DP_OP_FREE);
    int mirror = dp_schedule_slot(s, rank, slot)->mirror;
    bool mirrored = mirror >= 0 && mirror != rank;

    for (int mb = 0; mb < s->mb_per_stream; mb++) {
        bool sent = has_message(s, rank, (struct dp_op){.kind = DP_OP_SEND_F,
                                                        .slot = (uint32_t)slot});
        if (!once(s, rank, DP_OP_F, slot, mb) || !backward_is_whole(s, rank, slot, mb) ||
            !once_if(s, rank, DP_OP_RECV_F, slot, mb, true) ||
            !once_if(s, rank, DP_OP_SEND_F, slot, mb, true) ||
            !once_if(s, rank, DP_OP_RECV_B, slot, mb, training) ||
            !once_if(s, rank, DP_OP_SEND_B, slot, mb, training) ||
            (frees && sent && !once(s, rank, DP_OP_FREE, slot, mb)) ||
            occurrences(s, rank, DP_OP_RECOMPUTE, slot, mb) > 1)
            return false;
    }
    bool reduces = mirrored && (is_used(s, DP_OP_REDUCE) || is_used(s, DP_OP_REDUCE_WAIT));
    return reduces_of(s, rank, DP_OP_REDUCE, slot) == reduces &&
           reduces_of(s, rank, DP_OP_REDUCE_WAIT, slot) == reduces;
}

static unsigned broken_sets(const struct dp_schedule *s)
{
    unsigned broken = 0;

    for (int rank = 0; rank < s->ranks; rank++) {
        size_t count = dp_schedule_count(s, rank);
        for (size_t i = 0; i < count; i++)
            broken |= shape_of_op(s, rank, dp_schedule_ops(s, rank) + i, i + 1 == count);
        for (int slot = 0; slot < dp_schedule_slot_count(s, rank); slot++)
            if (!slot_is_complete(s, rank, slot))
                broken |= RULE(ONCE);
    }
    return broken;
}

/* ---- second round: each list as a sequence -------------------------------------------------- */

static int backward_position(const struct dp_schedule *s, int rank, int slot, int mb)
{
    int b = position(s, rank, DP_OP_B, slot, mb);
    return b < NOWHERE ? b : position(s, rank, DP_OP_I, slot, mb);
}

/* When is the activation or gradient there that comes from before or after this slot? */
static int arrival(const struct dp_schedule *s, int rank, int slot, int mb, bool gradient)
{
    const struct dp_slot *held = dp_schedule_slot(s, rank, slot);
    int from = gradient ? held->next : held->prev;
    int from_slot = gradient ? held->next_slot : held->prev_slot;

    if (from < 0)
        return -1;
    if (from != rank)
        return commit_of(s, rank, position(s, rank, gradient ? DP_OP_RECV_B : DP_OP_RECV_F, slot,
                                           mb));
    return gradient ? backward_position(s, rank, from_slot, mb)
                    : position(s, rank, DP_OP_F, from_slot, mb);
}

/* What is evicted is there and needed, and is back before it is read. */
static bool copies_are_right(const struct dp_schedule *s, int rank, int slot, int mb)
{
    const struct dp_op *ops = dp_schedule_ops(s, rank);
    bool saved = false, done = false, away = false, right = true;

    for (size_t i = 0; i < dp_schedule_count(s, rank); i++) {
        if (ops[i].kind == DP_OP_COMMIT || (int)ops[i].slot != slot || (int)ops[i].mb != mb)
            continue;
        saved |= ops[i].kind == DP_OP_RECOMPUTE || (ops[i].kind == DP_OP_F && !(ops[i].flags & DP_OP_RECOMPUTED));
        if (ops[i].kind == DP_OP_EVICT) {
            right &= saved && !done && !away;
            away = true;
        } else if (ops[i].kind == DP_OP_FETCH) {
            right &= away;
            away = false;
        }
        right &= !away || (ops[i].kind != DP_OP_B && ops[i].kind != DP_OP_I && ops[i].kind != DP_OP_W);
        done |= ops[i].kind == DP_OP_B || ops[i].kind == DP_OP_W;
    }
    return right;
}

static bool order_is_right(const struct dp_schedule *s, int rank, int slot, int mb)
{
    int f = position(s, rank, DP_OP_F, slot, mb);
    int send_f = position(s, rank, DP_OP_SEND_F, slot, mb);
    int release = position(s, rank, DP_OP_FREE, slot, mb);
    bool right = arrival(s, rank, slot, mb, false) < f && f < send_f &&
                 (release == NOWHERE || commit_of(s, rank, send_f) < release);

    if (s->forward_only)
        return right;
    int back = backward_position(s, rank, slot, mb);
    int again = position(s, rank, DP_OP_RECOMPUTE, slot, mb);
    right &= again == NOWHERE || (f < again && again < back);
    right &= !!(dp_schedule_ops(s, rank)[f].flags & DP_OP_RECOMPUTED) == (again != NOWHERE);
    return right && copies_are_right(s, rank, slot, mb) && f < back && arrival(s, rank, slot, mb, true) < back &&
           back < position(s, rank, DP_OP_SEND_B, slot, mb);
}

static unsigned broken_commits(const struct dp_schedule *s, int rank)
{
    const struct dp_op *ops = dp_schedule_ops(s, rank);
    uint32_t posted = 0;

    for (size_t i = 0; i < dp_schedule_count(s, rank); i++) {
        posted += is_message(ops[i]);
        if (ops[i].kind == DP_OP_COMMIT && (!posted || ops[i].mb != posted))
            return RULE(COMMIT);
        if (ops[i].kind == DP_OP_COMMIT)
            posted = 0;
    }
    return posted ? RULE(COMMIT) : 0;
}

static int place_on_arm(const struct dp_schedule *s, int rank)
{
    return s->kind == DP_SCHEDULE_DUALPIPE && rank >= s->ranks / 2 ? s->ranks - 1 - rank : rank;
}

static int most_activations(const struct dp_schedule *s, int rank)
{
    switch (s->kind) {
    case DP_SCHEDULE_GPIPE:
        return s->microbatches;
    case DP_SCHEDULE_1F1B:
        return s->ranks - rank;
    case DP_SCHEDULE_ZB1P:
        return s->ranks;
    case DP_SCHEDULE_DUALPIPE:
        return (s->slack ? 2 : 1) * s->ranks + 1;
    case DP_SCHEDULE_DUALPIPEV:
        return (s->slack ? 4 : 2) * s->ranks + 1;
    case DP_SCHEDULE_ZBV:
        return 2 * s->ranks;
    case DP_SCHEDULE_ASYNC:
        return s->microbatches * dp_schedule_slot_count(s, rank);
    case DP_SCHEDULE_INTERLEAVED: {
        int all = s->microbatches * s->max_slots;
        int warm = 2 * (s->ranks - 1 - rank) + (s->max_slots - 1) * s->ranks;
        return warm < all ? warm + 1 : all;
    }
    default:
        return NOWHERE;
    }
}

static int longest_queue(const struct dp_schedule *s, int rank)
{
    if (s->kind == DP_SCHEDULE_ZB1P || s->kind == DP_SCHEDULE_DUALPIPE ||
        s->kind == DP_SCHEDULE_DUALPIPEV)
        return place_on_arm(s, rank) + 1;
    if (s->kind == DP_SCHEDULE_ZBV)
        return 2 * rank + 1;
    return s->kind == DP_SCHEDULE_USER ? NOWHERE : 0;
}

static unsigned broken_queue(const struct dp_schedule *s, int rank)
{
    const struct dp_op *ops = dp_schedule_ops(s, rank);
    int count = (int)dp_schedule_count(s, rank), waiting = 0;

    for (int i = 0; i < count; i++) {
        waiting += (ops[i].kind == DP_OP_I) - (ops[i].kind == DP_OP_W);
        if (waiting > longest_queue(s, rank))
            return RULE(WEIGHT);
        for (int k = 0; ops[i].kind == DP_OP_W && k < i; k++) /* an older I must have had its W */
            if (ops[k].kind == DP_OP_I && ops[k].slot == ops[i].slot && ops[k].mb != ops[i].mb &&
                k < position(s, rank, DP_OP_I, (int)ops[i].slot, (int)ops[i].mb) &&
                position(s, rank, DP_OP_W, (int)ops[k].slot, (int)ops[k].mb) > i)
                return RULE(WEIGHT);
        if (ops[i].kind == DP_OP_W && position(s, rank, DP_OP_I, (int)ops[i].slot, (int)ops[i].mb) > i)
            return RULE(WEIGHT);
    }
    return 0;
}

static unsigned broken_activations(const struct dp_schedule *s, int rank)
{
    const struct dp_op *ops = dp_schedule_ops(s, rank);
    int alive = 0;

    for (size_t i = 0; i < dp_schedule_count(s, rank) && !s->forward_only; i++) {
        alive += ops[i].kind == DP_OP_F;
        alive -= ops[i].kind == DP_OP_B || ops[i].kind == DP_OP_W;
        if (alive > most_activations(s, rank))
            return RULE(ACTIVATION);
    }
    return 0;
}

static unsigned broken_reduces(const struct dp_schedule *s, int rank)
{
    const struct dp_op *ops = dp_schedule_ops(s, rank);
    uint64_t reduced = 0;

    for (size_t i = 0; i < dp_schedule_count(s, rank); i++) {
        uint64_t bit = UINT64_C(1) << ops[i].slot;
        if (ops[i].kind == DP_OP_REDUCE)
            reduced |= bit;
        if ((ops[i].kind == DP_OP_B || ops[i].kind == DP_OP_W) && reduced & bit)
            return RULE(DEPENDENCY);
        if (ops[i].kind == DP_OP_REDUCE_WAIT && !(reduced & bit))
            return RULE(DEPENDENCY);
    }
    return 0;
}

static unsigned broken_orders(const struct dp_schedule *s)
{
    unsigned broken = 0;

    for (int rank = 0; rank < s->ranks; rank++) {
        broken |= broken_commits(s, rank) | broken_queue(s, rank) | broken_activations(s, rank) |
                  broken_reduces(s, rank);
        for (int slot = 0; slot < dp_schedule_slot_count(s, rank); slot++)
            for (int mb = 0; mb < s->mb_per_stream; mb++)
                if (!order_is_right(s, rank, slot, mb))
                    broken |= RULE(DEPENDENCY);
    }
    return broken;
}

/* ---- third round: ranks together ------------------------------------------------------------ */

/* The k-th op of a rank that sends to (receives from, reduces with) a peer. -1: there is none. */
static int kth(const struct dp_schedule *s, int rank, int peer, struct dp_op like, int k)
{
    const struct dp_op *ops = dp_schedule_ops(s, rank);

    for (int i = 0; i < (int)dp_schedule_count(s, rank); i++) {
        bool same = like.kind == DP_OP_REDUCE ? ops[i].kind == DP_OP_REDUCE
                                              : is_message(ops[i]) &&
                                                    is_receive(ops[i]) == is_receive(like);
        if (same && dp_op_peer(s, dp_schedule_slot(s, rank, (int)ops[i].slot), ops[i]) == peer &&
            k-- == 0)
            return i;
    }
    return -1;
}

/* The partner of the op at `at`: as many of its sort come before it as before the partner. */
static int partner(const struct dp_schedule *s, int rank, int at, int *peer)
{
    const struct dp_op *ops = dp_schedule_ops(s, rank);
    struct dp_op op = ops[at], like = op;
    int k = 0;

    *peer = dp_op_peer(s, dp_schedule_slot(s, rank, (int)op.slot), op);
    while (kth(s, rank, *peer, op, k) != at)
        k++;
    if (op.kind != DP_OP_REDUCE)
        like.kind = is_receive(op) ? DP_OP_SEND_F : DP_OP_RECV_F;
    return kth(s, *peer, rank, like, k);
}

static bool partners_agree(const struct dp_schedule *s, int rank, struct dp_op mine, int peer,
                           struct dp_op theirs)
{
    const struct dp_slot *a = dp_schedule_slot(s, rank, (int)mine.slot);
    const struct dp_slot *b = dp_schedule_slot(s, peer, (int)theirs.slot);
    bool gradient = mine.kind == DP_OP_SEND_B || mine.kind == DP_OP_RECV_B;
    bool theirs_is = theirs.kind == DP_OP_SEND_B || theirs.kind == DP_OP_RECV_B;

    if (mine.kind == DP_OP_REDUCE)
        return a->stage == b->stage;
    return gradient == theirs_is && mine.mb == theirs.mb && a->stream == b->stream &&
           dp_op_stage(s, a, mine) == dp_op_stage(s, b, theirs);
}

static unsigned broken_links(const struct dp_schedule *s)
{
    for (int rank = 0; rank < s->ranks; rank++)
        for (int i = 0; i < (int)dp_schedule_count(s, rank); i++) {
            struct dp_op op = dp_schedule_ops(s, rank)[i];
            int peer;
            if (!is_message(op) && op.kind != DP_OP_REDUCE)
                continue;
            int at = partner(s, rank, i, &peer);
            if (!partners_agree(s, rank, op, peer, dp_schedule_ops(s, peer)[at]))
                return RULE(FIFO);
        }
    return 0;
}

/* Launched: all up to the commit, or reduce, that the rank stands at. */
static bool may_pass(const struct dp_schedule *s, const int *stands_at, int rank)
{
    const struct dp_op *ops = dp_schedule_ops(s, rank);
    int at = stands_at[rank], peer;

    if (ops[at].kind == DP_OP_REDUCE)
        return (at = partner(s, rank, at, &peer)) <= stands_at[peer];
    if (ops[at].kind != DP_OP_COMMIT)
        return true;
    for (int i = at - 1; i >= 0 && ops[i].kind != DP_OP_COMMIT; i--)
        if (is_message(ops[i])) {
            int theirs = partner(s, rank, i, &peer);
            if (commit_of(s, peer, theirs) > stands_at[peer])
                return false;
        }
    return true;
}

static unsigned broken_by_deadlock(const struct dp_schedule *s)
{
    int *stands_at = calloc((size_t)s->ranks, sizeof(*stands_at));
    bool moved = true, all_ended = true;

    while (moved) {
        moved = false;
        for (int rank = 0; rank < s->ranks; rank++)
            while (stands_at[rank] < (int)dp_schedule_count(s, rank) &&
                   may_pass(s, stands_at, rank)) {
                stands_at[rank]++;
                moved = true;
            }
    }
    for (int rank = 0; rank < s->ranks; rank++)
        all_ended &= stands_at[rank] == (int)dp_schedule_count(s, rank);
    free(stands_at);
    return all_ended ? 0 : RULE(DEADLOCK);
}

unsigned oracle_broken_rules(const struct dp_schedule *s)
{
    unsigned broken = broken_sets(s);

    if (!broken)
        broken = broken_orders(s);
    if (!broken)
        broken = broken_links(s) | broken_by_deadlock(s);
    return broken;
}
