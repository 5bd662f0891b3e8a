/* SPDX-License-Identifier: Apache-2.0
 *
 * activations.c - which micro-batches of a pipeline keep what their forwards saved, and which send it to
 * the host or compute it again, so that every rank stays within its bytes. Those whose backward is the
 * farthest from the forward go first: their copies have the most time, and they use the memory for
 * longest. What a choice takes is what the pipeline's own plan of it takes.
 */
#include <dualpipe/offload.h>

#include "base/fail.h"
#include "pipeline/plan.h"
#include "schedule/build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct chooser {
    const struct dp_schedule *s;
    const struct dp_offload_activations *config;
    struct dp_border_layout *layouts; /* [stages + 1] */
    uint32_t *place; /* [slots of all ranks * mbs] how many of the rank go before it */
    uint32_t *chosen;  /* [ranks] how many go */
    bool again;      /* they are computed again; otherwise they go to the host */
};

/* A set, and how many ops lie between its forward and its backward. */
struct set {
    uint32_t at, gap;
};

/* ---- a schedule in which some sets are not kept ----------------------------------------------- */

static bool copy_array(void *to, const void *from, size_t bytes)
{
    void *copy = malloc(bytes + 1);

    if (copy)
        memcpy(copy, from, bytes);
    memcpy(to, &copy, sizeof(copy));
    return copy;
}

static int copy_schedule(const struct dp_schedule *s, struct dp_schedule **out)
{
    size_t ranks = (size_t)s->ranks, slots = s->first_slot[ranks], ops = s->first[ranks];
    struct dp_schedule *copy = malloc(sizeof(*copy));

    if (!copy)
        return dp_fail(DP_ENOMEM, "no memory for a schedule of %zu ops", ops);
    *copy = *s;
    bool all = copy_array(&copy->group_rank, s->group_rank, ranks * sizeof(*s->group_rank));
    all &= copy_array(&copy->first_slot, s->first_slot, (ranks + 1) * sizeof(*s->first_slot));
    all &= copy_array(&copy->slots, s->slots, slots * sizeof(*s->slots));
    all &= copy_array(&copy->first, s->first, (ranks + 1) * sizeof(*s->first));
    all &= copy_array(&copy->ops, s->ops, ops * sizeof(*s->ops));
    if (!all) {
        dp_schedule_free(copy);
        return dp_fail(DP_ENOMEM, "no memory for a schedule of %zu ops", ops);
    }
    *out = copy;
    return 0;
}

/* Of the schedule that the pass is at work on. */
struct pass {
    const struct chooser *c;
    const struct dp_schedule *s;
};

static bool is_chosen(void *user, const struct dp_slot *slot, int32_t mb)
{
    const struct pass *p = user;
    size_t at = (size_t)(slot - p->s->slots);
    uint32_t place = p->c->place[at * (size_t)p->s->mb_per_stream + (size_t)mb];

    return place < p->c->chosen[dp_schedule_rank_of(p->s, at)];
}

static bool is_chosen_of_rank(void *user, int rank, const struct dp_slot *slot, int32_t mb)
{
    (void)rank;
    return is_chosen(user, slot, mb);
}

static int apply(const struct chooser *c, struct dp_schedule **out)
{
    struct dp_schedule *s = NULL;
    int err = copy_schedule(c->s, &s);

    if (err)
        return err;
    struct pass pass = {c, s};
    err = c->again ? dp_schedule_add_recomputes(s, is_chosen, &pass)
                   : dp_schedule_add_evictions(s, c->config->lead, is_chosen_of_rank, &pass);
    if (err)
        dp_schedule_free(s);
    else
        *out = s;
    return err;
}

/* ---- what it takes ---------------------------------------------------------------------------- */

static int bytes_of(const struct chooser *c, const struct dp_schedule *s, int rank, size_t *out)
{
    const struct dp_plan_source source = {
        .schedule = s,
        .rank = rank,
        .stages = c->config->stages + s->first_slot[rank],
        .layouts = c->layouts,
        .order_blocks = c->config->order_blocks,
    };
    struct dp_plan plan;
    int err = dp_plan_init(&plan, &source);

    if (!err) {
        *out = plan.bytes;
        dp_plan_fini(&plan);
    }
    return err;
}

