/* SPDX-License-Identifier: Apache-2.0
 *
 * schedule.c - `dp-bench schedule`: how fast schedules are built, proven and simulated, and
 * how much memory that takes.
 */
#include "bench/bench.h"
#include "command.h"
#include "schedule_args.h"
#include "tests/bench/dp_bench/dp_bench.h"

#include <dualpipe/schedule.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define SAMPLE_NS INT64_C(100000000)

struct values {
    struct bench_options common;
    int64_t ranks, microbatches;
};

/* ---- the whole schedule, in a process of its own -------------------------------------------- */

/* What one process found; -1: it failed, and said why. */
struct whole {
    double build_s, check_s, simulate_s, total_s;
};

static int build_all(const struct dp_schedule_spec *spec, struct whole *w)
{
    const struct dp_cost cost = {.f_ns = 1e6, .i_ns = 1e6, .w_ns = 1e6};
    struct dp_simulation sim;
    struct dp_schedule *s;
    int64_t at[4] = {now_ns()};
    int err = dp_schedule_new(spec, &s);

    if (err)
        return err;
    at[1] = now_ns();
    if ((err = dp_schedule_check(s, NULL, NULL)))
        goto free_schedule;
    at[2] = now_ns();
    if ((err = dp_schedule_simulate(s, &cost, 0, &sim)))
        goto free_schedule;
    at[3] = now_ns();
    dp_simulation_fini(&sim);
    w->build_s = (double)(at[1] - at[0]) / 1e9;
    w->check_s = (double)(at[2] - at[1]) / 1e9;
    w->simulate_s = (double)(at[3] - at[2]) / 1e9;
    w->total_s = (double)(at[3] - at[0]) / 1e9;
free_schedule:
    dp_schedule_free(s);
    return err;
}

static _Noreturn void be_child(const struct dp_schedule_spec *spec, int fd)
{
    struct whole w;
    int err = build_all(spec, &w), status = EXIT_OK;

    if (err)
        status = command_failed(err);
    else if (write(fd, &w, sizeof(w)) != sizeof(w))
        status = EXIT_FAILED;
    _exit(status);
}

/* Build, check and simulate in a child, so that its peak of memory is that of this work. */
static int run_child(const struct dp_schedule_spec *spec, struct whole *w, double *peak_mb)
{
    struct rusage usage;
    int fds[2], status;

    if (pipe(fds))
        return command_broke("cannot make a pipe: %s", strerror(errno)), DP_EIO;
    fflush(NULL);
    pid_t pid = fork();
    if (!pid)
        be_child(spec, fds[1]);
    close(fds[1]);
    ssize_t len = pid < 0 ? 0 : read(fds[0], w, sizeof(*w));
    close(fds[0]);
    if (pid < 0)
        return command_broke("cannot start a process: %s", strerror(errno)), DP_EIO;
    if (wait4(pid, &status, 0, &usage) != pid || status || len != sizeof(*w))
        return WIFEXITED(status) && WEXITSTATUS(status) == EXIT_USAGE ? DP_EINVAL : DP_EIO;
    *peak_mb = (double)usage.ru_maxrss * 1024 / 1e6;
    return 0;
}

enum { TOTAL, PEAK, BUILD, CHECK, SIMULATE, WHOLE_FIGURES };

/* The mean of as many children as make a sample long enough; of their memory, the most. */
static int sample_whole(void *user, double *figures)
{
    int64_t end = now_ns() + SAMPLE_NS;
    struct whole w, sum = {0};
    double peak_mb;
    int count = 0;

    figures[PEAK] = 0;
    do {
        int err = run_child(user, &w, &peak_mb);
        if (err)
            return err;
        sum.total_s += w.total_s;
        sum.build_s += w.build_s;
        sum.check_s += w.check_s;
        sum.simulate_s += w.simulate_s;
        figures[PEAK] = peak_mb > figures[PEAK] ? peak_mb : figures[PEAK];
        count++;
    } while (now_ns() < end);
    figures[TOTAL] = sum.total_s / count;
    figures[BUILD] = sum.build_s / count;
    figures[CHECK] = sum.check_s / count;
    figures[SIMULATE] = sum.simulate_s / count;
    return 0;
}

