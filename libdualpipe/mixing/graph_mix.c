/* SPDX-License-Identifier: Apache-2.0
 *
 * graph_mix.c - what a round does to a number a worker, and how fast rounds bring workers together.
 */
#include "base/fail.h"
#include "mixing/graph.h"
#include <dualpipe/random.h>

#include <math.h>
#include <stdlib.h>

static int32_t round_of(const struct dp_graph *g, int64_t t)
{
    return (int32_t)(t % g->period);
}

static int64_t place_of(const struct dp_graph *g, int64_t t, int32_t worker)
{
    return g->place[(size_t)round_of(g, t) * (size_t)g->workers + (size_t)worker];
}

const struct dp_mix_group *dp_graph_group(const struct dp_graph *g, int64_t t, int32_t worker)
{
    int64_t place = place_of(g, t, worker);

    return g->rounds[round_of(g, t)].group_count && place >= 0 ? &g->groups[place] : NULL;
}

const struct dp_mix_link *dp_graph_links(const struct dp_graph *g, int64_t t, int32_t worker,
                                         size_t *count)
{
    const struct dp_mix_round *r = &g->rounds[round_of(g, t)];
    int64_t place = place_of(g, t, worker);

    *count = 0;
    if (r->group_count || place < 0)
        return NULL;
    const struct dp_mix_link *first = &g->links[place], *end = g->links + r->first_link + r->link_count;
    while (first + *count < end && first[*count].to == worker)
        ++*count;
    return first;
}

/* What a member of the group takes of each other member. */
static double share_of(const struct dp_mix_group *group)
{
    return group->count > 1 ? (1 - group->self) / (group->count - 1) : 0;
}

double dp_graph_weight(const struct dp_graph *g, int64_t t, int32_t to, int32_t from)
{
    const struct dp_mix_group *group = dp_graph_group(g, t, to);
    size_t count;

    if (group && group == dp_graph_group(g, t, from))
        return to == from ? group->self : share_of(group);
    const struct dp_mix_link *links = dp_graph_links(g, t, to, &count);
    for (size_t i = 0; i < count; i++)
        if (links[i].from == from)
            return links[i].weight;
    return 0;
}

/* A group's matrix is symmetric: it serves both ways. */
static void mix_groups(const struct dp_graph *g, const struct dp_mix_round *r, const double *x,
                       double *out)
{
    for (size_t i = r->first_group; i < r->first_group + r->group_count; i++) {
        const struct dp_mix_group *group = &g->groups[i];
        const int32_t *members = g->members + group->first;
        double sum = 0, share = share_of(group);
        for (int32_t k = 0; k < group->count; k++)
            sum += x[members[k]];
        for (int32_t k = 0; k < group->count; k++)
            out[members[k]] = (group->self - share) * x[members[k]] + share * sum;
    }
}

static void mix_links(const struct dp_graph *g, const struct dp_mix_round *r, bool back,
                      const double *x, double *out)
{
    for (int32_t w = 0; w < g->workers; w++)
        out[w] = 0;
    for (size_t i = r->first_link; i < r->first_link + r->link_count; i++) {
        const struct dp_mix_link *l = &g->links[i];
        if (back)
            out[l->from] += l->weight * x[l->to];
        else
            out[l->to] += l->weight * x[l->from];
    }
}

static void mix(const struct dp_graph *g, int64_t t, bool back, const double *x, double *out)
{
    const struct dp_mix_round *r = &g->rounds[round_of(g, t)];

    if (r->group_count)
        mix_groups(g, r, x, out);
    else
        mix_links(g, r, back, x, out);
}

void dp_graph_mix(const struct dp_graph *g, int64_t t, const double *x, double *out)
{
    mix(g, t, false, x, out);
}

void dp_graph_mix_back(const struct dp_graph *g, int64_t t, const double *x, double *out)
{
    mix(g, t, true, x, out);
}

/* ---- contraction ----------------------------------------------------------------------------- */

enum { SWEEPS_MAX = 20000 };
#define SWEEP_WORK 4e9 /* worker-rounds: some seconds */

static double norm_of(const double *x, int32_t n)
{
    double sum = 0;

    for (int32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

static void remove_mean(double *x, int32_t n)
{
    double sum = 0;

    for (int32_t i = 0; i < n; i++)
        sum += x[i];
    for (int32_t i = 0; i < n; i++)
        x[i] -= sum / n;
}

/* *x becomes A'A x for A = W[last] ... W[first] (I - 11'/n), by way of *y. The norm of A x. */
static double sweep(const struct dp_graph *g, int64_t first, int32_t count, double **x, double **y)
{
    double *swapped, norm;

    remove_mean(*x, g->workers);
    for (int32_t k = 0; k < count; k++, swapped = *x, *x = *y, *y = swapped)
        mix(g, first + k, false, *x, *y);
    if (!g->push_sum)
        remove_mean(*x, g->workers); /* it has none but what rounding put there */
    norm = norm_of(*x, g->workers);
    for (int32_t k = count; k-- > 0; swapped = *x, *x = *y, *y = swapped)
        mix(g, first + k, true, *x, *y);
    remove_mean(*x, g->workers);
    return norm;
}

static void scale_to_one(double *x, int32_t n)
{
    double norm = norm_of(x, n);

    for (int32_t i = 0; i < n && norm > 0; i++)
        x[i] /= norm;
}

static void fill_randomly(double *x, int32_t n)
{
    uint32_t block[4];

    for (int32_t i = 0; i < n; i++) {
        dp_random_block((struct dp_random_key){12345, 0}, (uint64_t)i, block);
        x[i] = (double)block[0] * 0x1p-32 - 0.5;
    }
    remove_mean(x, n);
    scale_to_one(x, n);
}

int dp_graph_contraction(const struct dp_graph *g, int64_t first, int32_t count, double *out)
{
    const double work = 2.0 * g->workers * (count ? count : 1);
    double *memory = malloc(2 * (size_t)g->workers * sizeof(*memory));
    double *x = memory, *y = memory + g->workers, sigma = 0, before = -1;

    if (!memory)
        return dp_fail(DP_ENOMEM, "no memory for %d workers", g->workers);
    fill_randomly(x, g->workers);
    for (int i = 0; i < SWEEPS_MAX && i * work < SWEEP_WORK; i++) {
        sigma = sweep(g, first, count, &x, &y);
        if (sigma < 1e-12 || fabs(sigma - before) < 1e-15)
            break;
        before = sigma;
        scale_to_one(x, g->workers);
    }
    *out = sigma < 1e-12 ? 0 : sigma;
    free(memory);
    return 0;
}
