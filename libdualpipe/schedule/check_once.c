/* SPDX-License-Identifier: Apache-2.0
 *
 * check_once.c - one rank's list as a set: every op makes sense, every op that there must be is
 * there once.
 */
#include "schedule/build.h"
#include "schedule/check.h"

#define MARK(kind) ((uint16_t)(1u << (kind)))

static bool is_of_training(enum dp_op_kind kind)
{
    return kind == DP_OP_B || kind == DP_OP_I || kind == DP_OP_W || kind == DP_OP_RECV_B ||
           kind == DP_OP_SEND_B || kind == DP_OP_REDUCE;
}

/* Which ops (slot, mb) must have; of the backwards, whichever is there decides. */
static uint16_t expected_marks(const struct dp_checker *c, int rank, const struct dp_slot *slot,
                               bool split)
{
    bool training = !c->s->forward_only;
    uint16_t marks = MARK(DP_OP_F);

    if (training)
        marks |= split ? MARK(DP_OP_I) | MARK(DP_OP_W) : MARK(DP_OP_B);
    if (dp_slot_has_remote_prev(slot, rank))
        marks |= MARK(DP_OP_RECV_F) | (training ? MARK(DP_OP_SEND_B) : 0);
    if (dp_slot_has_remote_next(slot, rank))
        marks |= MARK(DP_OP_SEND_F) | (training ? MARK(DP_OP_RECV_B) : 0) |
                 (c->has_frees ? MARK(DP_OP_FREE) : 0);
    return marks;
}

static int check_fields(struct dp_checker *c, int rank, size_t index, struct dp_op op)
{
    if (op.kind == DP_OP_NONE || op.kind >= DP_OP_KINDS)
        return dp_check_found(c, DP_RULE_SHAPE, rank, index, "kind %u, which is none", op.kind);
    if (c->s->forward_only && is_of_training((enum dp_op_kind)op.kind))
        return dp_check_found(c, DP_RULE_SHAPE, rank, index, "in a forward-only schedule");
    if ((int)op.slot >= c->s->slots_per_rank)
        return dp_check_found(c, DP_RULE_SHAPE, rank, index, "slot %u, expected 0 to %d", op.slot,
                              c->s->slots_per_rank - 1);
    if (op.kind != DP_OP_COMMIT && (int)op.mb >= c->s->mb_per_stream)
        return dp_check_found(c, DP_RULE_SHAPE, rank, index, "micro-batch %u, expected 0 to %d",
                              op.mb, c->s->mb_per_stream - 1);
    return 0;
}

/* An overlapped pair is an F and, right behind it, the B of something else. */
static int check_pair(struct dp_checker *c, int rank, size_t index, const struct dp_op *op)
{
    if (op->kind != DP_OP_F || index + 1 == dp_schedule_count(c->s, rank) ||
        op[1].kind != DP_OP_B)
        return dp_check_found(c, DP_RULE_SHAPE, rank, index,
                              "marked as overlapped, expected an F before a B");
    if (op[1].slot == op->slot && op[1].mb == op->mb)
        return dp_check_found(c, DP_RULE_DEPENDENCY, rank, index + 1,
                              "overlaps the F that it needs");
    return 0;
}

static int check_reduce(struct dp_checker *c, int rank, size_t index, struct dp_op op,
                        uint32_t *reduced)
{
    if (!dp_slot_has_remote_mirror(dp_schedule_slot(c->s, rank, (int)op.slot), rank))
        return dp_check_found(c, DP_RULE_SHAPE, rank, index,
                              "slot %u has no mirror on another rank", op.slot);
    if (*reduced >> op.slot & 1)
        return dp_check_found(c, DP_RULE_ONCE, rank, index, "is there twice");
    *reduced |= 1u << op.slot;
    return 0;
}

static int check_op(struct dp_checker *c, int rank, size_t index, const struct dp_op *op,
                    const uint16_t *possible, uint32_t *reduced)
{
    int err = check_fields(c, rank, index, *op);

    if (!err && op->overlap)
        err = check_pair(c, rank, index, op);
    if (err || op->kind == DP_OP_COMMIT)
        return err;
    if (op->kind == DP_OP_REDUCE)
        return check_reduce(c, rank, index, *op, reduced);
    uint16_t *marks = dp_check_mark(c, op->slot, op->mb), mark = MARK(op->kind);
    if (!(possible[op->slot] & mark))
        return dp_check_found(c, DP_RULE_SHAPE, rank, index,
                              "slot %u has no such message to another rank", op->slot);
    if (*marks & mark)
        return dp_check_found(c, DP_RULE_ONCE, rank, index, "is there twice");
    *marks |= mark;
    return 0;
}

static int missing_or_surplus(struct dp_checker *c, int rank, struct dp_op op, uint16_t is,
                              uint16_t expected)
{
    uint16_t wrong = expected & (uint16_t)~is;
    const char *text = "is missing";
    char word[DP_OP_TEXT_LEN];

    if (!wrong) {
        wrong = is & (uint16_t)~expected;
        text = "is there besides I and W";
    }
    for (op.kind = DP_OP_F; !(wrong & MARK(op.kind)); op.kind++)
        ;
    return dp_check_found(c, DP_RULE_ONCE, rank, dp_schedule_count(c->s, rank), "%s %s",
                          dp_op_text(op, word), text);
}

/* Is all there that slot needs? */
static int check_slot(struct dp_checker *c, int rank, int at, uint32_t reduced)
{
    const struct dp_slot *slot = dp_schedule_slot(c->s, rank, at);
    uint16_t whole = expected_marks(c, rank, slot, false);
    uint16_t split = expected_marks(c, rank, slot, true);
    struct dp_op op = {.slot = (uint32_t)at};

    for (int mb = 0; mb < c->s->mb_per_stream; mb++) {
        op.mb = (uint32_t)mb;
        uint16_t marks = *dp_check_mark(c, op.slot, op.mb);
        if (marks == whole || marks == split)
            continue;
        bool is_split = marks & (MARK(DP_OP_I) | MARK(DP_OP_W));
        return missing_or_surplus(c, rank, op, marks, is_split ? split : whole);
    }
    if (c->has_reduces && dp_slot_has_remote_mirror(slot, rank) && !(reduced >> at & 1))
        return dp_check_found(c, DP_RULE_ONCE, rank, dp_schedule_count(c->s, rank),
                              "the REDUCE of slot %d is missing", at);
    return 0;
}

int dp_check_rank_once(struct dp_checker *c, int rank)
{
    const struct dp_op *ops = dp_schedule_ops(c->s, rank);
    size_t count = dp_schedule_count(c->s, rank);
    uint16_t possible[DP_MAX_SLOTS];
    uint32_t reduced = 0;
    int err = 0;

    dp_check_clear_marks(c);
    for (int at = 0; at < c->s->slots_per_rank; at++) {
        const struct dp_slot *slot = dp_schedule_slot(c->s, rank, at);
        possible[at] = expected_marks(c, rank, slot, false) | expected_marks(c, rank, slot, true);
    }
    for (size_t i = 0; i < count && !err; i++)
        err = check_op(c, rank, i, &ops[i], possible, &reduced);
    for (int at = 0; at < c->s->slots_per_rank && !err; at++)
        err = check_slot(c, rank, at, reduced);
    return err;
}
