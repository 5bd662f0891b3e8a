/* SPDX-License-Identifier: Apache-2.0
 *
 * copy.c - `dp-bench copy`: the host device's copies against libc's memcpy, with the same
 * buffers, in turns of about a millisecond.
 */
#include "bench/bench.h"
#include "command.h"
#include "tests/bench/dp_bench/dp_bench.h"

#include <dualpipe/device.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

struct values {
    struct bench_options common;
    double smallest, largest; /* bytes */
};

enum { COPIERS = 2, SIZES_MAX = 24, SAMPLE_MS = 120, WARM_UPS = 16 };

/* How copies are made. */
enum mode {
    MODE_ONE,   /* one thread */
    MODE_TWO,   /* two threads at once, each between buffers of its own; both together count */
    MODE_SHARED /* one copy, cut over a worker and the thread that waits for it */
};

/* Where a thread copies. */
struct copier {
    struct dp_device *dev;
    struct dp_device_stream *stream;
    struct dp_device_event *event;
    void *dst, *src;
};

/* One size in one mode. */
struct job {
    struct copier *copiers;
    enum mode mode;
    size_t bytes;
    int copies, rounds; /* of a turn; turns of a sample, for each way */
    double ours_ns[COPIERS], libc_ns[COPIERS]; /* out: of one copy */
    atomic_int arrived;
    int err;
    char names[3][48];
};

struct worker {
    struct job *job;
    int copier;
};

/* ---- turns ---------------------------------------------------------------------------------- */

static int copiers_of(const struct job *job)
{
    return job->mode == MODE_TWO ? COPIERS : 1;
}

/* All copiers start a turn together. */
static void meet(struct job *job, int *meetings)
{
    atomic_fetch_add(&job->arrived, 1);
    ++*meetings;
    while (atomic_load(&job->arrived) < *meetings * copiers_of(job))
        sched_yield();
}

static int64_t time_libc(const struct copier *copier, const struct job *job)
{
    int64_t began = now_ns();

    for (int i = 0; i < job->copies; i++) {
        memcpy(copier->dst, copier->src, job->bytes);
        atomic_signal_fence(memory_order_seq_cst); /* or all but the last copy could be left out */
    }
    return now_ns() - began;
}

static int copy_ours(const struct copier *copier, const struct job *job)
{
    int err = 0;

    for (int i = 0; i < job->copies && !err; i++)
        err = dp_device_copy(copier->stream, copier->dst, copier->src, job->bytes);
    if (!err)
        err = dp_device_event_record(copier->event, copier->stream);
    return err ? err : dp_device_event_wait(copier->event, INT64_C(60000000000));
}

static int64_t time_ours(const struct copier *copier, struct job *job)
{
    int64_t began = now_ns();
    int err = copy_ours(copier, job);

    if (err)
        job->err = err;
    return now_ns() - began;
}

/* Ours, libc's, libc's, ours, ... */
static void *run_copier(void *user)
{
    const struct worker *w = user;
    struct job *job = w->job;
    const struct copier *copier = &job->copiers[w->copier];
    int64_t ours_ns = 0, libc_ns = 0;
    int meetings = 0;

    for (int turn = 0; turn < 2 * job->rounds; turn++) {
        meet(job, &meetings);
        if ((turn % 4 == 0) || (turn % 4 == 3))
            ours_ns += time_ours(copier, job);
        else
            libc_ns += time_libc(copier, job);
    }
    job->ours_ns[w->copier] = (double)ours_ns / job->rounds / job->copies;
    job->libc_ns[w->copier] = (double)libc_ns / job->rounds / job->copies;
    return NULL;
}

static int run_copiers(struct job *job)
{
    struct worker workers[COPIERS] = {{job, 0}, {job, 1}};
    pthread_t thread;

    atomic_store(&job->arrived, 0);
    if (copiers_of(job) > 1 && pthread_create(&thread, NULL, run_copier, &workers[1]))
        return command_broke("cannot start a thread"), DP_ENOMEM;
    run_copier(&workers[0]);
    if (copiers_of(job) > 1)
        pthread_join(thread, NULL);
    return job->err;
}

