/* SPDX-License-Identifier: Apache-2.0
 *
 * simulate.c - a training run on paper: when each worker ends each step, and where the values go.
 *
 * Time. T_i(t), the end of worker i's step t, with X_i(t) its computing time and J the others of its
 * group or the sources of its links:
 *
 *      overlapped   T_i(t) = max(T_i(t - 1) + X_i(t), max over J of T_j(t - 1) + cost)
 *      in turn      T_i(t) = max over J and i of (T_j(t - 1) + X_j(t)) + cost
 *      all-reduce   the same, J being all
 *
 *      stale        the first, but a worker that would wait adds nothing and leaves round t out, with
 *                   all neighbors, until its exchange of an earlier round p is there, or t - p is
 *                   more than the staleness
 *
 * Cost of a swap: latency + bytes / rate; of a sum over k: that of halving and doubling,
 * 2 ceil(log2 k) latency + 2 (k - 1) / k bytes / rate; of links: latency + as many times bytes / rate
 * as there are links to the worker.
 *
 * Values. x_i(t) = sum_j W_ij x_j(t - 1) - rate g_i(x_i(t - 1)).
 */
#include "base/fail.h"
#include "base/sized.h"
#include "mixing/graph.h"
#include "mixing/round.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    QUANTILES = 1024, /* of a step's time */
    TAIL = 8,
    LANES = 4 /* values are padded to a multiple */
};

struct simulation {
    const struct dp_graph *g;
    struct dp_mixing_scenario s;
    int32_t n, d, alive;
    double sigma_shift, quantiles[QUANTILES];
    uint64_t time_key;         /* of this step's computing times */
    bool *dead;                /* [n] */
    double *ends, *next;       /* [n] T of the step before, and of this one */
    double *x, *mixed;         /* [n * d] */
    double *mass, *mixed_mass; /* [n] push-sum */
    double *kept;              /* [n] and what of its own a worker does not give to the dead */
    double *curve;             /* [d] curvature */
    double *target;            /* [n * d] minima */
    double *before, *grads;    /* [d] sums, to watch the mean */
    bool watch;
    double waited, computed;
    /* With staleness, of each worker: the round of its exchange under way, when that is over, and
     * what is then added. */
    int64_t *round, passed; /* [n] -1: none */
    double *due, *late;     /* [n], [n * d] */
    struct dp_neighbor *neighbors;
};

/* ---- random numbers: a hash of what they are for --------------------------------------------- */

/* What a number is for. */
enum { OF_TIME, OF_TARGET = 2 };

static uint64_t scramble(uint64_t z) /* splitmix64, Steele et al., 2014 */
{
    z += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* Inside (0, 1). */
static double inside(uint64_t hash)
{
    return ((double)(int64_t)(hash >> 12) + 0.5) * 0x1p-52;
}

static double uniform(uint64_t seed, uint64_t what, uint64_t index)
{
    return inside(scramble(scramble(seed ^ what << 48) + index));
}

static double tail(double q)
{
    static const double c[] = {-7.784894002430293e-03, -3.223964580411365e-01,
                               -2.400758277161838e+00, -2.549732539343734e+00,
                               4.374664141464968e+00,  2.938163982698783e+00};
    static const double e[] = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00,
                               3.754408661907416e+00};

    return (((((c[0] * q + c[1]) * q + c[2]) * q + c[3]) * q + c[4]) * q + c[5]) /
           ((((e[0] * q + e[1]) * q + e[2]) * q + e[3]) * q + 1);
}

/* The inverse of the normal distribution: Acklam's approximation, relative error 1.2e-9. */
static double inverse_normal(double p)
{
    static const double a[] = {-3.969683028665376e+01, 2.209460984245205e+02,
                               -2.759285104469687e+02, 1.383577518672690e+02,
                               -3.066479806614716e+01, 2.506628277459239e+00};
    static const double b[] = {-5.447609879822406e+01, 1.615858368580409e+02,
                               -1.556989798598866e+02, 6.680131188771972e+01,
                               -1.328068155288572e+01};

    if (p < 0.02425)
        return tail(sqrt(-2 * log(p)));
    if (p > 1 - 0.02425)
        return -tail(sqrt(-2 * log(1 - p)));
    const double q = p - 0.5, r = q * q;
    return (((((a[0] * r + a[1]) * r + a[2]) * r + a[3]) * r + a[4]) * r + a[5]) * q /
           (((((b[0] * r + b[1]) * r + b[2]) * r + b[3]) * r + b[4]) * r + 1);
}

