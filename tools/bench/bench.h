/* SPDX-License-Identifier: Apache-2.0
 *
 * bench.h - how the commands of `dualpipe bench` measure: samples taken in turn (A, B, A, B), each
 * with the load that other programs put on the machine meanwhile; those taken under load do not
 * count. A figure is the median of the others, the quartiles that half of them lie between, and the
 * best of them.
 *
 *      struct bench_case cases[] = {
 *          {.sample = time_build, .user = &schedule, .figure_count = 1,
 *           .figures = {{.what = "build", .unit = "ms", .target = 5}}},
 *          {.sample = time_check, ...},
 *      };
 *      err = bench_run(cases, 2, &options);
 *      if (!err)
 *          bench_report("schedule", cases, 2, &options);
 */
#ifndef DP_TOOLS_BENCH_BENCH_H
#define DP_TOOLS_BENCH_BENCH_H

#include "args.h"
#include "clock.h"

#include <stdbool.h>
#include <stdint.h>

enum { BENCH_SAMPLES_MAX = 256, BENCH_FIGURES_MAX = 16 };

/* Load of other programs above which a sample does not count, in cores. */
#define BENCH_QUIET_CORES 0.25

/* What every bench command takes; its values begin with it. */
struct bench_options {
    int64_t samples; /* wanted, each of them quiet */
    double limit_ns; /* longest for a command, all cases together */
    bool json;
};
extern const struct arg_group bench_group;

/* One thing that a sample tells. */
struct bench_figure {
    const char *what, *unit;
    double target;        /* printed beside it, 0: none. Missing it is no failure. */
    bool target_is_floor; /* more is better */
    double median, best;  /* out */
    double low, high;     /* out: the quartiles */
};

struct bench_sample {
    double figures[BENCH_FIGURES_MAX];
    double background; /* cores busy with other programs' work */
};

struct bench_case {
    /* Take one sample, of a tenth of a second at least (/proc/stat counts in hundredths), and write
     * figures[figure_count]. 0, or an error whose sentence has been printed. */
    int (*sample)(void *user, double *figures);
    void *user;
    int figure_count;
    struct bench_figure figures[BENCH_FIGURES_MAX];

    int count; /* out: samples taken, then those kept */
    struct bench_sample samples[BENCH_SAMPLES_MAX];
    double background; /* out: the worst of those kept */
    bool noisy;        /* out: there were too few quiet ones, so the quietest were kept */
};

/* Take samples of all cases in turn until each has as many quiet ones as wanted, or time is up.
 * 0, or the first error of a sample. */
int bench_run(struct bench_case *cases, int count, const struct bench_options *options);

/* Print a table, or JSON. */
void bench_report(const char *title, const struct bench_case *cases, int count,
                  const struct bench_options *options);

/* How often run must do a thing to fill a sample: more and more, until it takes long enough to tell.
 * 0, or an error of run. */
int bench_find_times(int (*run)(void *user, int times, int64_t *ns), void *user, int sample_ms,
                     int *times);

/* Keep this process to the first core that it may use, or to the second, if there are two. A process
 * that comes of one that has done so is counted from the same first core. */
void bench_pin(int which);
/* As it was before bench_pin. */
void bench_unpin(void);

/* "8 B", "512 KiB", "4 MiB". */
void bench_size_text(size_t bytes, char *text, size_t len);

/* Figure `at` of a case as a JSON object, for commands that have more to say of it; the caller's. */
struct json_t *bench_json_figure(const struct bench_case *c, int at);

/* CPU time that the sampled work used in processes that are still running: what those have told,
 * in ns. (This process and its children that have ended are counted anyway.) */
void bench_add_own(int64_t ns);
/* CPU time of this process so far, in ns: what such a process tells. */
int64_t bench_self_ns(void);

#endif