/* ---- samples -------------------------------------------------------------------------------- */

enum { RATIO, OURS, LIBC, FIGURES };

/* GB/s of all copiers. */
static double rate(const struct job *job, const double *ns)
{
    double sum = 0;

    for (int i = 0; i < copiers_of(job); i++)
        sum += (double)job->bytes / ns[i];
    return sum;
}

static int sample(void *user, double *figures)
{
    struct job *job = user;
    int err = run_copiers(job);

    if (err) {
        command_failed(err);
        return err;
    }
    figures[OURS] = rate(job, job->ours_ns);
    figures[LIBC] = rate(job, job->libc_ns);
    figures[RATIO] = figures[OURS] / figures[LIBC];
    return 0;
}

/* Let the library find its way of copying this size, then see how many copies make a sample. */
static int prepare(struct job *job)
{
    double copy_ns;
    int err;

    job->copies = 1;
    job->rounds = WARM_UPS;
    err = run_copiers(job);
    if (err)
        return err;
    copy_ns = job->libc_ns[0] + 1;
    job->copies = 1 + (int)(1e6 / copy_ns);
    job->rounds = 2 + (int)(SAMPLE_MS * 1e6 / 2 / (copy_ns * job->copies));
    return 0;
}

/* ---- copiers --------------------------------------------------------------------------------- */

static void close_copier(struct copier *copier)
{
    if (!copier->dev)
        return;
    dp_device_event_free(copier->event);
    dp_device_stream_free(copier->stream);
    dp_device_free(copier->dev, DP_MEMORY_PINNED, copier->dst);
    dp_device_free(copier->dev, DP_MEMORY_PINNED, copier->src);
    dp_device_close(copier->dev);
}

static int open_copier(struct copier *copier, int workers, size_t bytes)
{
    int err = dp_device_host_open(workers, &copier->dev);

    if (err)
        return err;
    err = dp_device_alloc(copier->dev, DP_MEMORY_PINNED, bytes, &copier->dst);
    if (!err)
        err = dp_device_alloc(copier->dev, DP_MEMORY_PINNED, bytes, &copier->src);
    if (!err)
        err = dp_device_stream_new(copier->dev, DP_PRIORITY_NORMAL, &copier->stream);
    if (!err)
        err = dp_device_event_new(copier->dev, &copier->event);
    if (!err)
        memset(copier->src, 1, bytes); /* or every page of it is the kernel's one page of zeroes */
    return err;
}

/* ---- report --------------------------------------------------------------------------------- */

static const char *const mode_names[] = {"1 thread", "2 threads, a copy each",
                                         "1 copy on 2 threads"};

/* From 16 MiB on the caches are no help. The shared copy has no peer, hence no target. */
static double target_of(const struct job *job)
{
    if (job->mode == MODE_SHARED)
        return 0;
    return job->bytes >= 16 << 20 ? 1.4 : 0.97;
}

static void make_case(struct bench_case *c, struct job *job)
{
    static const char *const what[] = {"ours over libc", "ours", "libc"};
    char size[24];

    bench_size_text(job->bytes, size, sizeof(size));
    *c = (struct bench_case){.sample = sample, .user = job, .figure_count = FIGURES};
    for (int i = 0; i < FIGURES; i++) {
        snprintf(job->names[i], sizeof(job->names[i]), "%s, %s: %s", size, mode_names[job->mode],
                 what[i]);
        c->figures[i] = (struct bench_figure){.what = job->names[i],
                                              .unit = i == RATIO ? "x" : "GB/s",
                                              .target = i == RATIO ? target_of(job) : 0,
                                              .target_is_floor = true};
    }
}

static void print_row(const struct bench_case *c)
{
    const struct job *job = c->user;
    const struct bench_figure *ratio = &c->figures[RATIO];
    char size[24], target[24] = "-";

    bench_size_text(job->bytes, size, sizeof(size));
    if (ratio->target)
        snprintf(target, sizeof(target), ">= %.2f: %s", ratio->target,
                 ratio->median >= ratio->target ? "met" : "missed");
    printf("%9s  %-24s %7.1f %7.1f  %6.2f  %-15s %4d %5.2f%s\n", size, mode_names[job->mode],
           c->figures[OURS].median, c->figures[LIBC].median, ratio->median, target, c->count,
           c->background, c->noisy ? " (!)" : "");
}

