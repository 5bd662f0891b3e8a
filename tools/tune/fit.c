/* SPDX-License-Identifier: Apache-2.0 */
#include "tune/results.h"

#include "command.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool tune_is_same_place(const struct tune_point *a, const struct tune_point *b)
{
    return a->function == b->function && a->ranks == b->ranks && a->nodes == b->nodes;
}

/* ---- sizes ---------------------------------------------------------------------------------- */

static const struct tune_point *choose(const struct tune_point *points, size_t count, double gain)
{
    const struct tune_point *best = &points[0];
    double limit_us = (1 - gain) * tune_point_us(best);

    for (size_t i = 1; i < count; i++)
        if (tune_point_us(&points[i]) < limit_us) {
            best = &points[i];
            limit_us = tune_point_us(best);
        }
    return best;
}

static size_t count_same_size(const struct tune_point *points, size_t count)
{
    size_t same = 1;

    while (same < count && tune_is_same_place(&points[same], points) &&
           points[same].bytes == points->bytes)
        same++;
    return same;
}

static void list_sizes(const struct tune_results *r, double gain, struct tune_fit *fit)
{
    for (size_t i = 0, same; i < r->count; i += same) {
        const struct tune_point *points = &r->points[i];
        same = count_same_size(points, r->count - i);
        if (points->algorithm != DP_TUNING_DEFAULT)
            fit->without_default++;
        else
            fit->sizes[fit->count++] = (struct tune_size){points, same, choose(points, same, gain)};
    }
}

/* ---- rules ---------------------------------------------------------------------------------- */

static bool is_changed(const struct tune_size *size)
{
    return size->choice != &size->points[0];
}

/* Where the rule of `size` ends and that of `next` may begin. Between two sizes of which only one
 * changes NCCL's choice nothing was measured, so NCCL's choice stays there. */
static int64_t border(const struct tune_size *size, const struct tune_size *next)
{
    int64_t a = size->points->bytes, b = next->points->bytes;

    if (is_changed(size) != is_changed(next))
        return is_changed(size) ? a : b - 1;
    return (int64_t)sqrt((double)a * (double)b);
}

/* us with three decimals: more would be noise in the table. */
static double in_ns(double us)
{
    return round(us * 1000) / 1000;
}

static struct dp_tuning_rule rule_of(const struct tune_fit *fit, size_t i)
{
    const struct tune_size *s = &fit->sizes[i], *next = s + 1;
    const struct tune_point *p = s->choice;
    const bool has_next = i + 1 < fit->count && tune_is_same_place(s->points, next->points);
    const bool has_last = i > 0 && tune_is_same_place(s->points, s[-1].points);

    return (struct dp_tuning_rule){
        .function = p->function,
        .bytes = {has_last ? border(s - 1, s) + 1 : p->bytes,
                  has_next ? border(s, next) : p->bytes},
        .ranks = {p->ranks, p->ranks},
        .nodes = {p->nodes, p->nodes},
        .pipe_ops = {0, INT64_MAX},
        .registered = DP_TUNING_EITHER,
        .algorithm = p->algorithm,
        .protocol = p->protocol,
        .channels = p->algorithm == DP_TUNING_DEFAULT ? 0 : p->channels,
        .time_us = in_ns(tune_point_us(p)),
        .default_us = in_ns(tune_point_us(&s->points[0])),
        .line = (int)i + 2, /* as CSV, behind the line of names */
    };
}

static int make_table(struct tune_fit *fit)
{
    struct dp_tuning_table *table = calloc(1, sizeof(*table));

    fit->table = table;
    if (!table)
        return command_broke("no memory for a table");
    table->name = strdup("the measurements");
    table->rules = malloc(fit->count * sizeof(*table->rules));
    if (!table->name || !table->rules)
        return command_broke("no memory for %zu rules", fit->count);
    for (size_t i = 0; i < fit->count; i++)
        table->rules[table->count++] = rule_of(fit, i);
    return 0;
}

int tune_fit(struct tune_results *results, double gain, struct tune_fit *fit)
{
    *fit = (struct tune_fit){.sizes = malloc((results->count + 1) * sizeof(*fit->sizes))};
    if (!fit->sizes)
        return command_broke("no memory for %zu sizes", results->count);
    tune_results_sort(results);
    list_sizes(results, gain, fit);
    if (!fit->count)
        return command_misused("NCCL's own choice was not measured, expected an output of a run "
                               "without NCCL_ALGO and NCCL_PROTO: there is nothing to compare with");
    return make_table(fit);
}

void tune_fit_fini(struct tune_fit *fit)
{
    dp_tuning_table_free(fit->table);
    free(fit->sizes);
    *fit = (struct tune_fit){0};
}
