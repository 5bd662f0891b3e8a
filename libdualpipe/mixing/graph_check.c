/* SPDX-License-Identifier: Apache-2.0
 *
 * graph_check.c - prove that a graph preserves the mean and reaches all workers, or name the rule that
 * it breaks, and where.
 */
#include "base/fail.h"
#include "base/text.h"
#include "mixing/graph.h"
#include "mixing/internal.h"
#include <dualpipe/random.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Weights of files have been rounded: each may be off by half a unit of the 12th digit. */
#define NEAR_ONE 1e-9

const char *dp_graph_rule_name(enum dp_graph_rule rule)
{
    static const char *const names[DP_GRAPH_RULES] = {"none", "shape",  "once",     "weight",
                                                      "row",  "column", "connected"};
    return (unsigned)rule < DP_GRAPH_RULES ? names[rule] : "?";
}

struct checker {
    const struct dp_graph *g;
    struct dp_graph_finding *finding;
    int32_t *seen;        /* [workers] */
    double *rows, *columns; /* [workers] */
};

static int found(struct checker *c, enum dp_graph_rule rule, int32_t round, int32_t worker,
                 const char *fmt, ...) DP_PRINTF(5, 6);

static int found(struct checker *c, enum dp_graph_rule rule, int32_t round, int32_t worker,
                 const char *fmt, ...)
{
    va_list args;

    c->finding->rule = rule;
    c->finding->round = round;
    c->finding->worker = worker;
    va_start(args, fmt);
    dp_vsnprintf(c->finding->text, sizeof(c->finding->text), fmt, args);
    va_end(args);
    return DP_EINVAL;
}

/* ---- groups ---------------------------------------------------------------------------------- */

static int check_group(struct checker *c, int32_t t, const struct dp_mix_group *group)
{
    const int32_t *members = c->g->members + group->first;

    if (!(group->self >= 0 && group->self <= 1))
        return found(c, DP_GRAPH_RULE_WEIGHT, t, members[0],
                     "round %d: the group of worker %d keeps %g of its own, expected 0 to 1", t,
                     members[0], group->self);
    if (group->count == 1 && group->self != 1)
        return found(c, DP_GRAPH_RULE_WEIGHT, t, members[0],
                     "round %d: worker %d is alone and keeps %g, expected 1", t, members[0],
                     group->self);
    for (int32_t i = 0; i < group->count; i++)
        if (c->seen[members[i]]++)
            return found(c, DP_GRAPH_RULE_ONCE, t, members[i],
                         "round %d: worker %d is there twice, expected each worker in one group", t,
                         members[i]);
    return 0;
}

static int check_groups(struct checker *c, int32_t t, const struct dp_mix_round *r)
{
    int err = 0;

    for (size_t i = 0; i < r->group_count && !err; i++)
        err = check_group(c, t, &c->g->groups[r->first_group + i]);
    for (int32_t w = 0; w < c->g->workers && !err; w++)
        if (!c->seen[w])
            err = found(c, DP_GRAPH_RULE_ONCE, t, w,
                        "round %d: worker %d is in no group, expected each worker in one", t, w);
    return err;
}

/* ---- links ----------------------------------------------------------------------------------- */

static int check_link(struct checker *c, int32_t t, const struct dp_mix_link *l, bool first)
{
    if (!(l->weight >= 0 && l->weight <= 1))
        return found(c, DP_GRAPH_RULE_WEIGHT, t, l->to,
                     "round %d: worker %d takes %g of worker %d, expected 0 to 1", t, l->to,
                     l->weight, l->from);
    if (!first && l[-1].to == l->to && l[-1].from == l->from)
        return found(c, DP_GRAPH_RULE_ONCE, t, l->to,
                     "round %d: the link from worker %d to worker %d is there twice", t, l->from,
                     l->to);
    c->rows[l->to] += l->weight;
    c->columns[l->from] += l->weight;
    return 0;
}

static int check_links(struct checker *c, int32_t t, const struct dp_mix_round *r)
{
    int err = 0;

    for (size_t i = 0; i < r->link_count && !err; i++)
        err = check_link(c, t, &c->g->links[r->first_link + i], i == 0);
    for (int32_t w = 0; w < c->g->workers && !err; w++)
        if (fabs(c->columns[w] - 1) > NEAR_ONE)
            err = found(c, DP_GRAPH_RULE_COLUMN, t, w,
                        "round %d: worker %d gives %.12g in all, expected 1: the mean would change", t,
                        w, c->columns[w]);
        else if (!c->g->push_sum && fabs(c->rows[w] - 1) > NEAR_ONE)
            err = found(c, DP_GRAPH_RULE_ROW, t, w,
                        "round %d: worker %d takes %.12g in all, expected 1 (or a push-sum graph)", t,
                        w, c->rows[w]);
    return err;
}

