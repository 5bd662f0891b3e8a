/* SPDX-License-Identifier: Apache-2.0 */
#include "schedule/durations.h"

#include "base/fail.h"

#include <math.h>
#include <stdlib.h>

/* ---- the costs as given ---------------------------------------------------------------------- */

static int check_cost(const char *name, double value)
{
    if (!(value >= 0 && value < 1e15))
        return dp_fail(DP_EINVAL, "cost %s: %g, expected 0 to 1e15", name, value);
    return 0;
}

static int check_scales(const char *name, const double *scales, int count)
{
    for (int i = 0; scales && i < count; i++)
        if (!(scales[i] >= 0 && scales[i] < 1e9))
            return dp_fail(DP_EINVAL, "cost %s[%d]: %g, expected 0 to 1e9", name, i, scales[i]);
    return 0;
}

static int check_costs(const struct dp_schedule *s, const struct dp_cost *cost)
{
    const struct {
        const char *name;
        double value;
    } fields[] = {
        {"f", cost->f_ns}, {"i", cost->i_ns}, {"w", cost->w_ns}, {"b", cost->b_ns},
        {"fb", cost->fb_ns}, {"reduce", cost->reduce_ns}, {"recompute", cost->recompute_ns},
        {"evict", cost->evict_ns}, {"fetch", cost->fetch_ns}, {"latency", cost->link_latency_ns},
        {"bandwidth", cost->link_bytes_per_ns}, {"bytes", cost->message_bytes},
        {"skip bytes", cost->skip_bytes},
    };
    int err = 0;

    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]) && !err; i++)
        err = check_cost(fields[i].name, fields[i].value);
    if (!err)
        err = check_scales("stage_scale", cost->stage_scale, s->stages);
    if (!err)
        err = check_scales("rank_scale", cost->rank_scale, s->ranks);
    return err;
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
            d->single_ns[5 * at + k] = llround(base[k] * scale);
        for (int b = 0; b < slots; b++)
            d->pair_ns[at * d->slots + b] =
                llround(pair_ns(cost, scale, scale_of(s, cost, rank, b)));
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
    };
    if (!d->single_ns || !d->pair_ns) {
        dp_durations_fini(d);
        return dp_fail(DP_ENOMEM, "no memory for the costs of %d ranks", s->ranks);
    }
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
