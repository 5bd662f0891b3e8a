/* SPDX-License-Identifier: Apache-2.0
 *
 * comm.c - `dualpipe bench comm`: all-reduces of float32 between processes of this machine, from 8
 * bytes to 256 MiB, from plain and from shared memory, against what the processes could do if
 * nothing had to be sent: each adds its part of the values of all and copies the result.
 *
 * Rank 0 takes the samples and tells the others what to do: which case, how often.
 */
#include "bench/bench.h"

#include "command.h"
#include "commands.h"
#include "launch.h"

#include <dualpipe/comm.h>
#include <dualpipe/memory.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As the library's sums: at -O2 gcc leaves loops of unknown length as they are. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

enum { STOP = -1, SAMPLE_MS = 100, CASES_MAX = 48 };
#define MOST ((size_t)256 << 20)

static const size_t sizes[] = {8,       1 << 10, 8 << 10,  64 << 10, 512 << 10,
                               1 << 20, 4 << 20, 16 << 20, 64 << 20, MOST};
enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };

enum how { PLAIN, SHARED, LIMIT };

struct values {
    struct bench_options common;
    const char *transport;
    int64_t ranks, most_kib;
};

struct job {
    const struct values *v;
    struct dp_comm *comm;
    float *plain, *shared; /* [MOST] bytes each; shared NULL: the transport does not use it */
};

/* One case, as rank 0 knows it. */
struct runner {
    struct job *job;
    size_t size;
    enum how how;
    int times;
};

/* What the ranks are to do. */
struct order {
    int64_t size; /* or STOP */
    int32_t how, times;
};

/* ---- a rank's part --------------------------------------------------------------------------- */

/* This rank's share of the work in its own memory: add two halves into a third part, copy the rest.
 */
static void do_limit(const struct job *j, size_t count)
{
    const size_t ranks = (size_t)dp_comm_size(j->comm), part = count / ranks;
    float *values = j->plain;

    for (size_t r = 1; r < ranks; r++)
        for (size_t i = 0; i < part; i++)
            values[i] += values[r * part + i];
    if (count > part)
        memcpy(values + part, values,
               (count - part < part ? count - part : part) * sizeof(*values));
}

static int reduce(struct job *j, float *values, size_t count)
{
    const DLDataType f32 = {kDLFloat, 32, 1};
    struct dp_request req;
    int err = dp_comm_iallreduce(j->comm, values, values, count, f32, DP_REDUCE_SUM, &req);

    return err ? err : dp_comm_wait(j->comm, &req, -1);
}

static int repeat(struct job *j, const struct order *o)
{
    const size_t count = (size_t)o->size / sizeof(float);
    int err = 0;

    for (int i = 0; i < o->times && !err; i++)
        if (o->how == LIMIT)
            do_limit(j, count);
        else
            err = reduce(j, o->how == SHARED ? j->shared : j->plain, count);
    return err;
}

/* All ranks, once around first; the CPU time of the others is added to rank 0's. */
static int do_together(struct job *j, const struct order *o, int64_t *ns)
{
    const struct order once = {o->size, o->how, 1};
    const int64_t cpu = bench_self_ns();
    int64_t *all = calloc((size_t)dp_comm_size(j->comm), sizeof(*all)), used;
    int err = all ? repeat(j, &once) : DP_ENOMEM;

    if (!err)
        err = dp_comm_barrier(j->comm);
    const int64_t began = now_ns();
    if (!err)
        err = repeat(j, o);
    if (!err)
        err = dp_comm_barrier(j->comm);
    *ns = now_ns() - began;
    used = bench_self_ns() - cpu;
    if (!err)
        err = dp_comm_allgather(j->comm, &used, all, sizeof(used));
    for (int r = 1; !err && r < dp_comm_size(j->comm); r++)
        bench_add_own(all[r]);
    free(all);
    return err;
}

static int follow(struct job *j)
{
    struct order o = {0, 0, 0};
    int64_t ns;
    int err = 0;

    while (!err && o.size != STOP) {
        err = dp_comm_broadcast(j->comm, &o, sizeof(o), 0);
        if (!err && o.size != STOP)
            err = do_together(j, &o, &ns);
    }
    return err;
}

/* ---- rank 0 ---------------------------------------------------------------------------------- */

static int run_times(void *user, int times, int64_t *ns)
{
    struct runner *r = user;
    struct order o = {(int64_t)r->size, r->how, times};
    int err = dp_comm_broadcast(r->job->comm, &o, sizeof(o), 0);

    return err ? err : do_together(r->job, &o, ns);
}

