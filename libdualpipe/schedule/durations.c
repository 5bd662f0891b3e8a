/* SPDX-License-Identifier: Apache-2.0 */
#include "schedule/links.h"

#include "base/fail.h"
#include "base/sized.h"
#include "schedule/build.h"

#include <math.h>
#include <stdlib.h>

/* ---- the costs as given ---------------------------------------------------------------------- */

static int check_cost(const char *name, const char *unit, double value)
{
    if (!(value >= 0 && value <= 1e15))
        return dp_fail(DP_EINVAL, "cost %s: %g, expected 0 to 1e15 %s", name, value, unit);
    return 0;
}

static int check_scales(const char *name, const double *scales, int count)
{
    for (int i = 0; scales && i < count; i++)
        if (!(scales[i] >= 0 && scales[i] <= 1e9))
            return dp_fail(DP_EINVAL, "cost %s[%d]: %g, expected 0 to 1e9", name, i, scales[i]);
    return 0;
}

static int check_costs(const struct dp_schedule *s, const struct dp_cost *cost)
{
    const struct {
        const char *name, *unit;
        double value;
    } fields[] = {
        {"f", "ns", cost->f_ns}, {"i", "ns", cost->i_ns}, {"w", "ns", cost->w_ns},
        {"b", "ns", cost->b_ns}, {"fb", "ns", cost->fb_ns}, {"reduce", "ns", cost->reduce_ns},
        {"recompute", "ns", cost->recompute_ns}, {"evict", "ns", cost->evict_ns},
        {"fetch", "ns", cost->fetch_ns}, {"latency", "ns", cost->link_latency_ns},
        {"bandwidth", "bytes per ns", cost->link_bytes_per_ns},
        {"bytes", "bytes", cost->message_bytes}, {"skip bytes", "bytes", cost->skip_bytes},
    };
    int err = 0;

    DP_RESERVED(cost, "cost");
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]) && !err; i++)
        err = check_cost(fields[i].name, fields[i].unit, fields[i].value);
    if (!err)
        err = check_scales("stage_scale", cost->stage_scale, s->stages);
    if (!err)
        err = check_scales("rank_scale", cost->rank_scale, s->ranks);
    return err;
}

/* Costs of ops one by one: a pair's is at its F. */
static int check_listed(struct dp_durations *d, const struct dp_schedule *s)
{
    for (size_t i = 0; i < s->first[s->ranks]; i += 1 + (s->ops[i].flags & DP_OP_OVERLAP)) {
        if (!dp_op_is_compute((enum dp_op_kind)s->ops[i].kind) && s->ops[i].kind != DP_OP_REDUCE)
            continue;
        if (d->op_ns[i] < 0)
            return dp_fail(DP_EINVAL, "cost of op %zu: %lld, expected 0 or more ns", i,
                           (long long)d->op_ns[i]);
        d->longest_ns = fmax(d->longest_ns, (double)d->op_ns[i]);
    }
    return 0;
}

/* ---- the tables ------------------------------------------------------------------------------ */

static double scale_of(const struct dp_schedule *s, const struct dp_cost *cost, int rank, int slot)
{
    double scale = cost->rank_scale ? cost->rank_scale[rank] : 1;

    if (cost->stage_scale)
        scale *= cost->stage_scale[dp_schedule_slot(s, rank, slot)->stage];
    return scale;
}

static double b_ns(const struct dp_cost *cost)
{
    return cost->b_ns > 0 ? cost->b_ns : cost->i_ns + cost->w_ns;
}

/* What a pair of stages of different scale costs: fb's saving or loss against f + b is the same
 * share of both. */
static double pair_ns(const struct dp_cost *cost, double f_scale, double b_scale)
{
    double f = cost->f_ns, b = b_ns(cost), apart = f * f_scale + b * b_scale;

    if (cost->fb_ns <= 0)
        return apart;
    return f + b > 0 ? cost->fb_ns * apart / (f + b) : cost->fb_ns * (f_scale + b_scale) / 2;
}

static int64_t rounded(struct dp_durations *d, double ns)
{
    d->longest_ns = fmax(d->longest_ns, ns);
    return ns < 0x1p62 ? llround(ns) : 0; /* the simulator refuses longer ones */
}

static void fill(struct dp_durations *d, const struct dp_schedule *s, const struct dp_cost *cost,
                 int rank)
{
    const double again = cost->recompute_ns > 0 ? cost->recompute_ns : cost->f_ns;
    const double base[5] = {cost->f_ns, b_ns(cost), cost->i_ns, cost->w_ns, again};
    int slots = dp_schedule_slot_count(s, rank);

    for (int a = 0; a < slots; a++) {
        double scale = scale_of(s, cost, rank, a);
        int at = rank * d->slots + a;
        for (int k = 0; k < 5; k++)
            d->single_ns[5 * at + k] = rounded(d, base[k] * scale);
        for (int b = 0; b < slots; b++)
            d->pair_ns[at * d->slots + b] =
                rounded(d, pair_ns(cost, scale, scale_of(s, cost, rank, b)));
    }
}

int dp_durations_init(struct dp_durations *d, const struct dp_schedule *s,
                      const struct dp_cost *cost)
{
    size_t slots = (size_t)s->max_slots, all = (size_t)s->ranks * slots;
    int err = check_costs(s, cost);

    if (err)
        return err;
    *d = (struct dp_durations){
        .slots = s->max_slots,
        .single_ns = malloc(all * 5 * sizeof(int64_t) + 1),
        .pair_ns = malloc(all * slots * sizeof(int64_t) + 1),
        .reduce_ns = llround(cost->reduce_ns),
        .op_ns = cost->op_ns,
        .longest_ns = cost->op_ns ? 0 : cost->reduce_ns,
    };
    if (!d->single_ns || !d->pair_ns) {
        dp_durations_fini(d);
        return dp_fail(DP_ENOMEM, "no memory for the costs of %d ranks", s->ranks);
    }
    if (cost->op_ns)
        return check_listed(d, s);
    for (int rank = 0; rank < s->ranks; rank++)
        fill(d, s, cost, rank);
    return 0;
}

void dp_durations_fini(struct dp_durations *d)
{
    free(d->single_ns);
    free(d->pair_ns);
    *d = (struct dp_durations){0};
}