/* ---- connected ------------------------------------------------------------------------------- */

/* Marks what can be reached from worker 0 by repeated sweeps over all rounds, along the arrows or
 * against them. A sweep costs as much as the graph is long; a chain needs a few. */
static void spread_group(const struct dp_graph *g, const struct dp_mix_group *group, int32_t *seen,
                         bool *more)
{
    const int32_t *members = g->members + group->first;
    bool any = false, all = true;

    for (int32_t i = 0; i < group->count; i++) {
        any = any || seen[members[i]];
        all = all && seen[members[i]];
    }
    if (!any || all || (group->self == 1 && group->count > 1))
        return;
    for (int32_t i = 0; i < group->count; i++)
        seen[members[i]] = 1;
    *more = true;
}

static void spread_link(const struct dp_mix_link *l, bool back, int32_t *seen, bool *more)
{
    int32_t from = back ? l->to : l->from, to = back ? l->from : l->to;

    if (l->weight > 0 && seen[from] && !seen[to]) {
        seen[to] = 1;
        *more = true;
    }
}

static void spread(const struct dp_graph *g, bool back, int32_t *seen)
{
    for (bool more = true; more;) {
        more = false;
        for (size_t i = 0; i < g->group_count; i++)
            spread_group(g, &g->groups[i], seen, &more);
        for (size_t i = g->group_count; i-- > 0;)
            spread_group(g, &g->groups[i], seen, &more);
        for (size_t i = 0; i < g->link_count; i++)
            spread_link(&g->links[i], back, seen, &more);
        for (size_t i = g->link_count; i-- > 0;)
            spread_link(&g->links[i], back, seen, &more);
    }
}