static int try(struct chooser *c, int rank, uint32_t chosen, size_t *bytes)
{
    struct dp_schedule *s = NULL;

    c->chosen[rank] = chosen;
    int err = apply(c, &s);
    if (err)
        return err;
    err = bytes_of(c, s, rank, bytes);
    dp_schedule_free(s);
    return err;
}

/* ---- which go first --------------------------------------------------------------------------- */

static int by_gap(const void *pa, const void *pb)
{
    const struct set *a = pa, *b = pb;

    if (a->gap != b->gap)
        return a->gap > b->gap ? -1 : 1;
    return a->at < b->at ? -1 : a->at > b->at;
}

static void find_gaps(const struct dp_schedule *s, int rank, struct set *sets)
{
    const struct dp_op *ops = dp_schedule_ops(s, rank);
    uint32_t mbs = (uint32_t)s->mb_per_stream;

    for (uint32_t i = 0; i < dp_schedule_count(s, rank); i++) {
        bool backward = ops[i].kind == DP_OP_B || ops[i].kind == DP_OP_I;
        if (!backward && ops[i].kind != DP_OP_F)
            continue;
        struct set *set = &sets[ops[i].slot * mbs + ops[i].mb];
        set->gap = backward ? i - set->gap : i;
    }
}

static int place_sets(struct chooser *c, int rank, uint32_t count)
{
    size_t first = c->s->first_slot[rank] * (size_t)c->s->mb_per_stream;
    struct set *sets = calloc(count + 1, sizeof(*sets));

    if (!sets)
        return dp_fail(DP_ENOMEM, "no memory for %u micro-batches", count);
    for (uint32_t i = 0; i < count; i++)
        sets[i].at = i;
    find_gaps(c->s, rank, sets);
    qsort(sets, count, sizeof(*sets), by_gap);
    for (uint32_t i = 0; i < count; i++)
        c->place[first + sets[i].at] = i;
    free(sets);
    return 0;
}

/* ---- as few as will do ------------------------------------------------------------------------ */

/* The more go, the less memory it takes, but for holes between buffers; so the answer of the search is
 * tried once more. */
static int choose_for_rank(struct chooser *c, int rank, size_t *bytes)
{
    uint32_t count = (uint32_t)dp_schedule_slot_count(c->s, rank) * (uint32_t)c->s->mb_per_stream;
    uint32_t low = 0, high = count;
    int err = place_sets(c, rank, count);

    while (!err && low < high) {
        uint32_t middle = low + (high - low) / 2;
        err = try(c, rank, middle, bytes);
        if (!err && *bytes <= c->config->budget_bytes)
            high = middle;
        else
            low = middle + 1;
    }
    if (!err)
        err = try(c, rank, high, bytes);
    if (!err && *bytes > c->config->budget_bytes)
        return dp_fail_quietly(DP_ENOMEM,
                               "offload: rank %d takes %zu bytes with no activation kept that need "
                               "not be, expected at most %zu",
                               rank, *bytes, c->config->budget_bytes);
    return err;
}

static int choose(struct chooser *c, bool again, struct dp_schedule **out, size_t *peak_bytes)
{
    int err = 0;

    c->again = again;
    *peak_bytes = 0;
    memset(c->chosen, 0, (size_t)c->s->ranks * sizeof(*c->chosen));
    for (int rank = 0; rank < c->s->ranks && !err; rank++) {
        size_t bytes = 0;
        err = choose_for_rank(c, rank, &bytes);
        if (bytes > *peak_bytes)
            *peak_bytes = bytes;
    }
    return err ? err : apply(c, out);
}

/* ---- the faster of two ------------------------------------------------------------------------ */

static int predict(const struct chooser *c, const struct dp_schedule *s, int64_t *step_ns)
{
    struct dp_simulation sim;

    *step_ns = 0;
    if (!c->config->cost)
        return 0;
    int err = dp_schedule_simulate(s, c->config->cost, 0, &sim);
    if (!err) {
        *step_ns = sim.makespan_ns;
        dp_simulation_fini(&sim);
    }
    return err;
}

