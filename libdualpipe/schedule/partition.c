/* SPDX-License-Identifier: Apache-2.0
 *
 * partition.c - layers into groups, groups into the order of their executions.
 */
#include <dualpipe/partition.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/sized.h"

#include <math.h>
#include <stdlib.h>

/* A partition in the making. Groups come in the order of the model, which is by stage. */
struct maker {
    const struct dp_partition_spec *spec;
    struct dp_partition *p;
    int32_t *first_use; /* [layer_count] position at which the layer stands first */
    int32_t *uses;      /* [layer_count], at its first position */
    int32_t *group_of;  /* [layer_count], at its first position */
    int32_t stage, placed, open; /* open: the group that takes the next layer, -1 none */
};

/* ---- the list ------------------------------------------------------------------------------ */

struct use {
    int32_t layer, position;
};

static int by_layer(const void *pa, const void *pb)
{
    const struct use *a = pa, *b = pb;

    if (a->layer != b->layer)
        return a->layer < b->layer ? -1 : 1;
    return a->position < b->position ? -1 : 1;
}

/* Fill first_use and uses; how many distinct layers there are. -1: no memory. */
static int32_t find_uses(struct maker *m)
{
    int32_t count = m->spec->layer_count, distinct = 0, first = 0;
    struct use *sorted = malloc(((size_t)count + 1) * sizeof(*sorted));

    if (!sorted)
        return -1;
    for (int32_t i = 0; i < count; i++)
        sorted[i] = (struct use){m->spec->layers ? m->spec->layers[i] : i, i};
    qsort(sorted, (size_t)count, sizeof(*sorted), by_layer);
    for (int32_t i = 0; i < count; i++) {
        if (!i || sorted[i].layer != sorted[i - 1].layer) {
            first = sorted[i].position;
            distinct++;
        }
        m->first_use[sorted[i].position] = first;
        m->uses[first]++;
    }
    free(sorted);
    return distinct;
}

static int check_layers(const struct dp_partition_spec *spec)
{
    for (int32_t i = 0; i < spec->layer_count && spec->layers; i++)
        if (spec->layers[i] < 0)
            return dp_fail(DP_EINVAL, "layers[%d]: %d, expected a layer, at least 0 (A8)", i,
                           spec->layers[i]);
    return 0;
}

static int check_balance(const struct dp_partition_spec *spec, int32_t distinct)
{
    int64_t sum = 0;
    int32_t ranks = spec->ranks ? spec->ranks : spec->stages;

    for (int32_t i = 0; i < spec->stages; i++)
        sum += spec->balance[i];
    if (sum != distinct)
        return dp_fail(DP_EINVAL, "balance: %lld layers together, expected the %d that are in the "
                       "list (A4)", (long long)sum, distinct);
    for (int32_t i = 0; i < spec->stages; i++)
        if (spec->balance[i] <= 0)
            return dp_fail(DP_EINVAL, "balance[%d]: %d, expected at least 1 (A5)", i,
                           spec->balance[i]);
    if (ranks < spec->stages)
        return dp_fail(DP_EINVAL, "ranks: %d, expected at least one for each of %d stages (A6)",
                       ranks, spec->stages);
    return 0;
}

/* ---- groups and executions ----------------------------------------------------------------- */

static int32_t open_group(struct maker *m)
{
    struct dp_partition *p = m->p;
    int32_t index = 0, number = p->group_count++;

    if (number && p->groups[number - 1].at.stage == m->stage)
        index = p->groups[number - 1].at.index + 1;
    p->groups[number] = (struct dp_layer_group){
        .at = {m->stage, index},
        .first = number ? p->groups[number - 1].first + p->groups[number - 1].count : 0};
    return number;
}

static void execute(struct maker *m, int32_t group)
{
    struct dp_partition *p = m->p;
    int32_t last = p->invocation_count - 1;

    if (m->spec->compat && last >= 0 && p->invocations[last].group == group)
        return;
    p->invocations[p->invocation_count++].group = group;
}

/* A layer that has not been there before. A reused one is a group by itself. */
static void place_new(struct maker *m, int32_t i)
{
    struct dp_partition *p = m->p;
    bool alone = m->uses[i] > 1, opened = alone || m->open < 0;

    m->placed++;
    if (opened)
        m->open = open_group(m);
    if (opened || m->spec->compat)
        execute(m, m->open);
    struct dp_layer_group *group = &p->groups[m->open];
    p->positions[group->first + group->count++] = i;
    m->group_of[i] = m->open;
    if (alone)
        m->open = -1;
}

/* The groups after the last one begin where it ends, so only the last one may grow. */
static void place_reused(struct maker *m, int32_t i)
{
    if (!m->spec->compat)
        m->open = -1;
    execute(m, m->group_of[m->first_use[i]]);
}

