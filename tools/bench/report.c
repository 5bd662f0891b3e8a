/* SPDX-License-Identifier: Apache-2.0
 *
 * report.c - figures beside their targets.
 */
#include "bench/bench.h"

#include <jansson.h>

#include <stdio.h>

void bench_size_text(size_t bytes, char *text, size_t len)
{
    if (bytes < 1 << 10 || bytes % (1 << 10))
        snprintf(text, len, "%zu B", bytes);
    else if (bytes < 1 << 20 || bytes % (1 << 20))
        snprintf(text, len, "%zu KiB", bytes >> 10);
    else
        snprintf(text, len, "%zu MiB", bytes >> 20);
}

static bool is_met(const struct bench_figure *f, double figure)
{
    return f->target_is_floor ? figure >= f->target : figure <= f->target;
}

/* Three quarters of the samples meet it, or half of them, or one at least. */
static const char *verdict(const struct bench_figure *f)
{
    if (is_met(f, f->target_is_floor ? f->low : f->high))
        return "met";
    if (is_met(f, f->median))
        return "met by most";
    return is_met(f, f->best) ? "met by the best" : "missed";
}

static void print_figure(const struct bench_case *c, const struct bench_figure *f)
{
    char target[48] = "-";

    if (f->target)
        snprintf(target, sizeof(target), "%s %g: %s", f->target_is_floor ? ">=" : "<=", f->target,
                 verdict(f));
    printf("%-46s %9.4g %9.4g %9.4g %9.4g  %-6s %-24s %3d %6.2f%s\n", f->what, f->median, f->low,
           f->high, f->best, f->unit, target, c->count, c->background, c->noisy ? " (!)" : "");
}

struct json_t *bench_json_figure(const struct bench_case *c, int i)
{
    const struct bench_figure *f = &c->figures[i];
    json_t *samples = json_array();

    for (int k = 0; k < c->count; k++)
        json_array_append_new(samples, json_pack("{sf, sf}", "figure", c->samples[k].figures[i],
                                                 "background_cores", c->samples[k].background));
    json_t *j = json_pack("{ss, ss, sf, s[ff], sf, sf, sb, so}", "what", f->what, "unit", f->unit,
                          "median", f->median, "quartiles", f->low, f->high, "best", f->best,
                          "background_cores", c->background, "noisy", c->noisy, "samples", samples);
    if (f->target) {
        json_object_set_new(j, f->target_is_floor ? "at_least" : "at_most", json_real(f->target));
        json_object_set_new(j, "met", json_boolean(is_met(f, f->median)));
    }
    return j;
}

static void print_json(const char *title, const struct bench_case *cases, int count)
{
    json_t *all = json_array(), *j;

    for (int i = 0; i < count; i++)
        for (int k = 0; k < cases[i].figure_count; k++)
            json_array_append_new(all, bench_json_figure(&cases[i], k));
    j = json_pack("{ss, so}", "bench", title, "figures", all);
    json_dumpf(j, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(j);
}

void bench_report(const char *title, const struct bench_case *cases, int count,
                  const struct bench_options *o)
{
    bool noisy = false;

    if (o->json) {
        print_json(title, cases, count);
        return;
    }
    printf("%-46s %9s %9s %9s %9s  %-6s %-24s %3s %6s\n", title, "median", "half from", "to",
           "best", "unit", "target", "of", "load");
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < cases[i].figure_count; k++)
            print_figure(&cases[i], &cases[i].figures[k]);
        noisy |= cases[i].noisy;
    }
    printf("\nhalf from, to: half of the samples lie between; of: samples that count; load: cores\n"
           "busy with other work in the worst of them\n");
    if (noisy)
        printf("(!) too few samples with less than %g cores of other work: do not trust these\n",
               BENCH_QUIET_CORES);
}
