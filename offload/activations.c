/* SPDX-License-Identifier: Apache-2.0
 *
 * activations.c - which micro-batches of a pipeline keep what their forwards saved, and which send it to
 * the host or compute it again, so that every rank stays within its bytes. Those whose backward is the
 * farthest from the forward go first: they use the memory for longest. The farthest of these have the
 * most time for copies, the nearest are rather computed again:
 *
 *      place     0 ........ recomputed from here on ..... chosen ..... count
 *                to the host         computed again           kept
 *
 * What a choice takes is what the pipeline's own plan of it takes.
 */
#include <dualpipe/offload.h>

#include "base/fail.h"
#include "pipeline/reduce.h"
#include "pipeline/plan.h"
#include "schedule/build.h"
#include "schedule/internal.h"

#include <stdlib.h>
#include <string.h>

struct chooser {
    const struct dp_schedule *s;
    const struct dp_offload_activations *config;
    struct dp_border_layout *layouts; /* [stages + 1] */
    uint32_t *place; /* [slots of all ranks * mbs] how many of the rank go before it */
    uint32_t *chosen;  /* [ranks] how many go */
    uint8_t *again;    /* [ranks] which share of these is computed again, in parts of SHARES */
    size_t *bytes;     /* [ranks] what that takes */
    size_t least;      /* of the rank at hand: the least that did not fit; 0: none */
};

enum { SHARES = 4 };

/* A set, and how many ops lie between its forward and its backward. */
struct set {
    uint32_t at, gap;
};

/* ---- a schedule in which some sets are not kept ----------------------------------------------- */

/* Of the schedule that the pass is at work on. */
struct pass {
    const struct chooser *c;
    const struct dp_schedule *s;
};

/* Place of a set in the order in which they go. */
static uint32_t place_of(const struct pass *p, size_t slot, int32_t mb)
{
    return p->c->place[slot * (size_t)p->s->mb_per_stream + (size_t)mb];
}

/* The place of the first that is computed again. */
static uint32_t first_again(const struct chooser *c, int rank)
{
    return c->chosen[rank] - (uint32_t)((uint64_t)c->chosen[rank] * c->again[rank] / SHARES);
}

static bool goes_again(void *user, const struct dp_slot *slot, int32_t mb)
{
    const struct pass *p = user;
    size_t at = (size_t)(slot - p->s->slots);
    int rank = dp_schedule_rank_of(p->s, at);
    uint32_t place = place_of(p, at, mb);

    return place >= first_again(p->c, rank) && place < p->c->chosen[rank];
}

static bool goes_to_host(void *user, int rank, const struct dp_slot *slot, int32_t mb)
{
    const struct pass *p = user;

    return place_of(p, (size_t)(slot - p->s->slots), mb) < first_again(p->c, rank);
}

static int apply(const struct chooser *c, struct dp_schedule **out)
{
    struct dp_schedule *s = NULL;
    int err = dp_schedule_copy(c->s, &s);

    if (err)
        return err;
    struct pass pass = {c, s};
    if (!c->config->keep)
        err = dp_schedule_add_recomputes(s, goes_again, &pass);
    if (!err && !c->config->keep)
        err = dp_schedule_add_evictions(s, c->config->lead, goes_to_host, &pass);
    if (err)
        dp_schedule_free(s);
    else
        *out = s;
    return err;
}

/* ---- what it takes ---------------------------------------------------------------------------- */

/* Of one schedule; and of the sums, which all have in common. */
static int plan_bytes(const struct chooser *c, const struct dp_schedule *s, int rank, size_t *bytes,
                      size_t *sums)
{
    const struct dp_stage *stages = c->config->stages + s->first_slot[rank];
    const struct dp_plan_source source = {
        .schedule = s,
        .rank = rank,
        .stages = stages,
        .layouts = c->layouts,
        .order_blocks = c->config->order_blocks,
    };
    struct dp_plan plan;
    int err = dp_plan_init(&plan, &source);

    if (err)
        return err;
    *bytes = plan.bytes;
    *sums = dp_accumulator_bytes(stages, plan.sets, dp_schedule_slot_count(s, rank));
    dp_plan_fini(&plan);
    return 0;
}