/* ---- time ------------------------------------------------------------------------------------ */

/* Of a step's computing time. */
static double time_quantile(const struct simulation *v, double p)
{
    return v->s.compute_ns * exp(v->s.sigma * inverse_normal(p) - v->sigma_shift);
}

/* That of worker i in this step. Between the tails by the table: it is off by less than 1e-3 of
 * sigma. */
static double compute_time(const struct simulation *v, int32_t i)
{
    const double p = inside(scramble(v->time_key + (uint64_t)i)), at = p * QUANTILES;
    const int32_t k = (int32_t)at;

    if (k < TAIL || k >= QUANTILES - TAIL)
        return time_quantile(v, p);
    return v->quantiles[k] + (at - k) * (v->quantiles[k + 1] - v->quantiles[k]);
}

static double transfer_ns(const struct simulation *v, double bytes)
{
    return v->s.bytes_per_ns > 0 ? bytes / v->s.bytes_per_ns : 0;
}

static double group_cost(const struct simulation *v, int32_t count)
{
    int32_t steps = 0;

    if (count < 2)
        return 0;
    if (count == 2)
        return v->s.latency_ns + transfer_ns(v, v->s.message_bytes);
    for (int32_t reached = 1; reached < count; reached *= 2)
        steps += 2;
    return steps * v->s.latency_ns + 2 * (count - 1) * transfer_ns(v, v->s.message_bytes / count);
}

/* ---- what workers learn ---------------------------------------------------------------------- */

/* out -= rate * gradient of worker i at x, which is its value divided by its mass. */
static void descend(struct simulation *v, int32_t i, const double *x, double *out)
{
    const double rate = v->s.rate;
    const double *target = v->target + (size_t)i * (size_t)v->d;
    for (int32_t k = 0; k < v->d; k++)
        out[k] -= rate * v->curve[k] * (x[k] - target[k]);
    for (int32_t k = 0; v->watch && k < v->d; k++)
        v->grads[k] += v->curve[k] * (x[k] - target[k]);
}

/* Loss of x for one worker's data. */
static double loss_of(const struct simulation *v, int32_t i, const double *x)
{
    double sum = 0;

    for (int32_t k = 0; k < v->d; k++) {
        const double away = x[k] - v->target[(size_t)i * (size_t)v->d + (size_t)k];
        sum += 0.5 * v->curve[k] * away * away;
    }
    return sum;
}

static double draw(const struct simulation *v, uint64_t index)
{
    return inverse_normal(uniform(v->s.seed, OF_TARGET, index));
}

static void make_problem(struct simulation *v)
{
    const int32_t d = v->s.dimensions;

    for (int32_t k = 0; k < d; k++)
        v->curve[k] = 0.25 + 0.75 * (k + 1) / d;
    for (int32_t i = 0; i < v->n; i++)
        for (int32_t k = 0; k < d; k++)
            v->target[(size_t)i * (size_t)v->d + (size_t)k] =
                1 + draw(v, (uint64_t)i * (uint64_t)d + (uint64_t)k);
}

/* ---- a round ----------------------------------------------------------------------------------- */

/* The worker's step ends: at its own time, or when what it waits for is there. */
static void end_step(struct simulation *v, int32_t i, double computed, double arrival)
{
    const double own = v->ends[i] + computed;

    v->next[i] = own > arrival ? own : arrival;
    v->waited += v->next[i] - own;
    v->computed += computed;
}

/* Members that live. */
static int32_t find_living(const struct simulation *v, const struct dp_mix_group *group,
                           int32_t *living)
{
    const int32_t *members = v->g->members + group->first;
    int32_t count = 0;

    for (int32_t k = 0; k < group->count; k++)
        if (!v->dead[members[k]])
            living[count++] = members[k];
    return count;
}

