/* SPDX-License-Identifier: Apache-2.0
 *
 * check_skips.c - the rules of one rank's list for skip connections: each value and each gradient is
 * received once before the compute that reads it, and sent once after the compute that makes it.
 */
#include "schedule/build.h"
#include "schedule/check.h"
#include "schedule/internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* What has been seen of (skip of a stream, mb) on the rank. */
#define MARK(kind) ((uint8_t)(1 << ((kind) - DP_OP_RECV_SKIP_F)))
enum { HAS_VALUE = 16, HAS_GRADIENT = 32 };

static uint8_t *mark_of(const struct dp_checker *c, const struct dp_slot *slot, uint32_t skip,
                        uint32_t mb)
{
    const size_t at = (size_t)slot->stream * (size_t)c->s->skip_count + skip;
    return &c->skip_marks[at * c->mbs + mb];
}

void dp_check_clear_skips(struct dp_checker *c)
{
    if (c->s->skip_count)
        memset(c->skip_marks, 0,
               (size_t)c->s->streams * (size_t)c->s->skip_count * c->mbs * sizeof(*c->skip_marks));
}

/* Which ops a skip needs on the rank. */
static uint8_t expected(const struct dp_checker *c, int rank, const struct dp_skip_ends *ends)
{
    const bool training = !c->s->forward_only;
    uint8_t marks = 0;

    if (ends->from == ends->to)
        return 0;
    if (ends->from == rank)
        marks |= MARK(DP_OP_SEND_SKIP_F) | (training ? MARK(DP_OP_RECV_SKIP_B) : 0);
    if (ends->to == rank)
        marks |= MARK(DP_OP_RECV_SKIP_F) | (training ? MARK(DP_OP_SEND_SKIP_B) : 0);
    return marks;
}

int dp_check_skip_once(struct dp_checker *c, int rank, size_t index, struct dp_op op)
{
    const struct dp_slot *slot = dp_schedule_slot(c->s, rank, (int)op.slot);
    const struct dp_skip_ends *ends = dp_skip_ends_of(c->s, slot->stream, (int)dp_op_argument(op));
    const bool makes = op.kind == DP_OP_SEND_SKIP_F || op.kind == DP_OP_RECV_SKIP_B;
    uint8_t *marks = mark_of(c, slot, dp_op_argument(op), op.mb), mark = MARK(op.kind);

    if (!(expected(c, rank, ends) & mark) ||
        (int)op.slot != (makes ? ends->from_slot : ends->to_slot))
        return dp_check_found(c, DP_RULE_SHAPE, rank, index,
                              "slot %u has no such message of skip %u to another rank", op.slot,
                              dp_op_argument(op));
    if (*marks & mark)
        return dp_check_found(c, DP_RULE_ONCE, rank, index, "is there twice");
    *marks |= mark;
    return 0;
}

static int report_missing(struct dp_checker *c, int rank, int stream, int skip, uint32_t mb,
                          uint8_t missing)
{
    const struct dp_skip_ends *ends = dp_skip_ends_of(c->s, stream, skip);
    struct dp_op op = {.kind = DP_OP_RECV_SKIP_F, .mb = mb,
                       .flags = dp_op_flags(0, (uint32_t)skip)};
    char text[DP_OP_TEXT_LEN];

    while (!(missing & MARK(op.kind)))
        op.kind++;
    const bool makes = op.kind == DP_OP_SEND_SKIP_F || op.kind == DP_OP_RECV_SKIP_B;
    op.slot = (uint8_t)(makes ? ends->from_slot : ends->to_slot);
    return dp_check_found(c, DP_RULE_ONCE, rank, dp_schedule_count(c->s, rank), "%s is missing",
                          dp_op_text(op, text));
}

