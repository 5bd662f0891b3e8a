/* SPDX-License-Identifier: Apache-2.0
 *
 * measure.c - samples in turn, and which of them count.
 */
#include "config.h"

#include "bench/bench.h"

#include "command.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* ---- options that all commands share --------------------------------------------------------- */

#define AT(member) .offset = offsetof(struct bench_options, member)

static const struct arg args[] = {
    {"samples", 0, "N", "samples that count, of each figure", ARG_INT, AT(samples), .fallback = "5",
     .min = 1, .max = BENCH_SAMPLES_MAX},
    {"limit", 0, "TIME", "stop after that, with what there is", ARG_TIME,
     AT(limit_ns), .fallback = "60s"},
    {"json", 0, NULL, "print JSON", ARG_FLAG, AT(json)},
};
const struct arg_group bench_group = ARG_GROUP("measuring", args);

/* ---- time and load -------------------------------------------------------------------------- */

static int64_t usage_ns(int who)
{
    struct rusage u;

    getrusage(who, &u);
    return (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * INT64_C(1000000000) +
           (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * INT64_C(1000);
}

static int64_t more_own_ns;

static int64_t own_ns(void)
{
    return usage_ns(RUSAGE_SELF) + usage_ns(RUSAGE_CHILDREN) + more_own_ns;
}

int64_t bench_self_ns(void)
{
    return usage_ns(RUSAGE_SELF);
}

void bench_add_own(int64_t ns)
{
    more_own_ns += ns;
}

/* Busy time of all cores, in ns: user, nice, system, irq, softirq, steal of /proc/stat. */
static int64_t busy_ns(void)
{
    long long user, nice, system, idle, iowait, irq, softirq, steal;
    FILE *f = fopen("/proc/stat", "re");
    int fields = f ? fscanf(f, "cpu %lld %lld %lld %lld %lld %lld %lld %lld", &user, &nice, &system,
                            &idle, &iowait, &irq, &softirq, &steal)
                   : 0;

    if (f)
        fclose(f);
    if (fields != 8)
        return 0;
    return (user + nice + system + irq + softirq + steal) * (INT64_C(1000000000) /
                                                             sysconf(_SC_CLK_TCK));
}

static int take_sample(struct bench_case *c)
{
    struct bench_sample *s = &c->samples[c->count];
    int64_t busy = busy_ns(), own = own_ns(), began = now_ns();

    int err = c->sample(c->user, s->figures);
    if (err)
        return err;
    double wall = (double)(now_ns() - began);
    double others = (double)(busy_ns() - busy) - (double)(own_ns() - own);
    s->background = others > 0 && wall > 0 ? others / wall : 0;
    c->count++;
    return 0;
}

int bench_find_times(int (*run)(void *user, int times, int64_t *ns), void *user, int sample_ms,
                     int *times)
{
    const double wanted_ns = sample_ms * 1e6;
    int64_t ns;

    for (int n = 1;; n *= 4) {
        int err = run(user, n, &ns);
        if (err)
            return err;
        if ((double)ns < wanted_ns / 8 && n < 1 << 24)
            continue;
        *times = 1 + (int)(n * (wanted_ns / (double)ns));
        return 0;
    }
}

/* What this process, or the one that started it, could use before it kept to one. */
static const cpu_set_t *usable_cores(void)
{
    static cpu_set_t usable;

    if (!CPU_COUNT(&usable) && sched_getaffinity(0, sizeof(usable), &usable))
        CPU_ZERO(&usable);
    return &usable;
}

void bench_pin(int which)
{
    const cpu_set_t *usable = usable_cores();
    cpu_set_t own;
    int seen = 0;

    if (CPU_COUNT(usable) < 2)
        return;
    CPU_ZERO(&own);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, usable) && seen++ == which)
            CPU_SET(cpu, &own);
    sched_setaffinity(0, sizeof(own), &own);
}

void bench_unpin(void)
{
    const cpu_set_t *usable = usable_cores();

    if (CPU_COUNT(usable))
        sched_setaffinity(0, sizeof(*usable), usable);
}

/* ---- which samples count -------------------------------------------------------------------- */

static int by_background(const void *a, const void *b)
{
    double x = ((const struct bench_sample *)a)->background;
    double y = ((const struct bench_sample *)b)->background;

    return (x > y) - (x < y);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static int count_quiet(const struct bench_case *c)
{
    int quiet = 0;

    for (int i = 0; i < c->count; i++)
        quiet += c->samples[i].background <= BENCH_QUIET_CORES;
    return quiet;
}

/* Of sorted values; between two of them in proportion. */
static double quantile(const double *values, int count, double share)
{
    const double at = share * (count - 1);
    const int below = (int)at, above = below + 1 < count ? below + 1 : below;

    return values[below] + (at - below) * (values[above] - values[below]);
}

static void sum_up(const struct bench_case *c, int figure, struct bench_figure *f)
{
    double values[BENCH_SAMPLES_MAX];

    for (int i = 0; i < c->count; i++)
        values[i] = c->samples[i].figures[figure];
    qsort(values, (size_t)c->count, sizeof(values[0]), by_value);
    f->median = quantile(values, c->count, 0.5);
    f->low = quantile(values, c->count, 0.25);
    f->high = quantile(values, c->count, 0.75);
    f->best = values[f->target_is_floor ? c->count - 1 : 0];
}

/* The quiet samples; where those are too few, as many of the quietest as were wanted. */
static void keep_quiet(struct bench_case *c, int wanted)
{
    int quiet = count_quiet(c);

    qsort(c->samples, (size_t)c->count, sizeof(c->samples[0]), by_background);
    c->noisy = quiet < wanted;
    c->count = quiet >= wanted ? quiet : wanted < c->count ? wanted : c->count;
    c->background = c->samples[c->count - 1].background;
    for (int i = 0; i < c->figure_count; i++)
        sum_up(c, i, &c->figures[i]);
}

int bench_run(struct bench_case *cases, int count, const struct bench_options *o)
{
    int64_t end = now_ns() + (int64_t)o->limit_ns;
    bool wanting = true;

    for (int round = 0; wanting && round < BENCH_SAMPLES_MAX; round++) {
        wanting = false;
        for (int i = 0; i < count; i++) {
            if (count_quiet(&cases[i]) >= o->samples)
                continue;
            int err = take_sample(&cases[i]);
            if (err)
                return err;
            wanting = true;
        }
        if (now_ns() > end)
            break;
    }
    for (int i = 0; i < count; i++)
        keep_quiet(&cases[i], (int)o->samples);
    return 0;
}