static double arrival_of(const struct simulation *v, const int32_t *living, int32_t count,
                         const double *computed)
{
    double last = 0;

    for (int32_t k = 0; k < count; k++)
        last = fmax(last, v->ends[living[k]] + (v->s.in_turn ? computed[k] : 0));
    return count > 1 ? last + group_cost(v, count) : 0;
}

static void mix_group(struct simulation *v, const struct dp_mix_group *group, const int32_t *living,
                      int32_t count)
{
    const double a = v->s.factor;
    const bool mean = group->self == 1.0 / group->count;
    const double share = count < 2 ? 0 : mean ? 1.0 / count : (1 - group->self) / (group->count - 1);
    const double self = 1 - share * (count - 1);
    double sum[64];

    for (int32_t first = 0; first < v->d; first += 64) {
        const int32_t width = v->d - first < 64 ? v->d - first : 64;
        memset(sum, 0, sizeof(sum));
        for (int32_t k = 0; k < count; k++)
            for (int32_t c = 0; c < width; c++)
                sum[c] += v->x[(size_t)living[k] * (size_t)v->d + (size_t)(first + c)];
        for (int32_t k = 0; k < count; k++) {
            const size_t at = (size_t)living[k] * (size_t)v->d + (size_t)first;
            for (int32_t c = 0; c < width; c++)
                v->mixed[at + (size_t)c] =
                    (1 - a + a * (self - share)) * v->x[at + (size_t)c] + a * share * sum[c];
        }
    }
    for (int32_t k = 0; k < count; k++)
        descend(v, living[k], v->x + (size_t)living[k] * (size_t)v->d,
                v->mixed + (size_t)living[k] * (size_t)v->d);
}

/* A whole pair, which is what most runs are made of: all in one sweep. */
static void mix_pair(struct simulation *v, const struct dp_mix_group *group, int32_t i, int32_t j)
{
    const double keep = 1 - v->s.factor * (1 - group->self), take = v->s.factor * (1 - group->self);
    const double rate = v->s.rate;
    const size_t at = (size_t)i * (size_t)v->d, beside = (size_t)j * (size_t)v->d;
    const double *x = v->x + at, *y = v->x + beside, *curve = v->curve;
    const double *x_target = v->target + at, *y_target = v->target + beside;
    double *restrict x_out = v->mixed + at, *restrict y_out = v->mixed + beside;

    for (int32_t first = 0; first < v->d; first += LANES)
        for (int32_t c = first; c < first + LANES; c++) {
            const double step = rate * curve[c];
            x_out[c] = keep * x[c] + take * y[c] - step * (x[c] - x_target[c]);
            y_out[c] = keep * y[c] + take * x[c] - step * (y[c] - y_target[c]);
        }
}

static void do_groups(struct simulation *v, const struct dp_mix_round *r, int32_t *living,
                      double *computed)
{
    for (size_t i = r->first_group; i < r->first_group + r->group_count; i++) {
        const int32_t count = find_living(v, &v->g->groups[i], living);
        for (int32_t k = 0; k < count; k++)
            computed[k] = compute_time(v, living[k]);
        const double arrival = arrival_of(v, living, count, computed);
        for (int32_t k = 0; k < count; k++)
            end_step(v, living[k], computed[k], arrival);
        if (count == 2 && v->g->groups[i].count == 2 && !v->watch)
            mix_pair(v, &v->g->groups[i], living[0], living[1]);
        else
            mix_group(v, &v->g->groups[i], living, count);
    }
}