/* ---- one rank's list ------------------------------------------------------------------------ */

struct one_rank {
    struct dp_schedule_spec spec;
    struct dp_op *ops;
    size_t capacity;
};

/* The list of a middle rank, over and over for a tenth of a second: us for one. */
static int sample_one_rank(void *user, double *figures)
{
    const struct one_rank *r = user;
    int64_t began = now_ns(), now;
    size_t count;
    int built = 0;

    do {
        int err = dp_schedule_build_rank(&r->spec, r->spec.ranks / 2, r->ops, r->capacity, &count);
        if (err) {
            command_failed(err);
            return err;
        }
        built++;
    } while ((now = now_ns()) < began + SAMPLE_NS);
    figures[0] = (double)(now - began) / 1e3 / built;
    return 0;
}

static int alloc_one_rank(struct one_rank *r)
{
    command_mute(true);
    int err = dp_schedule_build_rank(&r->spec, r->spec.ranks / 2, NULL, 0, &r->capacity);
    command_mute(false);

    if (err && err != DP_ENOMEM)
        return command_failed(err);
    r->ops = malloc((r->capacity + 1) * sizeof(*r->ops));
    return r->ops ? 0 : command_broke("no memory for %zu ops", r->capacity);
}

/* ---- the command ---------------------------------------------------------------------------- */

static const struct arg args[] = {
    {"ranks", 'P', "N", "pipeline ranks", ARG_INT, .offset = offsetof(struct values, ranks),
     .fallback = "1024", .min = 1, .max = 65536},
    {"microbatches", 'M', "N", "micro-batches", ARG_INT,
     .offset = offsetof(struct values, microbatches), .fallback = "4096", .min = 1, .max = 1 << 20},
};

static int measure(const struct values *v, enum dp_schedule_kind kind)
{
    struct one_rank one = {
        .spec = {.kind = kind, .ranks = (int)v->ranks, .microbatches = (int)v->microbatches}};
    struct bench_case cases[] = {
        {.sample = sample_whole, .user = &one.spec, .figure_count = WHOLE_FIGURES, .figures = {
            [TOTAL] = {.what = "build + check + simulate", .unit = "s", .target = 1},
            [PEAK] = {.what = "  its peak of memory", .unit = "MB", .target = 320},
            [BUILD] = {.what = "  build", .unit = "s"},
            [CHECK] = {.what = "  check", .unit = "s"},
            [SIMULATE] = {.what = "  simulate", .unit = "s"},
        }},
        {.sample = sample_one_rank, .user = &one, .figure_count = 1, .figures = {
            {.what = "one rank's list", .unit = "us", .target = 60},
        }},
    };
    int status = alloc_one_rank(&one), err;
    char title[64];

    if (status)
        return status;
    snprintf(title, sizeof(title), "%s, %d ranks, %d micro-batches", dp_name(DP_NAMES_SCHEDULE, kind),
             one.spec.ranks, one.spec.microbatches);
    err = bench_run(cases, 2, &v->common);
    if (!err)
        bench_report(title, cases, 2, &v->common);
    free(one.ops);
    return !err ? EXIT_OK : err == DP_EINVAL ? EXIT_USAGE : EXIT_FAILED;
}

int run_bench_schedule(int argc, char **argv)
{
    const struct arg_group groups[] = {
        {"which schedule", args, sizeof(args) / sizeof(args[0])}, bench_group, {0},
    };
    const struct usage usage = {
        .command = "dp-bench schedule",
        .operands = "[KIND]",
        .operand_choices = schedule_kinds(),
        .max_operands = 1,
        .about = "Time how fast a schedule is built, proven and simulated, in a process of its\n"
                 "own whose memory is measured, and how fast a rank builds its own list. The\n"
                 "default is DualPipe.",
        .groups = groups,
        .examples = "  dp-bench schedule\n"
                    "  dp-bench schedule 1f1b -P 64 -M 512 --json\n",
    };
    enum dp_schedule_kind kind = DP_SCHEDULE_DUALPIPE;
    struct operands operands;
    struct values v;
    int status;

    if (!args_parse(&usage, argc, argv, &v, &operands, &status))
        return status;
    status = schedule_operand(&operands, &kind);
    return status ? status : measure(&v, kind);
}