static void place_all(struct maker *m)
{
    const struct dp_partition_spec *spec = m->spec;

    for (int32_t i = 0; i < spec->layer_count; i++) {
        bool full = m->placed == spec->balance[m->stage];
        if (full && spec->compat && m->stage + 1 == spec->stages)
            return; /* compat: what comes after the last new layer is lost */
        if (full && (spec->compat || m->first_use[i] == i)) {
            m->stage++;
            m->placed = 0;
            m->open = -1;
        }
        if (m->first_use[i] == i)
            place_new(m, i);
        else
            place_reused(m, i);
    }
}

static void link_invocations(struct dp_partition *p)
{
    const struct dp_location none = {-1, -1};

    for (int32_t k = 0; k < p->invocation_count; k++) {
        struct dp_invocation *v = &p->invocations[k];
        v->order = k;
        v->at = p->groups[v->group].at;
        v->source = k ? p->groups[v[-1].group].at : none;
        v->dest = k + 1 < p->invocation_count ? p->groups[v[1].group].at : none;
    }
}

/* ---- together ------------------------------------------------------------------------------ */

static int new_empty(const struct dp_partition_spec *spec, struct dp_partition **out)
{
    size_t count = (size_t)spec->layer_count + 1;
    struct dp_partition *p = calloc(1, sizeof(*p));

    if (!p)
        return dp_fail(DP_ENOMEM, "no memory for a partition");
    p->stages = spec->stages;
    p->layer_count = spec->layer_count;
    p->groups = calloc(count, sizeof(*p->groups));
    p->positions = calloc(count, sizeof(*p->positions));
    p->invocations = calloc(count, sizeof(*p->invocations));
    *out = p;
    if (p->groups && p->positions && p->invocations)
        return 0;
    return dp_fail(DP_ENOMEM, "no memory for a partition of %d layers", spec->layer_count);
}

static int make(struct maker *m)
{
    int32_t distinct = find_uses(m);

    if (distinct < 0)
        return dp_fail(DP_ENOMEM, "no memory for %d layers", m->spec->layer_count);
    int err = check_balance(m->spec, distinct);
    if (!err)
        err = check_layers(m->spec);
    if (!err && m->spec->layer_count) {
        place_all(m);
        link_invocations(m->p);
    }
    return err;
}

int dp_partition_new(const struct dp_partition_spec *spec, struct dp_partition **out)
{
    DP_RESERVED(spec, "spec");
    if (spec->layer_count < 0 || spec->stages < 0)
        return dp_fail(DP_EINVAL, "partition: %d layers, %d stages, expected no negative number",
                       spec->layer_count, spec->stages);
    size_t count = (size_t)spec->layer_count + 1;
    struct maker m = {.spec = spec,
                      .first_use = calloc(3 * count, sizeof(*m.first_use)),
                      .open = -1};
    int err = new_empty(spec, &m.p);

    if (!err && !m.first_use)
        err = dp_fail(DP_ENOMEM, "no memory for %d layers", spec->layer_count);
    if (!err) {
        m.uses = m.first_use + count;
        m.group_of = m.uses + count;
        err = make(&m);
    }
    free(m.first_use);
    if (err)
        dp_partition_free(m.p);
    else
        *out = m.p;
    return err;
}

void dp_partition_free(struct dp_partition *p)
{
    if (!p)
        return;
    free(p->groups);
    free(p->positions);
    free(p->invocations);
    free(p);
}

int dp_partition_layer(const struct dp_partition *p, int32_t stage, int32_t index,
                       int32_t *position)
{
    int32_t len = dp_partition_len(p, stage), at = index < 0 ? index + len : index;

    if (at < 0 || at >= len)
        return dp_fail(DP_EINVAL, "layer %d of stage %d, expected %d to %d (A15)", index, stage,
                       -len, len - 1);
    for (int32_t g = 0; g < p->group_count; g++) {
        const struct dp_layer_group *group = &p->groups[g];
        if (group->at.stage != stage)
            continue;
        if (at < group->count) {
            *position = p->positions[group->first + at];
            return 0;
        }
        at -= group->count;
    }
    return DP_EINVAL;
}

/* ---- balance ------------------------------------------------------------------------------- */

/* Costs and where the blocks end: block i is costs[end[i - 1]] .. costs[end[i] - 1]. */
struct blocks {
    double *costs;
    int32_t *end;
    int32_t count, parts;
};

static double block_size(const struct blocks *b, int32_t i)
{
    double sum = 0;

    for (int32_t k = i ? b->end[i - 1] : 0; k < b->end[i] && k < b->count; k++)
        sum += b->costs[k];
    return sum;
}

static int32_t largest(const struct blocks *b)
{
    int32_t best = 0;

    for (int32_t i = 1; i < b->parts; i++)
        if (block_size(b, i) >= block_size(b, best))
            best = i;
    return best;
}

/* The smallest block; of several the first, or the one closest to p. */
static int32_t smallest(const struct blocks *b, int32_t p, bool closest)
{
    int32_t best = 0;

    for (int32_t i = 1; i < b->parts; i++) {
        double size = block_size(b, i), least = block_size(b, best);
        if (size < least || (closest && size <= least && abs(i - p) < abs(best - p)))
            best = i;
    }
    return best;
}