static void do_links_of(struct simulation *v, int64_t t, int32_t i, const double *computed)
{
    const double a = v->s.factor;
    double *out = v->mixed + (size_t)i * (size_t)v->d, self = 0, last = 0, mass = 0;
    size_t count, others = 0;
    const struct dp_mix_link *links = dp_graph_links(v->g, t, i, &count);

    memset(out, 0, (size_t)v->d * sizeof(*out));
    for (size_t k = 0; k < count; k++) {
        const struct dp_mix_link *l = &links[k];
        const double *x = v->x + (size_t)l->from * (size_t)v->d;
        if (l->from == i || v->dead[l->from]) {
            self += l->from == i || !v->g->push_sum ? l->weight : 0;
            continue;
        }
        others++;
        mass += a * l->weight * v->mass[l->from];
        last = fmax(last, v->ends[l->from] + (v->s.in_turn ? computed[l->from] : 0));
        for (int32_t c = 0; c < v->d; c++)
            out[c] += a * l->weight * x[c];
    }
    const double *own = v->x + (size_t)i * (size_t)v->d;
    double z[64];
    self += v->g->push_sum ? v->kept[i] : 0;
    for (int32_t c = 0; c < v->d; c++)
        out[c] += (1 - a + a * self) * own[c];
    v->mixed_mass[i] = mass + (1 - a + a * self) * v->mass[i];
    for (int32_t c = 0; c < v->d; c++)
        z[c] = own[c] / v->mass[i];
    descend(v, i, z, out);
    const double cost = v->s.latency_ns + transfer_ns(v, v->s.message_bytes * (double)others);
    end_step(v, i, computed[i], others ? last + cost : 0);
}

/* With push-sum a worker keeps what it would give to the dead. */
static void find_kept(struct simulation *v, int64_t t)
{
    const struct dp_mix_round *r = &v->g->rounds[t % v->g->period];

    memset(v->kept, 0, (size_t)v->n * sizeof(*v->kept));
    for (size_t i = r->first_link; i < r->first_link + r->link_count; i++)
        if (v->dead[v->g->links[i].to])
            v->kept[v->g->links[i].from] += v->g->links[i].weight;
}

static void do_links(struct simulation *v, int64_t t, double *computed)
{
    double *swapped;

    if (v->alive < v->n)
        find_kept(v, t);
    for (int32_t i = 0; i < v->n; i++)
        computed[i] = v->dead[i] ? 0 : compute_time(v, i);
    for (int32_t i = 0; i < v->n; i++)
        if (!v->dead[i])
            do_links_of(v, t, i, computed);
    swapped = v->mass;
    v->mass = v->mixed_mass;
    v->mixed_mass = swapped;
}

/* All copies are one: the mean gradient of all. */
static void do_all_reduce(struct simulation *v, int32_t *living, double *computed)
{
    double *sum = v->mixed, last = 0;
    int32_t count = 0;

    for (int32_t i = 0; i < v->n; i++)
        if (!v->dead[i])
            living[count++] = i;
    for (int32_t k = 0; k < count; k++) {
        computed[k] = compute_time(v, living[k]);
        last = fmax(last, v->ends[living[k]] + computed[k]);
    }
    last += group_cost(v, count);
    double delta[64] = {0};
    for (int32_t k = 0; k < count; k++) {
        end_step(v, living[k], computed[k], last);
        descend(v, living[k], v->x + (size_t)living[k] * (size_t)v->d, delta);
    }
    for (int32_t k = 0; k < count; k++)
        for (int32_t c = 0; c < v->d; c++)
            sum[(size_t)living[k] * (size_t)v->d + (size_t)c] =
                v->x[(size_t)living[k] * (size_t)v->d + (size_t)c] + delta[c] / count;
}

/* ---- staleness --------------------------------------------------------------------------------- */

/* The end of worker i's step t: it adds what came, if that is there or may not be later. */
static void end_stale(struct simulation *v, int64_t t, int32_t i)
{
    const double computed = compute_time(v, i), own = v->ends[i] + computed;
    const bool pending = v->round[i] >= 0, must = t - v->round[i] > v->s.staleness;
    const double *x = v->x + (size_t)i * (size_t)v->d;
    double *out = v->mixed + (size_t)i * (size_t)v->d, *late = v->late + (size_t)i * (size_t)v->d;
    const bool takes = pending && (must || v->due[i] <= own);

    end_step(v, i, computed, takes ? v->due[i] : 0);
    for (int32_t c = 0; c < v->d; c++)
        out[c] = x[c] + (takes ? v->s.factor * late[c] : 0);
    for (int32_t c = 0; takes && c < v->d; c++)
        late[c] = 0;
    descend(v, i, x, out);
    if (takes)
        v->round[i] = -1;
    v->passed += v->round[i] >= 0;
}

/* Both of a pair take part in round t, which the others of their steps learn when both are there. A dead
 * neighbor's share is the worker's own. */