/* us of one, and the bytes of the buffer by that. */
static int sample(void *user, double *figures)
{
    struct runner *r = user;
    int64_t ns = 1;
    int err = r->times ? 0 : bench_find_times(run_times, r, SAMPLE_MS, &r->times);

    if (!err)
        err = run_times(r, r->times, &ns);
    figures[0] = (double)ns / 1e3 / (r->times ? r->times : 1);
    figures[1] = (double)r->size / (figures[0] * 1e3);
    return err;
}

static int lead(struct job *j)
{
    static const char *const names[] = {"all-reduce", "all-reduce, shared", "limit"};
    static struct runner runners[CASES_MAX];
    static struct bench_case cases[CASES_MAX];
    static char labels[CASES_MAX][2][64];
    char size[32], title[64];
    int count = 0;

    for (int i = 0; i < SIZES && sizes[i] <= (size_t)j->v->most_kib << 10; i++)
        for (int how = PLAIN; how <= LIMIT; how++) {
            if ((how == SHARED && (!j->shared || sizes[i] < 512 << 10)) ||
                (how == LIMIT && sizes[i] < 64 << 10))
                continue;
            bench_size_text(sizes[i], size, sizeof(size));
            snprintf(labels[count][0], sizeof(labels[count][0]), "%s %s", names[how], size);
            runners[count] = (struct runner){.job = j, .size = sizes[i], .how = (enum how)how};
            cases[count] =
                (struct bench_case){.sample = sample,
                                    .user = &runners[count],
                                    .figure_count = 2,
                                    .figures = {{.what = labels[count][0], .unit = "us"},
                                                {.what = labels[count][0], .unit = "GB/s"}}};
            count++;
        }
    int err = bench_run(cases, count, &j->v->common);
    snprintf(title, sizeof(title), "%s, %d processes", dp_comm_name(j->comm),
             dp_comm_size(j->comm));
    if (!err)
        bench_report(title, cases, count, &j->v->common);
    const struct order stop = {STOP, 0, 0};
    struct order o = stop;
    return err ? err : dp_comm_broadcast(j->comm, &o, sizeof(o), 0);
}

/* ---- the command ----------------------------------------------------------------------------- */

static int take_buffers(struct job *j)
{
    const size_t bytes = (size_t)j->v->most_kib << 10;

    j->plain = malloc(bytes);
    if (!j->plain)
        return command_broke("no memory for %zu bytes", bytes), DP_ENOMEM;
    for (size_t i = 0; i < bytes / sizeof(*j->plain); i++)
        j->plain[i] = 0;
    if (!dp_comm_shared_bytes(j->comm))
        return 0;
    return dp_shared_alloc(bytes, -1, (void **)&j->shared);
}

static int run_rank(void *user, const struct dp_comm_config *config, struct dp_abort *why)
{
    struct job *j = user;

    command_mute(true); /* launch_ranks says what went wrong, once */
    int err = launch_join(config, &j->comm);
    bench_pin(config->rank);
    if (!err)
        err = take_buffers(j);
    if (!err)
        err = config->rank ? follow(j) : lead(j);
    if (err) {
        *why = (struct dp_abort){.rank = config->rank, .error = err};
        snprintf(why->text, sizeof(why->text), "%s", dp_last_error());
    }
    dp_comm_close(j->comm);
    dp_shared_free(j->shared);
    free(j->plain);
    return err;
}

static const char *const transports[] = {"shm", "tcp", NULL};
#define AT(member) .offset = offsetof(struct values, member)

static const struct arg args[] = {
    {"transport", 0, NULL, "how messages travel", ARG_CHOICE,
     AT(transport), .fallback = "shm", .choices = transports},
    {"ranks", 0, "N", "processes, 2 to 16", ARG_INT, AT(ranks), .fallback = "2", .min = 2, .max = 16},
    {"most", 0, "KIB", "largest buffer, in KiB", ARG_INT,
     AT(most_kib), .fallback = "262144", .min = 1, .max = 262144},
};

int run_bench_comm(int argc, char **argv)
{
    const struct arg_group groups[] = {ARG_GROUP("what", args), bench_group, {0}};
    const struct usage usage = {
        .command = "dualpipe bench comm", .groups = groups,
        .about = "Time all-reduces of float32 between processes of this machine, from 8 bytes to\n"
                 "256 MiB, from plain memory and from shared memory. The limit is what the same\n"
                 "processes need to add and to copy as much in their own memory.",
        .examples = "  dualpipe bench comm\n"
                    "  dualpipe bench comm --ranks 4 --most 4096 --samples 9\n",
    };
    struct operands operands;
    struct values v;
    int status;

    if (!args_parse(&usage, argc, argv, &v, &operands, &status))
        return status;
    struct job job = {.v = &v};
    return launch_ranks((int)v.ranks, 0, v.transport, run_rank, &job);
}