static int bytes_of(const struct chooser *c, const struct dp_schedule *s, int rank, size_t *out)
{
    size_t bytes = 0, other = 0, sums = 0, none;

    if (c->config->measure)
        return c->config->measure(c->config->measure_user, s, rank, out);
    int err = plan_bytes(c, s, rank, &bytes, &sums);

    if (!err && c->config->also)
        err = plan_bytes(c, c->config->also, rank, &other, &none);
    if (!err)
        *out = (bytes > other ? bytes : other) + (c->config->sums ? sums : 0);
    return err;
}

/* With `chosen` sets that are not kept. */
static int try(struct chooser *c, int rank, uint32_t chosen)
{
    struct dp_schedule *s = NULL;

    c->chosen[rank] = chosen;
    int err = apply(c, &s);
    if (err)
        return err;
    err = bytes_of(c, s, rank, &c->bytes[rank]);
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

static size_t beside_of(const struct chooser *c, int rank)
{
    return c->config->beside_bytes ? c->config->beside_bytes[rank] : 0;
}

static size_t budget_of(const struct chooser *c, int rank)
{
    const size_t all = c->config->budget_bytes, beside = beside_of(c, rank);

    return all > beside ? all - beside : 0;
}

/* The more go, the less memory it takes, but for holes between buffers; so the answer of the search is
 * tried once more. */
static int choose_for_rank(struct chooser *c, int rank, bool *fits)
{
    uint32_t count = (uint32_t)dp_schedule_slot_count(c->s, rank) * (uint32_t)c->s->mb_per_stream;
    uint32_t low = 0, high = c->config->keep ? 0 : count;
    size_t budget = budget_of(c, rank);
    int err = 0;

    while (!err && low < high) {
        uint32_t middle = low + (high - low) / 2;
        err = try(c, rank, middle);
        if (!err && c->bytes[rank] <= budget)
            high = middle;
        else
            low = middle + 1;
    }
    if (!err)
        err = try(c, rank, high);
    *fits = !err && c->bytes[rank] <= budget;
    return err;
}

/* ---- the fastest ------------------------------------------------------------------------------ */

static int predict(const struct chooser *c, int64_t *step_ns)
{
    struct dp_schedule *s = NULL;
    struct dp_simulation sim;

    *step_ns = 0;
    if (!c->config->cost)
        return 0;
    int err = apply(c, &s);
    if (!err)
        err = dp_schedule_simulate(s, c->config->cost, 0, &sim);
    if (!err) {
        *step_ns = sim.makespan_ns;
        dp_simulation_fini(&sim);
    }
    dp_schedule_free(s);
    return err;
}

/* What is known of a rank, with one of the shares. */
struct trial {
    uint32_t chosen;
    uint8_t again;
    size_t bytes;
    int64_t step_ns;
    bool fits;
};

/* The share that gives the shortest step, the others' being what they are; 0: the first that fits is
 * good enough. */
static int try_shares(struct chooser *c, int rank, struct trial *best)
{
    int err = 0;

    for (uint8_t again = c->config->recompute ? SHARES : 0; again <= SHARES && !err; again++) {
        struct trial t = {.again = again};
        c->again[rank] = again;
        err = choose_for_rank(c, rank, &t.fits);
        if (!err && !t.fits && (!c->least || c->bytes[rank] < c->least))
            c->least = c->bytes[rank];
        if (!err && t.fits)
            err = predict(c, &t.step_ns);
        if (err || !t.fits)
            continue;
        t.chosen = c->chosen[rank];
        t.bytes = c->bytes[rank];
        if (!best->fits || t.step_ns < best->step_ns)
            *best = t;
        if (!t.chosen || !c->config->cost || c->config->keep)
            break;
    }
    return err;
}

static int choose_share(struct chooser *c, int rank, bool *fits)
{
    uint32_t count = (uint32_t)dp_schedule_slot_count(c->s, rank) * (uint32_t)c->s->mb_per_stream;
    struct trial best = {0};
    c->least = 0;
    int err = place_sets(c, rank, count);

    if (!err)
        err = try_shares(c, rank, &best);
    c->again[rank] = best.again;
    c->chosen[rank] = best.chosen;
    c->bytes[rank] = best.bytes;
    *fits = best.fits;
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

static int check(const struct dp_schedule *s, const struct dp_offload_activations *config)
{
    if (!config->measure && (!config->borders || !config->stages))
        return dp_fail(DP_EINVAL, "offload: activations of a pipeline without its borders or stages");
    if (config->lead < 0)
        return dp_fail(DP_EINVAL, "offload: a lead of %d computes, expected 0 or more", config->lead);
    if (s->forward_only)
        return dp_fail(DP_EINVAL, "offload: a schedule of forwards only saves nothing");
    for (size_t i = 0; i < s->first[s->ranks] && !config->keep; i++)
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

static int make_lists(struct chooser *c)
{
    size_t slots = c->s->first_slot[c->s->ranks], ranks = (size_t)c->s->ranks;

    c->layouts = calloc((size_t)c->s->stages + 1, sizeof(*c->layouts));
    c->place = calloc(slots * (size_t)c->s->mb_per_stream + 1, sizeof(*c->place));
    c->chosen = calloc(ranks, sizeof(*c->chosen));
    c->again = calloc(ranks, sizeof(*c->again));
    c->bytes = calloc(ranks, sizeof(*c->bytes));
    if (!c->layouts || !c->place || !c->chosen || !c->again || !c->bytes)
        return dp_fail(DP_ENOMEM, "no memory for a choice of %zu slots", slots);
    for (int32_t i = 0; i <= c->s->stages && !c->config->measure; i++)
        dp_border_lay_out(&c->config->borders[i], &c->layouts[i]);
    return 0;
}

/* For all ranks; where some do not fit, the sentence is of that which needs the most. */
static int choose_shares(struct chooser *c, size_t *peak_bytes)
{
    size_t most = 0;
    int worst = 0, err = 0;

    for (int rank = 0; rank < c->s->ranks && !err; rank++) {
        bool fits;
        err = choose_share(c, rank, &fits);
        if (!err && !fits && beside_of(c, rank) + c->least > most) {
            most = beside_of(c, rank) + c->least;
            worst = rank;
        }
        if (c->bytes[rank] > *peak_bytes)
            *peak_bytes = c->bytes[rank];
    }
    if (err || !most)
        return err;
    return dp_fail(DP_ENOMEM, "offload: rank %d takes %zu bytes with %s, expected at most %zu", worst,
                   most, c->config->keep ? "all activations kept"
                                         : "no activation kept that need not be",
                   c->config->budget_bytes);
}

static int choose(struct chooser *c, struct dp_schedule **out, struct dp_offload_choice *choice)
{
    size_t peak_bytes = 0;
    int64_t step_ns = 0;
    int err = make_lists(c);

    if (!err)
        err = choose_shares(c, &peak_bytes);
    if (!err)
        err = predict(c, &step_ns);
    if (!err)
        err = apply(c, out);
    if (!err)
        describe(*out, peak_bytes, step_ns, choice);
    return err;
}

int dp_offload_activations(struct dp_schedule *s, const struct dp_offload_activations *config,
                           struct dp_offload_choice *out)
{
    struct chooser c = {.s = s, .config = config};
    struct dp_offload_choice choice;
    struct dp_schedule *best = NULL;
    int err = check(s, config);

    if (!err)
        err = choose(&c, &best, &choice);
    if (!err) {
        take_ops(s, best);
        *out = choice;
    }
    dp_schedule_free(best);
    free(c.layouts);
    free(c.place);
    free(c.chosen);
    free(c.again);
    free(c.bytes);
    return err;
}