static void start_stale(struct simulation *v, int64_t t, int32_t i)
{
    const int32_t count = dp_neighbors_from(v->g, t, i, v->neighbors);
    double *late = v->late + (size_t)i * (size_t)v->d;
    const double *own = v->mixed + (size_t)i * (size_t)v->d;
    double last = v->next[i], others = 0;

    for (int32_t k = 0; k < count; k++) {
        const int32_t j = v->neighbors[k].worker;
        const double *x = v->mixed + (size_t)j * (size_t)v->d;
        if (v->dead[j])
            continue;
        last = fmax(last, v->next[j]);
        if (v->round[j] >= 0 && v->round[j] < t) /* it leaves the round out */
            continue;
        others++;
        for (int32_t c = 0; c < v->d; c++)
            late[c] += v->neighbors[k].weight * (x[c] - own[c]);
    }
    v->due[i] = last + v->s.latency_ns + transfer_ns(v, v->s.message_bytes * others);
}

static void do_stale(struct simulation *v, int64_t t)
{
    for (int32_t i = 0; i < v->n; i++)
        if (!v->dead[i])
            end_stale(v, t, i);
    /* -1 is a worker that begins round t; the others are in an earlier one. */
    for (int32_t i = 0; i < v->n; i++)
        if (!v->dead[i] && v->round[i] < 0)
            v->round[i] = t;
    for (int32_t i = 0; i < v->n; i++)
        if (!v->dead[i] && v->round[i] == t)
            start_stale(v, t, i);
}

/* ---- the run ----------------------------------------------------------------------------------- */

/* With what is still to be added. */
static void sum_values(const struct simulation *v, double *sum)
{
    memset(sum, 0, (size_t)v->d * sizeof(*sum));
    for (int32_t i = 0; i < v->n; i++)
        for (int32_t c = 0; !v->dead[i] && c < v->d; c++)
            sum[c] += v->x[(size_t)i * (size_t)v->d + (size_t)c];
    for (int32_t i = 0; v->late && i < v->n; i++)
        for (int32_t c = 0; !v->dead[i] && c < v->d; c++)
            sum[c] += v->s.factor * v->late[(size_t)i * (size_t)v->d + (size_t)c];
}

static void swap_values(struct simulation *v)
{
    double *x = v->x, *ends = v->ends;

    v->x = v->mixed;
    v->mixed = x;
    v->ends = v->next;
    v->next = ends;
}

/* Largest change of the mean that is none of the gradients'. */
static double change_of_mean(struct simulation *v)
{
    double after[64], worst = 0;

    sum_values(v, after);
    for (int32_t c = 0; c < v->d; c++) {
        const double right = v->before[c] - v->s.rate * v->grads[c];
        worst = fmax(worst, fabs(after[c] - right) / fmax(v->alive, fabs(right)));
    }
    return worst;
}

static void step(struct simulation *v, int64_t t, int32_t *living, double *computed)
{
    const struct dp_mix_round *r = &v->g->rounds[t % v->g->period];

    v->time_key = scramble(scramble(v->s.seed ^ (uint64_t)OF_TIME << 48) + (uint64_t)t);

    if (v->s.all_reduce)
        do_all_reduce(v, living, computed);
    else if (v->s.staleness)
        do_stale(v, t);
    else if (r->group_count)
        do_groups(v, r, living, computed);
    else
        do_links(v, t, computed);
    swap_values(v);
}

/* Workers that are due to die by the end of step t, chosen by the seed; one always lives. */
static void kill_workers(struct simulation *v, int64_t t)
{
    const int64_t due = v->s.deaths * (t + 1) / v->s.steps;

    while (v->n - v->alive < due && v->alive > 1) {
        uint64_t at = scramble(v->s.seed ^ (uint64_t)v->alive << 32) % (uint64_t)v->n;
        while (v->dead[at])
            at = (at + 1) % (uint64_t)v->n;
        v->dead[at] = true;
        v->alive--;
    }
}

static struct dp_mixing_sample take_sample(struct simulation *v, int64_t t)
{
    struct dp_mixing_sample out = {.step = t, .alive = v->alive};
    double mean[64], mass = 0;