static void print_table(const struct bench_case *cases, int count)
{
    printf("%9s  %-24s %7s %7s  %6s  %-15s %4s %5s\n", "one copy", "", "ours", "libc", "ratio",
           "target", "of", "load");
    for (int i = 0; i < count; i++)
        print_row(&cases[i]);
    printf("\nGB/s of all threads and their ratio, medians; of: samples that count; load: cores "
           "busy\nwith other work in the worst of them. The same buffers over and over: the "
           "smaller ones\nstay in the caches.\n");
}

/* ---- the command ---------------------------------------------------------------------------- */

/* Large enough for all: static. */
static struct job jobs[3 * SIZES_MAX];
static struct bench_case cases[3 * SIZES_MAX];

/* Small copies are never cut, so they are not measured so. Four times as large each, twice once the
 * caches are behind. */
static int list_jobs(const struct values *v, struct copier *copiers, struct copier *shared)
{
    size_t largest = (size_t)v->largest;
    int count = 0;

    for (size_t bytes = (size_t)v->smallest; bytes <= largest && count <= 3 * (SIZES_MAX - 1);
         bytes *= bytes < 16 << 20 ? 4 : 2)
        for (enum mode mode = MODE_ONE; mode <= MODE_SHARED; mode++)
            if (mode != MODE_SHARED || bytes >= 1 << 20)
                jobs[count++] = (struct job){.copiers = mode == MODE_SHARED ? shared : copiers,
                                             .mode = mode,
                                             .bytes = bytes};
    return count;
}

static int measure_copiers(const struct values *v, struct copier *copiers, struct copier *shared)
{
    int count = list_jobs(v, copiers, shared), err = 0;

    for (int i = 0; i < count && !err; i++) {
        make_case(&cases[i], &jobs[i]);
        err = prepare(&jobs[i]);
    }
    if (!err)
        err = bench_run(cases, count, &v->common);
    if (err)
        return err;
    if (v->common.json)
        bench_report("host copies", cases, count, &v->common);
    else
        print_table(cases, count);
    return 0;
}

static int measure(const struct values *v)
{
    struct copier copiers[COPIERS] = {0}, shared = {0};
    int err = open_copier(&shared, 1, (size_t)v->largest);

    for (int i = 0; i < COPIERS && !err; i++)
        err = open_copier(&copiers[i], 0, (size_t)v->largest);
    if (!err)
        err = measure_copiers(v, copiers, &shared);
    for (int i = 0; i < COPIERS; i++)
        close_copier(&copiers[i]);
    close_copier(&shared);
    return err ? command_failed(err) : EXIT_OK;
}

static const struct arg args[] = {
    {"smallest", 0, "SIZE", "first size", ARG_BYTES, .offset = offsetof(struct values, smallest),
     .fallback = "4KiB", .min = 1024, .max = 1 << 30},
    {"largest", 0, "SIZE", "last size", ARG_BYTES, .offset = offsetof(struct values, largest),
     .fallback = "128MiB", .min = 1024, .max = 1 << 30},
};

int run_bench_copy(int argc, char **argv)
{
    const struct arg_group groups[] = {
        {"what", args, sizeof(args) / sizeof(args[0])}, bench_group, {0},
    };
    const struct usage usage = {
        .command = "dp-bench copy",
        .about = "Copy on the host with one and two threads, against libc's memcpy in turns.",
        .groups = groups,
        .examples = "  dp-bench copy\n"
                    "  dp-bench copy --smallest 16MiB --json\n",
    };
    struct operands operands;
    struct values v;
    int status;

    if (!args_parse(&usage, argc, argv, &v, &operands, &status))
        return status;
    if (v.smallest > v.largest)
        return command_misused("--smallest is more than --largest, expected at most as much");
    return measure(&v);
}