static int check_connected(struct checker *c)
{
    for (int back = 0; back < 2; back++) {
        for (int32_t w = 0; w < c->g->workers; w++)
            c->seen[w] = w == 0;
        spread(c->g, back, c->seen);
        for (int32_t w = 0; w < c->g->workers; w++)
            if (!c->seen[w])
                return found(c, DP_GRAPH_RULE_CONNECTED, -1, w,
                             "over the period of %d rounds nothing of worker %d reaches worker %d",
                             c->g->period, back ? w : 0, back ? 0 : w);
    }
    return 0;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int check_shape(struct checker *c)
{
    const struct dp_graph *g = c->g;

    if (g->workers < 1 || g->local < 1 || g->workers % g->local)
        return found(c, DP_GRAPH_RULE_SHAPE, -1, -1, "%d workers, %d of a node, expected at least one "
                     "and a divisor", g->workers, g->local);
    if (g->period < 1)
        return found(c, DP_GRAPH_RULE_SHAPE, -1, -1, "no rounds, expected at least one");
    for (int32_t t = 0; t < g->period; t++)
        if (!g->rounds[t].group_count && !g->rounds[t].link_count)
            return found(c, DP_GRAPH_RULE_ONCE, t, 0,
                         "round %d: worker 0 is in no group, expected each worker in one", t);
    return 0;
}

static int check_round(struct checker *c, int32_t t)
{
    const struct dp_mix_round *r = &c->g->rounds[t];

    for (int32_t w = 0; w < c->g->workers; w++) {
        c->seen[w] = 0;
        c->rows[w] = c->columns[w] = 0;
    }
    return r->group_count ? check_groups(c, t, r) : check_links(c, t, r);
}

static int check_all(struct checker *c)
{
    int err = check_shape(c);

    for (int32_t t = 0; t < c->g->period && !err; t++)
        err = check_round(c, t);
    return err ? err : check_connected(c);
}

int dp_graph_check(const struct dp_graph *g, struct dp_graph_finding *finding)
{
    struct dp_graph_finding unused;
    struct checker c = {.g = g, .finding = finding ? finding : &unused};
    const size_t count = g->workers > 0 ? (size_t)g->workers : 1;
    int err;

    *c.finding = (struct dp_graph_finding){.round = -1, .worker = -1};
    c.seen = malloc(count * sizeof(*c.seen));
    c.rows = malloc(2 * count * sizeof(*c.rows));
    c.columns = c.rows + count;
    if (c.seen && c.rows) {
        err = check_all(&c);
        if (err)
            dp_fail(err, "mixing graph %s: %s", g->name, c.finding->text);
    } else {
        err = dp_fail(DP_ENOMEM, "no memory to check a graph of %d workers", g->workers);
    }
    free(c.seen);
    free(c.rows);
    return err;
}

/* ---- graph mix ------------------------------------------------------------------------------- */

/* What a round does to a number a worker, and how fast rounds bring workers together. */

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

void dp_graph_mix(const struct dp_graph *g, int64_t t, bool back, const double *x, double *out)
{
    const struct dp_mix_round *r = &g->rounds[t % g->period];

    if (r->group_count)
        mix_groups(g, r, x, out);
    else
        mix_links(g, r, back, x, out);
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

/* *x becomes A'A x for A = W[last] ... W[first] (I - 11'/n), by way of *y. */
static void sweep(const struct dp_graph *g, int64_t first, int32_t count, double **x, double **y)
{
    double *swapped;

    remove_mean(*x, g->workers);
    for (int32_t k = 0; k < count; k++, swapped = *x, *x = *y, *y = swapped)
        dp_graph_mix(g, first + k, false, *x, *y);
    if (!g->push_sum)
        remove_mean(*x, g->workers); /* it has none but what rounding put there */
    for (int32_t k = count; k-- > 0; swapped = *x, *x = *y, *y = swapped)
        dp_graph_mix(g, first + k, true, *x, *y);
    remove_mean(*x, g->workers);
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

/* What the steps of Lanczos (Golub and Van Loan, Matrix Computations) make of A'A: a matrix with these
 * numbers in its diagonal and beside it, whose largest eigenvalue soon is that of A'A. */
struct tridiagonal {
    int count;
    double diagonal[SWEEPS_MAX], beside[SWEEPS_MAX];
};

/* Sturm: are all eigenvalues below x? */
static bool all_below(const struct tridiagonal *t, double x)
{
    double pivot = 1;

    for (int i = 0; i < t->count; i++) {
        const double off = i ? t->beside[i - 1] : 0;
        pivot = t->diagonal[i] - x - off * off / pivot;
        if (pivot >= 0)
            return false;
    }
    return true;
}

/* Between the largest number in the diagonal, and the largest sum of a row. */
static double largest_eigenvalue(const struct tridiagonal *t)
{
    double low = 0, high = 0;

    for (int i = 0; i < t->count; i++) {
        const double others = t->beside[i] + (i ? t->beside[i - 1] : 0);
        low = fmax(low, t->diagonal[i]);
        high = fmax(high, t->diagonal[i] + others);
    }
    for (int i = 0; i < 100 && high - low > 1e-17 * high; i++) {
        const double middle = low + (high - low) / 2;
        if (all_below(t, middle))
            high = middle;
        else
            low = middle;
    }
    return high;
}

/* A step: x, the vector before and the next one, which is beside what becomes the last number. */
struct lanczos {
    double *x, *before, *next, *spare;
};

static void take_step(const struct dp_graph *g, int64_t first, int32_t count, struct lanczos *l,
                      struct tridiagonal *t)
{
    const int32_t n = g->workers;
    const double back = t->count ? t->beside[t->count - 1] : 0;
    double along = 0, *swapped = l->before;

    memcpy(l->next, l->x, (size_t)n * sizeof(*l->next));
    sweep(g, first, count, &l->next, &l->spare);
    for (int32_t i = 0; i < n; i++)
        along += l->x[i] * l->next[i];
    for (int32_t i = 0; i < n; i++)
        l->next[i] -= along * l->x[i] + back * l->before[i];
    t->diagonal[t->count] = along;
    t->beside[t->count++] = norm_of(l->next, n);
    scale_to_one(l->next, n);
    l->before = l->x;
    l->x = l->next;
    l->next = swapped;
}

/* The largest eigenvalue is looked for after 1, 2, 3 ... steps and later ones a tenth apart, until it
 * stays twice. */
static double find_largest(const struct dp_graph *g, int64_t first, int32_t count, struct lanczos *l,
                           struct tridiagonal *t)
{
    const double work = 2.0 * g->workers * (count ? count : 1);
    double largest = 0, before = -1;
    int stays = 0, look = 1;

    for (int i = 1; i <= SWEEPS_MAX && (i - 1) * work < SWEEP_WORK && stays < 2; i++) {
        take_step(g, first, count, l, t);
        const bool over = !(t->beside[i - 1] > 1e-15);
        if (i < look && i < SWEEPS_MAX && !over)
            continue;
        largest = largest_eigenvalue(t);
        stays = over ? 2 : fabs(largest - before) <= 1e-14 * largest ? stays + 1 : 0;
        before = largest;
        look = i + 1 + i / 10;
    }
    return largest;
}

int dp_graph_contraction(const struct dp_graph *g, int64_t first, int32_t count, double *out)
{
    const size_t n = (size_t)g->workers;
    double *memory = calloc(4 * n, sizeof(*memory));
    struct tridiagonal *t = calloc(1, sizeof(*t));
    struct lanczos l = {memory, memory + n, memory + 2 * n, memory + 3 * n};

    if (memory && t) {
        fill_randomly(l.x, g->workers);
        const double sigma = sqrt(find_largest(g, first, count, &l, t));
        *out = sigma < 1e-12 ? 0 : sigma;
    }
    const int err =
        memory && t ? 0 : dp_fail(DP_ENOMEM, "no memory for %d workers", g->workers);
    free(memory);
    free(t);
    return err;
}