    sum_values(v, mean);
    for (int32_t i = 0; i < v->n; i++)
        mass += v->dead[i] ? 0 : v->mass[i];
    for (int32_t c = 0; c < v->d; c++)
        mean[c] /= mass;
    for (int32_t i = 0; i < v->n; i++) {
        for (int32_t c = 0; !v->dead[i] && c < v->d; c++) {
            const double away = v->x[(size_t)i * (size_t)v->d + (size_t)c] / v->mass[i] - mean[c];
            out.consensus += away * away;
        }
        out.time_ns += v->dead[i] ? 0 : v->ends[i] / v->alive;
        out.loss += loss_of(v, i, mean) / v->n;
    }
    out.consensus = sqrt(out.consensus / v->alive);
    return out;
}

static void run_all(struct simulation *v, int32_t *living, double *computed, struct dp_mixing_run *out)
{
    const int64_t steps = v->s.steps;
    const int32_t wanted = v->s.samples;
    double last = 0;

    out->samples[out->sample_count++] = take_sample(v, 0);
    for (int64_t t = 0; t < steps; t++) {
        v->watch = (t + 1) * wanted / steps != t * wanted / steps;
        if (v->watch) {
            sum_values(v, v->before);
            memset(v->grads, 0, (size_t)v->d * sizeof(*v->grads));
        }
        step(v, t, living, computed);
        out->worker_steps += v->alive;
        if (v->watch && !v->s.all_reduce)
            out->mean_error = fmax(out->mean_error, change_of_mean(v));
        if (v->watch)
            out->samples[out->sample_count++] = take_sample(v, t + 1);
        kill_workers(v, t);
    }
    for (int32_t i = 0; i < v->n; i++)
        last = v->dead[i] ? last : fmax(last, v->ends[i]);
    out->step_ns = last / (double)steps;
    out->ideal_ns = v->s.compute_ns;
    out->waited = v->waited / (v->waited + v->computed);
    out->passed = (double)v->passed / (double)out->worker_steps;
}

/* ---- set-up ------------------------------------------------------------------------------------ */

static int check_scenario(const struct dp_graph *g, const struct dp_mixing_scenario *s)
{
    const double numbers[] = {s->compute_ns,   s->sigma,         s->latency_ns,
                              s->bytes_per_ns, s->message_bytes, s->rate, s->factor};
    static const char *const names[] = {"computing time", "sigma",         "latency",
                                        "bandwidth",      "message size",  "learning rate",
                                        "factor of mixing"};
    int32_t round, i, j;

    DP_RESERVED(s, "scenario");
    for (size_t k = 0; k < sizeof(numbers) / sizeof(numbers[0]); k++)
        if (!(numbers[k] >= 0) || isinf(numbers[k]))
            return dp_fail(DP_EINVAL, "%s: %g, expected a number from 0 on", names[k], numbers[k]);
    if (s->factor > 1)
        return dp_fail(DP_EINVAL, "factor of mixing: %g, expected at most 1", s->factor);
    if (s->steps < 0 || s->dimensions < 0 || s->dimensions > 64 || s->samples < 0)
        return dp_fail(DP_EINVAL, "steps %lld, dimensions %d, samples %d, expected none below 0 and at "
                       "most 64 dimensions", (long long)s->steps, s->dimensions, s->samples);
    if (s->deaths < 0 || s->deaths >= g->workers)
        return dp_fail(DP_EINVAL, "%d workers die, expected 0 to %d", s->deaths, g->workers - 1);
    if (s->staleness < 0 || (s->staleness && (g->push_sum || s->in_turn)))
        return dp_fail(DP_EINVAL, "staleness: %d rounds%s, expected 0 or more, without either",
                       s->staleness, g->push_sum ? " over push-sum" : s->in_turn ? " in turn" : "");
    if (s->staleness && !dp_graph_is_symmetric(g, &round, &i, &j))
        return dp_fail(DP_EINVAL,
                       "staleness over mixing graph %s, in which workers %d and %d give each other "
                       "different weights in round %d, expected the same", g->name, i, j, round);
    return 0;
}

