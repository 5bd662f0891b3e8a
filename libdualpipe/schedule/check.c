/* SPDX-License-Identifier: Apache-2.0
 *
 * check.c - prove that a schedule can be carried out: the placement, each rank's list for itself,
 * then all ranks together.
 */
#include "schedule/check.h"

#include "base/fail.h"
#include "schedule/build.h"
#include "schedule/placement.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* ---- the placement ------------------------------------------------------------------------- */

static int check_counts(struct dp_checker *c)
{
    const struct dp_schedule *s = c->s;

    if (s->ranks < 1 || s->stages < 1 || s->streams < 1 || s->streams > 2)
        return dp_check_found(c, DP_RULE_SHAPE, -1, 0,
                              "%d ranks, %d stages, %d streams; expected at least one of each and "
                              "at most 2 streams", s->ranks, s->stages, s->streams);
    if (s->slots_per_rank < 1 || s->slots_per_rank > DP_MAX_SLOTS)
        return dp_check_found(c, DP_RULE_SHAPE, -1, 0, "%d slots per rank, expected 1 to %d",
                              s->slots_per_rank, DP_MAX_SLOTS);
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
    return err == DP_EINVAL ? dp_check_found(c, DP_RULE_SHAPE, -1, 0, "%s", dp_last_error()) : err;
}

void dp_check_clear_marks(struct dp_checker *c)
{
    memset(c->marks, 0, (size_t)c->s->slots_per_rank * c->mbs * sizeof(*c->marks));
}

/* ---- all of it ----------------------------------------------------------------------------- */

static void see_what_is_used(struct dp_checker *c)
{
    for (size_t i = 0; i < c->s->first[c->s->ranks]; i++) {
        c->has_frees |= c->s->ops[i].kind == DP_OP_FREE;
        c->has_reduces |= c->s->ops[i].kind == DP_OP_REDUCE;
    }
}

static void set_limits(struct dp_checker *c, const struct dp_check_limits *limits, int rank)
{
    const struct dp_builder *builder = dp_builder_of(c->s->kind);
    struct dp_rank_view view = {c->s, rank, dp_schedule_slot(c->s, rank, 0)};

    c->max_activations = builder ? builder->max_activations(&view) : -1;
    c->max_weight_queue = builder ? builder->max_weight_queue(&view) : -1;
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
    see_what_is_used(c);
    c->mbs = (size_t)c->s->mb_per_stream;
    c->marks = malloc((size_t)c->s->slots_per_rank * c->mbs * sizeof(*c->marks));
    if (!c->marks)
        return dp_fail(DP_ENOMEM, "no memory to check %d micro-batches", c->s->mb_per_stream);
    err = check_ranks(c, limits);
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
    /* Who asked for the finding decides whether it is bad news. */
    return (finding ? dp_fail_quietly : dp_fail)(DP_EINVAL, "schedule breaks the %s rule: %s",
                                                 dp_rule_name(c.finding->rule), c.finding->text);
}