static void describe(const struct dp_schedule *s, size_t peak_bytes, int64_t step_ns,
                     struct dp_offload_choice *out)
{
    *out = (struct dp_offload_choice){.peak_bytes = peak_bytes, .step_ns = step_ns};
    for (size_t i = 0; i < s->first[s->ranks]; i++) {
        out->evicted += s->ops[i].kind == DP_OP_EVICT;
        out->recomputed += s->ops[i].kind == DP_OP_RECOMPUTE;
        out->sets += s->ops[i].kind == DP_OP_F;
    }
}

/* One of the two ways, if it fits and is faster than what there is. */
static int consider(struct chooser *c, bool again, struct dp_schedule **best,
                    struct dp_offload_choice *choice)
{
    struct dp_schedule *s = NULL;
    size_t peak_bytes;
    int64_t step_ns = 0;
    int err = choose(c, again, &s, &peak_bytes);

    if (!err)
        err = predict(c, s, &step_ns);
    if (!err && (!*best || step_ns < choice->step_ns)) {
        struct dp_schedule *old = *best;
        describe(s, peak_bytes, step_ns, choice);
        *best = s;
        s = old;
    }
    dp_schedule_free(s);
    return err;
}

static int check(const struct dp_schedule *s, const struct dp_offload_activations *config)
{
    if (!config->borders || !config->stages)
        return dp_fail(DP_EINVAL, "offload: activations of a pipeline without its borders or stages");
    if (config->lead < 0)
        return dp_fail(DP_EINVAL, "offload: a lead of %d computes, expected 0 or more", config->lead);
    if (s->forward_only)
        return dp_fail(DP_EINVAL, "offload: a schedule of forwards only saves nothing");
    for (size_t i = 0; i < s->first[s->ranks]; i++)
        if (s->ops[i].kind == DP_OP_RECOMPUTE || s->ops[i].kind == DP_OP_EVICT)
            return dp_fail(DP_ESTATE, "offload: op %zu is a %s, expected a schedule that keeps all", i,
                           dp_op_kind_name((enum dp_op_kind)s->ops[i].kind));
    return 0;
}

/* The ops of `from` become those of s, and the other way round. */
static void take_ops(struct dp_schedule *s, struct dp_schedule *from)
{
    struct dp_op *ops = s->ops;
    size_t *first = s->first;

    s->ops = from->ops;
    s->first = from->first;
    from->ops = ops;
    from->first = first;
}

static int choose_both(struct chooser *c, struct dp_schedule **best, struct dp_offload_choice *choice)
{
    size_t slots = c->s->first_slot[c->s->ranks];

    c->layouts = calloc((size_t)c->s->stages + 1, sizeof(*c->layouts));
    c->place = calloc(slots * (size_t)c->s->mb_per_stream + 1, sizeof(*c->place));
    c->chosen = calloc((size_t)c->s->ranks, sizeof(*c->chosen));
    if (!c->layouts || !c->place || !c->chosen)
        return dp_fail(DP_ENOMEM, "no memory for a choice of %zu slots", slots);
    for (int32_t i = 0; i <= c->s->stages; i++)
        dp_border_lay_out(&c->config->borders[i], &c->layouts[i]);
    int err = consider(c, false, best, choice);
    if (!err || err == DP_ENOMEM)
        err = consider(c, true, best, choice);
    return *best && err == DP_ENOMEM ? 0 : err;
}

int dp_offload_activations(struct dp_schedule *s, const struct dp_offload_activations *config,
                           struct dp_offload_choice *out)
{
    struct chooser c = {.s = s, .config = config};
    struct dp_offload_choice choice;
    struct dp_schedule *best = NULL;
    int err = check(s, config);

    if (!err)
        err = choose_both(&c, &best, &choice);
    if (!err) {
        take_ops(s, best);
        *out = choice;
    } else if (err == DP_ENOMEM) {
        char why[256];
        snprintf(why, sizeof(why), "%s", dp_last_error());
        dp_fail(err, "%s", why); /* the only one that is logged */
    }
    dp_schedule_free(best);
    free(c.layouts);
    free(c.place);
    free(c.chosen);
    return err;
}
