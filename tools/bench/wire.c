/* SPDX-License-Identifier: Apache-2.0
 *
 * wire.c - `dualpipe bench wire`: latency and bandwidth of messages between two processes, against
 * what memcpy and a pipe do on the same machine in the same run; what a rank costs that only waits;
 * and what becomes of it all where other threads want the cores.
 *
 * Rank 0 takes the samples and tells rank 1 what to do: which case, how often.
 */
#include "bench/wire.h"

#include "command.h"
#include "commands.h"
#include "launch.h"

#include <dualpipe/memory.h>
#include <dualpipe/options.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STOP = -1, SAMPLE_MS = 150 };
static const int64_t OTHERS_NS = INT64_C(300000000000); /* longest for all others between two of ours */

/* What rank 1 is to do. */
struct word {
    int32_t which; /* of wire_methods, or STOP */
    int32_t times;
};

/* ---- together -------------------------------------------------------------------------------- */

/* Once around, so that caches and the ways that messages take are what they are in the middle. */
static int warm_up(struct wire_job *j, const struct wire_method *m, int times)
{
    return m->figure == WIRE_SHARE ? 0 : m->run(j, m->size, 1 + times / 8);
}

/* Both ranks do it; the other one's CPU time is added to our own. */
static int do_together(struct wire_job *j, struct word word, int64_t *ns, int64_t *cpu_ns)
{
    const struct wire_method *m = &j->methods[word.which];
    const int64_t all_cpu = bench_self_ns();
    int64_t all[2];
    int err = warm_up(j, m, word.times);

    if (!err)
        err = dp_comm_barrier(j->comm);
    int64_t began = now_ns(), cpu = bench_self_ns();
    if (!err)
        err = m->run(j, m->size, word.times);
    *ns = now_ns() - began;
    *cpu_ns = bench_self_ns() - cpu;
    const int64_t used = bench_self_ns() - all_cpu;
    if (!err)
        err = dp_comm_allgather(j->comm, &used, all, sizeof(used));
    if (!err)
        bench_add_own(all[1 - j->rank]);
    return err;
}

/* Rank 0: both ranks do a method so often, once they have warmed up. How long that takes, and what
 * CPU time this one uses. */
static int order(struct wire_job *j, int which, int times, int64_t *ns, int64_t *cpu_ns)
{
    struct word word = {which, times};
    int err = dp_comm_broadcast(j->comm, &word, sizeof(word), 0);

    return err || which == STOP ? err : do_together(j, word, ns, cpu_ns);
}

/* ---- samples --------------------------------------------------------------------------------- */

static int run_times(void *user, int times, int64_t *ns)
{
    const struct wire_runner *r = user;
    int64_t cpu_ns;

    return order(r->job, r->which, times, ns, &cpu_ns);
}

static double figure_of(const struct wire_method *m, int times, int64_t ns, int64_t cpu_ns)
{
    switch (m->figure) {
    case WIRE_LATENCY:
        return (double)ns / 2 / times / 1e3;
    case WIRE_STREAM:
        return (double)m->size * times / (double)ns;
    case WIRE_SHARE:
        break;
    }
    return 100 * (double)cpu_ns / (double)ns;
}

int wire_take_turn(struct wire_runner *r, double *figure)
{
    int err = r->times ? 0 : bench_find_times(run_times, r, r->sample_ms, &r->times);
    int64_t ns = 1, cpu_ns = 0;

    if (!err)
        err = order(r->job, r->which, r->times, &ns, &cpu_ns);
    *figure = figure_of(&r->job->methods[r->which], r->times ? r->times : 1, ns, cpu_ns);
    return err;
}

static int sample(void *user, double *figures)
{
    return wire_take_turn(user, figures);
}

struct bench_figure wire_figure(const struct wire_job *j, const struct wire_method *m)
{
    static const char *const units[] = {"us", "GB/s", "%"};

    return (struct bench_figure){.what = m->what,
                                 .unit = units[m->figure],
                                 .target = strcmp(j->transport, "tcp") ? m->shm : m->tcp,
                                 .target_is_floor = m->figure == WIRE_STREAM};
}

void wire_report(const struct wire_job *j, const struct bench_case *cases, int count)
{
    char title[64];

    snprintf(title, sizeof(title), "%s: latency one way, streams", dp_comm_name(j->comm));
    bench_report(title, cases, count, &j->v->common);
}

static int measure_all(struct wire_job *j)
{
    static struct bench_case cases[WIRE_METHODS_MAX];
    static struct wire_runner runners[WIRE_METHODS_MAX];
    int count = 0;

    for (int i = 0; i < j->method_count; i++) {
        const struct wire_method *m = &j->methods[i];
        if (m->run == wire_stream_shared && strcmp(j->transport, "shm"))
            continue;
        runners[count] = (struct wire_runner){.job = j, .which = i, .sample_ms = SAMPLE_MS};
        cases[count] = (struct bench_case){.sample = sample, .user = &runners[count],
                                           .figure_count = 1, .figures = {wire_figure(j, m)}};
        count++;
    }
    int err = bench_run(cases, count, &j->v->common);
    if (!err)
        wire_report(j, cases, count);
    return err;
}

static int lead(struct wire_job *j)
{
    int err = j->others ? j->others->compare(j) : measure_all(j);

    return err ? err : order(j, STOP, 0, NULL, NULL);
}

