/* SPDX-License-Identifier: Apache-2.0
 *
 * executor.c - `dp-bench executor`: what an op costs beside its compute, with callbacks that
 * do nothing.
 */
#include "bench/bench.h"
#include "bench/rig.h"
#include "command.h"
#include "tests/bench/dp_bench/dp_bench.h"

#include <pthread.h>
#include <stdio.h>

struct values {
    struct bench_options common;
    int64_t microbatches;
    double message_bytes;
};

enum { MAX_RANKS = 2, SAMPLE_MS = 200 };

/* One line of the report: a schedule, and a thread for each of its ranks. */
struct job {
    struct dp_schedule *schedule;
    struct dp_comm *comms[MAX_RANKS];
    size_t message_bytes;
    int steps;   /* of a sample */
    double step_ns[MAX_RANKS]; /* out */
    int err;
};

struct worker {
    struct job *job;
    int rank, err;
};

/* ---- a sample ------------------------------------------------------------------------------- */

/* One rank's share: steps, timed without the first, which warms up. */
static int run_rank(struct job *job, int rank)
{
    struct rig rig;
    int err = rig_open(&(struct rig_config){.schedule = job->schedule, .comm = job->comms[rank],
                                            .message_bytes = job->message_bytes}, &rig);
    if (err)
        return err;
    err = rig_step(&rig);
    int64_t began = now_ns();
    for (int i = 0; i < job->steps && !err; i++)
        err = rig_step(&rig);
    job->step_ns[rank] = (double)(now_ns() - began) / job->steps;
    rig_close(&rig);
    return err;
}

static void *run_worker(void *user)
{
    struct worker *w = user;

    w->err = run_rank(w->job, w->rank);
    return NULL;
}

/* Rank 0 here, the others in threads. */
static int run_ranks(struct job *job)
{
    struct worker workers[MAX_RANKS];
    pthread_t threads[MAX_RANKS];
    int ranks = job->schedule->ranks, started = 1, err = 0;

    for (; started < ranks && !err; started++) {
        workers[started] = (struct worker){job, started, 0};
        err = -pthread_create(&threads[started], NULL, run_worker, &workers[started]);
    }
    if (err) {
        command_broke("cannot start a thread: %s", dp_strerror(err));
        started--;
    }
    /* If one is missing, the others give up after the deadline of their comm. */
    if (!err)
        err = run_rank(job, 0);
    while (--started > 0) {
        pthread_join(threads[started], NULL);
        err = err ? err : workers[started].err;
    }
    return err;
}

static int sample(void *user, double *figures)
{
    struct job *job = user;
    int err = run_ranks(job);

    if (err) {
        command_failed(err);
        return err;
    }
    figures[0] = job->step_ns[0] / 1e3 / (double)dp_schedule_count(job->schedule, 0);
    return 0;
}

/* ---- jobs ----------------------------------------------------------------------------------- */

static int open_job(struct job *job, enum dp_schedule_kind kind, int ranks, const struct values *v)
{
    *job = (struct job){.message_bytes = (size_t)v->message_bytes, .steps = 1};
    int err = dp_schedule_new(&(struct dp_schedule_spec){.kind = kind, .ranks = ranks,
                                                         .microbatches = (int)v->microbatches},
                              &job->schedule);
    if (!err && ranks > 1)
        err = dp_comm_threads_new(ranks, job->comms);
    if (!err)
        err = run_ranks(job); /* how many steps make a sample? */
    if (err)
        return err;
    job->steps = 1 + (int)(SAMPLE_MS * 1e6 / (job->step_ns[0] + 1));
    return 0;
}

static void close_job(struct job *job)
{
    for (int rank = 0; rank < MAX_RANKS; rank++)
        dp_comm_close(job->comms[rank]);
    dp_schedule_free(job->schedule);
}

static int measure(const struct values *v)
{
    struct job jobs[2] = {0};
    struct bench_case cases[] = {
        {.sample = sample, .user = &jobs[0], .figure_count = 1, .figures = {
            {.what = "DualPipeV, 1 rank: no messages", .unit = "us/op", .target = 0.6}}},
        {.sample = sample, .user = &jobs[1], .figure_count = 1, .figures = {
            {.what = "DualPipe, 2 ranks: threads", .unit = "us/op", .target = 0.6}}},
    };
    int err = open_job(&jobs[0], DP_SCHEDULE_DUALPIPEV, 1, v);

    if (!err)
        err = open_job(&jobs[1], DP_SCHEDULE_DUALPIPE, 2, v);
    if (!err)
        err = bench_run(cases, 2, &v->common);
    if (!err)
        bench_report("executor, cost per op", cases, 2, &v->common);
    close_job(&jobs[0]);
    close_job(&jobs[1]);
    return err ? command_failed(err) : EXIT_OK;
}

/* ---- the command ---------------------------------------------------------------------------- */

static const struct arg args[] = {
    {"microbatches", 'M', "N", "micro-batches of a step", ARG_INT,
     .offset = offsetof(struct values, microbatches), .fallback = "64", .min = 4, .max = 100000},
    {"message-bytes", 0, "SIZE", "of one message", ARG_BYTES,
     .offset = offsetof(struct values, message_bytes), .fallback = "64", .min = 4, .max = 1 << 26},
};

int run_bench_executor(int argc, char **argv)
{
    const struct arg_group groups[] = {
        {"what", args, sizeof(args) / sizeof(args[0])}, bench_group, {0},
    };
    const struct usage usage = {
        .command = "dp-bench executor",
        .about = "Time steps whose callbacks do nothing, and divide by the ops of a rank:\n"
                 "computes, messages, commits, frees. With several ranks that includes waiting\n"
                 "for the other.",
        .groups = groups,
        .examples = "  dp-bench executor\n"
                    "  dp-bench executor -M 1000 --json\n",
    };
    struct operands operands;
    struct values v;
    int status;

    if (!args_parse(&usage, argc, argv, &v, &operands, &status))
        return status;
    return measure(&v);
}