static void set_defaults(struct dp_mixing_scenario *s)
{
    s->steps = s->steps ? s->steps : 200;
    s->compute_ns = s->compute_ns > 0 ? s->compute_ns : 100e6;
    s->dimensions = s->dimensions ? s->dimensions : 8;
    s->rate = s->rate > 0 ? s->rate : 0.05;
    s->factor = s->factor > 0 ? s->factor : 1;
    s->samples = s->samples ? s->samples : 50;
    s->samples = s->samples > s->steps ? (int32_t)s->steps : s->samples;
}

static void free_all(struct simulation *v)
{
    free(v->dead);
    free(v->ends);
    free(v->next);
    free(v->x);
    free(v->mixed);
    free(v->mass);
    free(v->mixed_mass);
    free(v->kept);
    free(v->curve);
    free(v->target);
    free(v->before);
    free(v->grads);
    free(v->round);
    free(v->due);
    free(v->late);
    free(v->neighbors);
}

static bool allocate_late(struct simulation *v)
{
    const size_t n = (size_t)v->n;
    int32_t most = 0;

    for (int32_t i = 0; i < v->n; i++)
        most = dp_neighbors_max(v->g, i) > most ? dp_neighbors_max(v->g, i) : most;
    v->round = malloc(n * sizeof(*v->round));
    v->due = calloc(n, sizeof(*v->due));
    v->late = calloc(n * (size_t)v->d, sizeof(*v->late));
    v->neighbors = calloc((size_t)most + 1, sizeof(*v->neighbors));
    for (int32_t i = 0; v->round && i < v->n; i++)
        v->round[i] = -1;
    return v->round && v->due && v->late && v->neighbors;
}

static bool allocate(struct simulation *v)
{
    const size_t n = (size_t)v->n, d = (size_t)v->d;

    v->dead = calloc(n, sizeof(*v->dead));
    v->ends = calloc(n, sizeof(*v->ends));
    v->next = calloc(n, sizeof(*v->next));
    v->x = calloc(n * d, sizeof(*v->x));
    v->mixed = calloc(n * d, sizeof(*v->mixed));
    v->mass = calloc(n, sizeof(*v->mass));
    v->mixed_mass = calloc(n, sizeof(*v->mixed_mass));
    v->kept = calloc(n, sizeof(*v->kept));
    v->curve = calloc(d, sizeof(*v->curve));
    v->target = calloc(n * d, sizeof(*v->target));
    v->before = calloc(d, sizeof(*v->before));
    v->grads = calloc(d, sizeof(*v->grads));
    if (v->s.staleness && !v->s.all_reduce && !allocate_late(v))
        return false;
    return v->dead && v->ends && v->next && v->x && v->mixed && v->mass && v->mixed_mass &&
           v->kept && v->curve && v->target && v->before && v->grads;
}

static void set_up(struct simulation *v)
{
    for (int k = TAIL; k < QUANTILES; k++)
        v->quantiles[k] = time_quantile(v, (double)k / QUANTILES);
    for (int32_t i = 0; i < v->n; i++)
        v->mass[i] = 1;
    make_problem(v);
}

int dp_mixing_simulate(const struct dp_graph *g, const struct dp_mixing_scenario *scenario,
                       struct dp_mixing_run *out)
{
    struct simulation v = {.g = g, .s = *scenario, .n = g->workers, .alive = g->workers};
    struct dp_mixing_run run = {0};
    int err = check_scenario(g, scenario);

    if (err)
        return err;
    set_defaults(&v.s);
    v.d = (v.s.dimensions + LANES - 1) / LANES * LANES;
    v.sigma_shift = v.s.sigma * v.s.sigma / 2;
    int32_t *living = calloc((size_t)v.n, sizeof(*living));
    double *computed = calloc((size_t)v.n, sizeof(*computed));
    run.samples = calloc((size_t)v.s.samples + 2, sizeof(*run.samples));
    if (allocate(&v) && living && computed && run.samples) {
        set_up(&v);
        run_all(&v, living, computed, &run);
        *out = run;
    } else {
        err = dp_fail(DP_ENOMEM, "no memory for %d workers", v.n);
        free(run.samples);
    }
    free(living);
    free(computed);
    free_all(&v);
    return err;
}

void dp_mixing_run_fini(struct dp_mixing_run *run)
{
    free(run->samples);
    *run = (struct dp_mixing_run){0};
}
