/* SPDX-License-Identifier: Apache-2.0
 *
 * partition_exact.c - layers cut into stages so that the rank with the most work has as little as can
 * be. A rank holds one stage, or a block from each of two rows of layers:
 *
 *      mirrored       front row  0 1 2 ->     back row  n-1 n-2 ->    they meet anywhere
 *      interleaved    front row  0 .. m-1     back row  m .. n-1      every m is tried
 *
 * least[k][i][j]: the smallest possible largest sum of the first k ranks, if they hold the first i
 * layers of the front row and the first j of the back row. Every stage has a layer.
 */
#include <dualpipe/partition.h>

#include "base/fail.h"

#include <math.h>
#include <stdlib.h>

struct cutter {
    int32_t count, parts; /* layers, ranks */
    enum dp_pairing pairing;
    int32_t front_count;  /* interleaved: m */
    double *sums;         /* [count + 1] of the first layers */
    double *least;        /* [parts + 1][count + 1][width] */
    int32_t width;        /* count + 1; 1 without a back row */
};

static double *place(const struct cutter *c, int32_t k, int32_t i, int32_t j)
{
    return &c->least[((size_t)k * (size_t)(c->count + 1) + (size_t)i) * (size_t)c->width +
                     (size_t)j];
}

static double front(const struct cutter *c, int32_t from, int32_t end)
{
    return c->sums[end] - c->sums[from];
}

static double back(const struct cutter *c, int32_t from, int32_t end)
{
    const int32_t m = c->front_count, n = c->count;

    return c->pairing == DP_PAIRING_MIRRORED ? c->sums[n - from] - c->sums[n - end]
                                             : c->sums[m + end] - c->sums[m + from];
}

/* The best way to (k, i, j); where it comes from, if that is asked for. Blocks are tried from the
 * shortest on, until they alone are no better than what has been found. */
static double best(const struct cutter *c, int32_t k, int32_t i, int32_t j, int32_t *from_i,
                   int32_t *from_j)
{
    double found = INFINITY;

    for (int32_t a = i - 1; a >= k - 1 && front(c, a, i) < found; a--)
        for (int32_t b = c->width > 1 ? j - 1 : 0; b >= (c->width > 1 ? k - 1 : 0); b--) {
            const double own = front(c, a, i) + (c->width > 1 ? back(c, b, j) : 0);
            const double before = *place(c, k - 1, a, b), most = own > before ? own : before;
            if (own >= found)
                break;
            if (most >= found)
                continue;
            found = most;
            *from_i = a;
            *from_j = b;
        }
    return found;
}

/* The layers that each row may have. */
static int32_t front_end(const struct cutter *c)
{
    return c->pairing == DP_PAIRING_INTERLEAVED ? c->front_count : c->count;
}

static int32_t back_end(const struct cutter *c, int32_t i)
{
    return c->width == 1                              ? 0
           : c->pairing == DP_PAIRING_MIRRORED ? c->count - i
                                               : c->count - c->front_count;
}

static void fill(struct cutter *c)
{
    const int32_t least_j = c->width > 1;
    int32_t unused;

    for (size_t at = 0; at < (size_t)(c->count + 1) * (size_t)c->width; at++)
        c->least[at] = INFINITY;
    *place(c, 0, 0, 0) = 0;
    for (int32_t k = 1; k <= c->parts; k++)
        for (int32_t i = 0; i <= c->count; i++)
            for (int32_t j = 0; j < c->width; j++)
                *place(c, k, i, j) = i < k || j < k * least_j || i > front_end(c) ||
                                             j > back_end(c, i)
                                         ? INFINITY
                                         : best(c, k, i, j, &unused, &unused);
}

/* The end with the smallest sum; *at: what the front row has there. */
static double find_end(const struct cutter *c, int32_t *at)
{
    double found = INFINITY;

    for (int32_t i = 0; i <= c->count; i++) {
        const int32_t j = c->width == 1 ? 0 : c->count - i;
        const bool ends = c->width == 1                                ? i == c->count
                          : c->pairing == DP_PAIRING_INTERLEAVED ? i == c->front_count
                                                                 : true;
        if (!ends || *place(c, c->parts, i, j) >= found)
            continue;
        found = *place(c, c->parts, i, j);
        *at = i;
    }
    return found;
}

static void trace_back(const struct cutter *c, int32_t i, int32_t *balance)
{
    const int32_t stages = c->width > 1 ? 2 * c->parts : c->parts;
    int32_t j = c->width > 1 ? c->count - i : 0;

    for (int32_t k = c->parts; k > 0; k--) {
        int32_t a = 0, b = 0;
        best(c, k, i, j, &a, &b);
        balance[k - 1] = i - a;
        if (c->width > 1)
            balance[c->pairing == DP_PAIRING_MIRRORED ? stages - k : c->parts + k - 1] = j - b;
        i = a;
        j = b;
    }
}

static double cut(struct cutter *c, double found, int32_t *balance)
{
    int32_t end = 0;

    fill(c);
    const double largest = find_end(c, &end);
    if (largest >= found)
        return found;
    trace_back(c, end, balance);
    return largest;
}

static double cut_all(struct cutter *c, int32_t *balance)
{
    double found = INFINITY;

    if (c->pairing != DP_PAIRING_INTERLEAVED)
        return cut(c, found, balance);
    for (c->front_count = c->parts; c->front_count <= c->count - c->parts; c->front_count++)
        found = cut(c, found, balance);
    return found;
}

static int check(const double *costs, int32_t count, int32_t stages, enum dp_pairing pairing)
{
    if (stages < 1 || count < stages)
        return dp_fail(DP_EINVAL, "exact partition: %d layers in %d stages, expected at least 1 stage "
                       "and a layer for each", count, stages);
    if (pairing && (stages % 2 || count > DP_PARTITION_PAIRED_MAX))
        return dp_fail(DP_EINVAL, "exact partition: %d layers in %d stages, two a rank, expected an "
                       "even number of stages and at most %d layers", count, stages,
                       DP_PARTITION_PAIRED_MAX);
    for (int32_t i = 0; i < count; i++)
        if (!(costs[i] >= 0 && costs[i] < 1e300))
            return dp_fail(DP_EINVAL, "costs[%d]: %g, expected a number that is not negative", i,
                           costs[i]);
    return 0;
}

int dp_partition_exact(const double *costs, int32_t count, int32_t stages, enum dp_pairing pairing,
                       int32_t *balance, double *largest)
{
    int err = check(costs, count, stages, pairing);

    if (err)
        return err;
    struct cutter c = {.count = count, .parts = pairing ? stages / 2 : stages, .pairing = pairing,
                       .width = pairing ? count + 1 : 1};
    c.sums = malloc(((size_t)count + 1) * sizeof(double));
    c.least = malloc((size_t)(c.parts + 1) * (size_t)(count + 1) * (size_t)c.width *
                     sizeof(double));
    if (c.sums && c.least) {
        c.sums[0] = 0;
        for (int32_t i = 0; i < count; i++)
            c.sums[i + 1] = c.sums[i] + costs[i];
        *largest = cut_all(&c, balance);
    } else {
        err = dp_fail(DP_ENOMEM, "no memory to cut %d layers", count);
    }
    free(c.sums);
    free(c.least);
    return err;
}