static int32_t block_len(const struct blocks *b, int32_t i)
{
    return b->end[i] - (i ? b->end[i - 1] : 0);
}

static bool has_empty(const struct blocks *b)
{
    bool found = false;

    for (int32_t i = 0; i < b->parts; i++)
        found = found || block_len(b, i) <= 0;
    return found;
}

/* Let the smallest block q take an item of its neighbour on the side of the largest one, p, until
 * the neighbour is p itself; then look for the largest one again. Not with the closest one blocks
 * may end before they begin, and then recover; false: they do not. */
static bool improve(struct blocks *b, bool closest)
{
    for (int32_t i = 0; i < b->parts; i++)
        b->end[i] = i + 1 < b->parts ? b->count / b->parts * (i + 1) : b->count;
    for (int64_t moves = (int64_t)b->count * b->count * b->parts;;) {
        int32_t p = largest(b), h;
        double most = block_size(b, p);
        do {
            int32_t q = smallest(b, p, closest);
            if (most <= block_size(b, q) + 1)
                return !has_empty(b);
            if (!moves--)
                return false;
            h = p < q ? q - 1 : q + 1;
            b->end[p < q ? h : q] += p < q ? -1 : 1;
            if (b->end[h] < 0)
                return false;
        } while (h != p);
    }
}

/* Shift and scale to 0 .. 1. */
static void normalize(double *to, const double *costs, int32_t count)
{
    double least = costs[0], most = costs[0];

    for (int32_t i = 1; i < count; i++) {
        least = fmin(least, costs[i]);
        most = fmax(most, costs[i]);
    }
    for (int32_t i = 0; i < count; i++)
        to[i] = most > least ? (costs[i] - least) / (most - least) : 0;
}

static int check_costs(const double *costs, int32_t count, int32_t parts)
{
    if (parts < 1)
        return dp_fail(DP_EINVAL, "parts: %d, expected at least 1", parts);
    if (count < parts)
        return dp_fail(DP_EINVAL, "costs: %d layers, expected at least %d, one for each part",
                       count, parts);
    for (int32_t i = 0; i < count; i++)
        if (!(costs[i] >= 0 && isfinite(costs[i])))
            return dp_fail(DP_EINVAL, "costs[%d]: %g, expected a number that is not negative", i,
                           costs[i]);
    return 0;
}

int dp_partition_blocks(const double *costs, int32_t count, int32_t parts, int32_t *balance)
{
    int err = check_costs(costs, count, parts);

    if (err)
        return err;
    struct blocks b = {malloc((size_t)count * sizeof(*b.costs)),
                       malloc((size_t)parts * sizeof(*b.end)), count, parts};
    if (!b.costs || !b.end) {
        err = dp_fail(DP_ENOMEM, "no memory to balance %d layers", count);
    } else {
        normalize(b.costs, costs, count);
        if (!improve(&b, false)) /* where fairscale loses or doubles layers */
            improve(&b, true);
        for (int32_t i = 0; i < parts; i++)
            balance[i] = block_len(&b, i);
    }
    free(b.costs);
    free(b.end);
    return err;
}

int dp_partition_by_size(const struct dp_layer_size *sizes, int32_t count, int32_t parts,
                         double batch, int32_t chunks, double scale, int32_t *balance)
{
    double *costs = malloc(((size_t)(count > 0 ? count : 0) + 1) * sizeof(*costs));
    int err = costs ? 0 : dp_fail(DP_ENOMEM, "no memory to balance %d layers", count);

    if (!err && chunks <= 0)
        err = dp_fail(DP_EINVAL, "chunks: %d, expected at least 1 (A1)", chunks);
    for (int32_t i = 0; i < count && !err; i++)
        costs[i] = sizes[i].activation_bytes * batch / chunks + sizes[i].parameter_bytes * scale;
    if (!err)
        err = dp_partition_blocks(costs, count, parts, balance);
    free(costs);
    return err;
}

static int measure(dp_layer_run_fn *run, void *user, int32_t count, int64_t budget_ns,
                   double *costs)
{
    int64_t begin_ns = dp_now_ns();
    int err = 0;

    do
        for (int32_t i = 0; i < count && !err; i++) {
            int64_t start_ns = dp_now_ns();
            err = run(user, i);
            costs[i] += (double)(dp_now_ns() - start_ns);
        }
    while (!err && count > 0 && dp_now_ns() - begin_ns < budget_ns);
    return err;
}

int dp_partition_by_time(dp_layer_run_fn *run, void *user, int32_t count, int32_t parts,
                         int64_t budget_ns, int32_t *balance)
{
    double *costs = calloc((size_t)(count > 0 ? count : 0) + 1, sizeof(*costs));
    int err = costs ? check_costs(costs, count, parts)
                    : dp_fail(DP_ENOMEM, "no memory to balance %d layers", count);

    if (!err)
        err = measure(run, user, count, budget_ns, costs);
    if (!err)
        err = dp_partition_blocks(costs, count, parts, balance);
    free(costs);
    return err;
}
