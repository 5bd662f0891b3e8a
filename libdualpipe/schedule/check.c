/* SPDX-License-Identifier: Apache-2.0
 *
 * check.c - prove that a schedule can be carried out: the placement, each rank's list for itself,
 * then all ranks together.
 */
#include "schedule/check.h"
#include "schedule/internal.h"

#include "base/fail.h"
#include "schedule/build.h"

#include <stdlib.h>
#include <string.h>

/* ---- the placement --------------------------------------------------------------------------- */

static int check_counts(struct dp_checker *c)
{
    const struct dp_schedule *s = c->s;
    const bool has_none = s->kind == DP_SCHEDULE_ASYNC && !s->stages; /* of an empty list of layers */

    if (s->ranks < 1 || (s->stages < 1 && !has_none) || s->streams < 1 || s->streams > 2)
        return dp_check_found(c, DP_RULE_SHAPE, -1, 0,
                              "%d ranks, %d stages, %d streams; expected at least one of each and "
                              "at most 2 streams", s->ranks, s->stages, s->streams);
    for (int rank = 0; rank < s->ranks; rank++)
        if (s->first_slot[rank + 1] - s->first_slot[rank] > (size_t)s->max_slots ||
            s->max_slots > DP_MAX_SLOTS)
            return dp_check_found(c, DP_RULE_SHAPE, -1, 0, "rank %d: %zu slots, expected at most "
                                  "max_slots, %d, which is at most %d", rank,
                                  s->first_slot[rank + 1] - s->first_slot[rank], s->max_slots,
                                  DP_MAX_SLOTS);
    if (s->mb_per_stream < 1 || s->mb_per_stream > DP_MAX_MB ||
        s->microbatches != s->mb_per_stream * s->streams)
        return dp_check_found(c, DP_RULE_SHAPE, -1, 0,
                              "%d micro-batches, %d per stream; expected 1 to %d per stream",
                              s->microbatches, s->mb_per_stream, DP_MAX_MB);
    return 0;
}

static int check_group_ranks(struct dp_checker *c)
{
    int bad, err = dp_permutation_check(c->s->group_rank, c->s->ranks, &bad);

    if (err != DP_EINVAL)
        return err;
    return dp_check_found(c, DP_RULE_SHAPE, -1, 0,
                          "rank %d: group rank %d, expected each of 0 to %d once", bad,
                          c->s->group_rank[bad], c->s->ranks - 1);
}

int dp_check_shape(struct dp_checker *c)
{
    int err = check_counts(c);

    if (!err)
        err = check_group_ranks(c);
    if (err)
        return err;
    err = dp_placement_check(c->s);
    if (!err)
        err = dp_skips_check_ends(c->s);
    return err == DP_EINVAL ? dp_check_found(c, DP_RULE_SHAPE, -1, 0, "%s", dp_last_error()) : err;
}

/* ---- soundness ------------------------------------------------------------------------------- */

/* The least that must hold before a list is looked at op by op: no op indexes what is not there.
 * For the simulator, which does not prove everything again. */
static bool has_partner(const struct dp_schedule *s, int rank, struct dp_op op)
{
    if (dp_op_is_skip((enum dp_op_kind)op.kind) && (int)dp_op_argument(op) >= s->skip_count)
        return false;
    int peer = dp_op_peer(s, dp_schedule_slot(s, rank, (int)op.slot), op);
    return peer >= 0 && peer != rank;
}

static bool is_sound(const struct dp_schedule *s, int rank, const struct dp_op *op, bool last)
{
    if (op->kind >= DP_OP_KINDS || op->mb > DP_MAX_MB ||
        (!dp_op_is_skip((enum dp_op_kind)op->kind) && op->flags & DP_OP_ARGUMENT) ||
        (op->kind != DP_OP_COMMIT && (int)op->slot >= dp_schedule_slot_count(s, rank)))
        return false;
    if (op->flags & DP_OP_OVERLAP && (op->kind != DP_OP_F || last || op[1].kind != DP_OP_B))
        return false;
    return !dp_op_is_message((enum dp_op_kind)op->kind) || has_partner(s, rank, *op);
}