static int follow(struct wire_job *j)
{
    struct word word = {0, 0};
    int64_t ns, cpu_ns;
    int err = 0;

    while (!err && word.which != STOP) {
        err = dp_comm_broadcast(j->comm, &word, sizeof(word), 0);
        if (!err && word.which != STOP)
            err = do_together(j, word, &ns, &cpu_ns);
    }
    return err;
}

/* ---- a rank ---------------------------------------------------------------------------------- */

/* Before anything is measured, so that no page is touched for the first time then. */
static int take_buffers(struct wire_job *j)
{
    int err = 0;

    j->buffer = malloc(WIRE_BIGGEST);
    j->other = malloc(WIRE_BIGGEST);
    if (!j->buffer || !j->other)
        return command_broke("no memory for messages of 64 MiB"), DP_ENOMEM;
    memset(j->buffer, 1, WIRE_BIGGEST);
    memset(j->other, 2, WIRE_BIGGEST);
    if (strcmp(j->transport, "shm"))
        return 0;
    err = dp_shared_alloc(WIRE_BIGGEST, -1, (void **)&j->shared_buffer);
    return err ? err : dp_shared_alloc(WIRE_BIGGEST, -1, (void **)&j->shared_other);
}

static void give_buffers_back(struct wire_job *j)
{
    free(j->buffer);
    free(j->other);
    dp_shared_free(j->shared_buffer);
    dp_shared_free(j->shared_other);
}

static int run_rank(void *user, const struct dp_comm_config *config, struct dp_abort *why)
{
    struct wire_job *j = user;

    j->rank = config->rank;
    command_mute(true); /* launch_ranks says what went wrong, once */
    int err = launch_join(config, &j->comm);
    if (!err && j->others)
        dp_comm_set_deadline(j->comm, OTHERS_NS);
    bench_pin(config->rank);
    if (!err)
        err = take_buffers(j);
    if (!err && j->others)
        err = j->others->meet(j);
    if (!err)
        err = config->rank ? follow(j) : lead(j);
    if (err) {
        *why = (struct dp_abort){.rank = config->rank, .error = err};
        snprintf(why->text, sizeof(why->text), "%s", dp_last_error());
    }
    dp_comm_close(j->comm);
    give_buffers_back(j);
    return err;
}

/* ---- the command ----------------------------------------------------------------------------- */

static int measure(const struct wire_values *v, const struct wire_others *others,
                   const char *transport)
{
    struct wire_job job = {.v = v, .others = others, .transport = transport,
                           .methods = others ? others->methods : wire_methods,
                           .method_count = others ? others->method_count : wire_method_count};

    if (pipe(job.there))
        return command_broke("cannot make a pipe: %s", strerror(errno));
    if (pipe(job.back)) {
        close(job.there[0]);
        close(job.there[1]);
        return command_broke("cannot make a pipe: %s", strerror(errno));
    }
    int status = others ? others->open(&job) : 0;
    if (!status)
        status = launch_ranks(2, 0, transport, run_rank, &job);
    if (others)
        others->close(&job);
    for (int i = 0; i < 2; i++) {
        close(job.there[i]);
        close(job.back[i]);
    }
    return status;
}

static const char about[] =
    "Time messages between two processes, each on a core of its own: one at a time\n"
    "there and back, and streams of large ones; what a rank costs that waits for\n"
    "10 ms; and both again while a thread that computes shares each core. Targets\n"
    "are those of the machine that this library is developed on.";

static const char *const transports[] = {"both", "shm", "tcp", NULL};
static const struct arg args[] = {
    {"transport", 0, NULL, "which of them", ARG_CHOICE,
     .offset = offsetof(struct wire_values, transport), .fallback = "both", .choices = transports},
    {"sockets", 0, "N", "of a tcp connection; 0: as it chooses itself", ARG_INT,
     .offset = offsetof(struct wire_values, sockets),
     .fallback = "0"}, /* the library says how many are too many */
};

static void say_what_is_wrong(void *status, const struct dp_option_info *o)
{
    if (!strcmp(o->name, "DUALPIPE_WIRE_TCP_SOCKETS") && o->problem)
        *(int *)status = command_misused("--sockets %s: expected %s", o->value, o->expected);
}

/* The status to end with. */
static int choose_sockets(int64_t count)
{
    char text[24];
    int status = 0;

    snprintf(text, sizeof(text), "%lld", (long long)count);
    setenv("DUALPIPE_WIRE_TCP_SOCKETS", text, 1);
    dp_options_each(say_what_is_wrong, &status);
    return status;
}

int wire_bench(int argc, char **argv, const struct wire_others *others)
{
    const struct arg_group groups[] = {ARG_GROUP("what", args), bench_group, {0}};
    const struct usage usage = {
        .command = others ? others->command : "dualpipe bench wire", .groups = groups,
        .about = others ? others->about : about,
        .examples = others ? others->examples
                           : "  dualpipe bench wire\n"
                             "  dualpipe bench wire --transport tcp --samples 9\n"
                             "  dualpipe bench wire --transport tcp --sockets 4\n",
    };
    struct operands operands;
    struct wire_values v;
    int status;

    if (!args_parse(&usage, argc, argv, &v, &operands, &status))
        return status;
    if (v.sockets && (status = choose_sockets(v.sockets)))
        return status;
    if (strcmp(v.transport, "both"))
        return measure(&v, others, v.transport);
    status = measure(&v, others, "shm");
    return status ? status : measure(&v, others, "tcp");
}

int run_bench_wire(int argc, char **argv)
{
    return wire_bench(argc, argv, NULL);
}