int dp_check_skips_complete(struct dp_checker *c, int rank)
{
    for (int stream = 0; stream < c->s->streams; stream++)
        for (int skip = 0; skip < c->s->skip_count; skip++) {
            const struct dp_skip_ends *ends = dp_skip_ends_of(c->s, stream, skip);
            const uint8_t wanted = expected(c, rank, ends);
            const struct dp_slot of = {.stream = stream};
            for (uint32_t mb = 0; wanted && mb < c->mbs; mb++) {
                const uint8_t missing =
                    wanted & (uint8_t)~*mark_of(c, &of, (uint32_t)skip, mb);
                if (missing)
                    return report_missing(c, rank, stream, skip, mb, missing);
            }
        }
    return 0;
}

void dp_check_skip_came(struct dp_checker *c, int rank, struct dp_op op)
{
    const struct dp_slot *slot = dp_schedule_slot(c->s, rank, (int)op.slot);

    *mark_of(c, slot, dp_op_argument(op), op.mb) |=
        op.kind == DP_OP_RECV_SKIP_F ? HAS_VALUE : HAS_GRADIENT;
}

int dp_check_skips_came(struct dp_checker *c, int rank, size_t index, struct dp_op op)
{
    const struct dp_slot *slot = dp_schedule_slot(c->s, rank, (int)op.slot);
    const bool forward = op.kind == DP_OP_F;

    for (int skip = 0; skip < c->s->skip_count; skip++) {
        const struct dp_skip_ends *ends = dp_skip_ends_of(c->s, slot->stream, skip);
        const int stage = forward ? c->s->skips[skip].to : c->s->skips[skip].from;
        if (stage != slot->stage || ends->from == ends->to)
            continue;
        if (!(*mark_of(c, slot, (uint32_t)skip, op.mb) & (forward ? HAS_VALUE : HAS_GRADIENT)))
            return dp_check_found(c, DP_RULE_DEPENDENCY, rank, index,
                                  "its %s of skip %d has not been received and committed",
                                  forward ? "value" : "gradient", skip);
    }
    return 0;
}

/* ---- finding --------------------------------------------------------------------------------- */

/* What the checker says: the rule that is broken, where, and why. */

const char *dp_rule_name(enum dp_rule rule)
{
    static const char *const names[DP_RULES] = {
        [DP_RULE_NONE] = "none",
        [DP_RULE_SHAPE] = "shape",
        [DP_RULE_ONCE] = "once",
        [DP_RULE_DEPENDENCY] = "dependency",
        [DP_RULE_FIFO] = "fifo",
        [DP_RULE_DEADLOCK] = "deadlock",
        [DP_RULE_WEIGHT] = "weight",
        [DP_RULE_ACTIVATION] = "activation",
        [DP_RULE_COMMIT] = "commit",
    };
    return (unsigned)rule < DP_RULES ? names[rule] : "?";
}

static size_t describe_place(const struct dp_checker *c, char *text, size_t len)
{
    const struct dp_finding *f = c->finding;
    char op[DP_OP_TEXT_LEN];

    if (f->rank < 0)
        return 0;
    if (f->index == dp_schedule_count(c->s, f->rank))
        return (size_t)snprintf(text, len, "rank %d, end of list: ", f->rank);
    return (size_t)snprintf(text, len, "rank %d, op %zu (%s): ", f->rank, f->index,
                            dp_op_text(f->op, op));
}

int dp_check_found(struct dp_checker *c, enum dp_rule rule, int rank, size_t index,
                   const char *fmt, ...)
{
    struct dp_finding *f = c->finding;
    va_list args;
    size_t len;

    *f = (struct dp_finding){.rule = rule, .rank = rank, .index = index};
    if (rank >= 0 && index < dp_schedule_count(c->s, rank))
        f->op = dp_schedule_ops(c->s, rank)[index];
    len = describe_place(c, f->text, sizeof(f->text));
    va_start(args, fmt);
    vsnprintf(f->text + len, sizeof(f->text) - len, fmt, args);
    va_end(args);
    return DP_EINVAL;
}