/* The kinds of ops that are sound in each slot of the rank, without an argument: a bit each. */
static void find_sound_kinds(const struct dp_schedule *s, int rank, uint32_t kinds[DP_MAX_SLOTS])
{
    memset(kinds, 0, DP_MAX_SLOTS * sizeof(*kinds));
    for (int slot = 0; slot < dp_schedule_slot_count(s, rank) && slot < DP_MAX_SLOTS; slot++)
        for (uint32_t kind = 0; kind < DP_OP_KINDS; kind++) {
            const struct dp_op op = {.kind = (uint8_t)kind, .slot = (uint8_t)slot};
            kinds[slot] |= (uint32_t)is_sound(s, rank, &op, true) << kind;
        }
}

/* The first op of which that does not tell, or count. */
static size_t skip_sound_ops(const struct dp_op *ops, size_t index, size_t count,
                             const uint32_t kinds[DP_MAX_SLOTS])
{
    const struct dp_op *op = &ops[index], *end = &ops[count];

    for (; op < end; op++) {
        if (op->flags & DP_OP_OVERLAP && (op->kind != DP_OP_F || op + 1 == end || op[1].kind != DP_OP_B))
            break;
        if (op->flags & DP_OP_ARGUMENT || op->slot >= DP_MAX_SLOTS || op->kind >= DP_OP_KINDS ||
            op->mb > DP_MAX_MB || !(kinds[op->slot] >> op->kind & 1))
            break;
    }
    return (size_t)(op - ops);
}

int dp_check_sound(const struct dp_schedule *s)
{
    uint32_t kinds[DP_MAX_SLOTS];
    char text[DP_OP_TEXT_LEN];

    for (int rank = 0; rank < s->ranks; rank++) {
        const struct dp_op *ops = dp_schedule_ops(s, rank);
        size_t count = dp_schedule_count(s, rank);
        find_sound_kinds(s, rank, kinds);
        for (size_t i = 0; (i = skip_sound_ops(ops, i, count, kinds)) < count; i++)
            if (!is_sound(s, rank, &ops[i], i + 1 == count))
                return dp_fail(DP_EINVAL, "simulate: rank %d, op %zu (%s) makes no sense; expected "
                               "a schedule that passes the checker", rank, i,
                               dp_op_text(ops[i], text));
    }
    return 0;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static void set_limits(struct dp_checker *c, const struct dp_check_limits *limits, int rank)
{
    const struct dp_rank_view view = dp_schedule_view(c->s, rank);

    dp_builder_limits(&view, &c->max_activations, &c->max_weight_queue);
    if (limits && limits->max_activations)
        c->max_activations = limits->max_activations;
    if (limits && limits->max_weight_queue)
        c->max_weight_queue = limits->max_weight_queue;
}

static int check_ranks(struct dp_checker *c, const struct dp_check_limits *limits)
{
    int err = 0;

    for (int rank = 0; rank < c->s->ranks && !err; rank++) {
        set_limits(c, limits, rank);
        err = dp_check_rank_once(c, rank);
        if (!err)
            err = dp_check_rank_order(c, rank);
    }
    return err;
}

static int check(struct dp_checker *c, const struct dp_check_limits *limits)
{
    int err = dp_check_shape(c);

    if (err)
        return err;
    c->has_frees = dp_schedule_has(c->s, DP_OP_FREE);
    c->mbs = (size_t)c->s->mb_per_stream;
    c->marks = malloc((size_t)c->s->max_slots * c->mbs * sizeof(*c->marks) + 1);
    c->skip_marks = malloc((size_t)c->s->streams * (size_t)c->s->skip_count * c->mbs + 1);
    if (!c->marks || !c->skip_marks)
        err = dp_fail(DP_ENOMEM, "no memory to check %d micro-batches", c->s->mb_per_stream);
    else
        err = check_ranks(c, limits);
    free(c->skip_marks);
    free(c->marks);
    return err ? err : dp_check_links(c);
}

int dp_schedule_check(const struct dp_schedule *s, const struct dp_check_limits *limits,
                      struct dp_finding *finding)
{
    struct dp_finding found;
    struct dp_checker c = {.s = s, .finding = finding ? finding : &found};
    int err;

    *c.finding = (struct dp_finding){.rank = -1};
    err = check(&c, limits);
    if (err != DP_EINVAL)
        return err;
    /* A caller that asked for the finding decides whether it is an error. */
    return (finding ? dp_fail_quietly : dp_fail)(DP_EINVAL, "schedule breaks the %s rule: %s",
                                                 dp_rule_name(c.finding->rule), c.finding->text);
}
