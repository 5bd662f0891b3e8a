/* SPDX-License-Identifier: Apache-2.0
 *
 * wire.c - `dualpipe bench wire`: latency and bandwidth of messages between two processes, against
 * what memcpy and a pipe do on the same machine in the same run; what a rank costs that only waits;
 * and what becomes of it all where other threads want the cores.
 *
 * Rank 0 takes the samples and tells rank 1 what to do: which case, how often.
 */
#include "bench/wire.h"

#include "bench/peers.h"
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

enum { SAMPLE_MS = 150, STOP = -1 };
static const int64_t PEERS_NS = INT64_C(300000000000); /* longest for all peers between two of ours */
static const char *const units[] = {"us", "GB/s", "%"};

/* What rank 1 is to do. */
struct word {
    int32_t which; /* of wire_methods, or STOP */
    int32_t times;
};

/* ---- samples, on rank 0 ---------------------------------------------------------------------- */

struct sampler {
    struct wire_job *job;
    int which, times; /* times that fill a sample; 0: not known yet */
};

/* Both ranks do it; the other one's CPU time is added to our own. */
static int do_together(struct wire_job *j, struct word word, int64_t *ns, int64_t *cpu_ns)
{
    int64_t cpu = -bench_self_ns(), all[2];
    int err = dp_comm_barrier(j->comm);

    int64_t began = bench_now_ns();
    if (!err)
        err = wire_methods[word.which].run(j, wire_methods[word.which].size, word.times);
    *ns = bench_now_ns() - began;
    cpu += bench_self_ns();
    *cpu_ns = cpu;
    if (!err)
        err = dp_comm_allgather(j->comm, &cpu, all, sizeof(cpu));
    if (!err)
        bench_add_own(all[1 - j->comm->rank]);
    return err;
}

static int order(struct wire_job *j, int which, int times, int64_t *ns, int64_t *cpu_ns)
{
    struct word word = {which, times};
    int err = dp_comm_broadcast(j->comm, &word, sizeof(word), 0);

    return err || which == STOP ? err : do_together(j, word, ns, cpu_ns);
}

static int run_times(void *user, int times, int64_t *ns)
{
    const struct sampler *s = user;
    int64_t cpu_ns;

    return order(s->job, s->which, times, ns, &cpu_ns);
}

static double figure_of(const struct wire_method *m, int times, int64_t ns, int64_t cpu_ns)
{
    switch (m->figure) {
    case LATENCY:
        return (double)ns / 2 / times / 1e3;
    case STREAM:
        return (double)m->size * times / (double)ns;
    case SHARE:
        break;
    }
    return 100 * (double)cpu_ns / (double)ns;
}

static int sample(void *user, double *figures)
{
    struct sampler *s = user;
    int err = s->times ? 0 : bench_find_times(run_times, s, SAMPLE_MS, &s->times);
    int64_t ns = 1, cpu_ns = 0;

    if (!err)
        err = order(s->job, s->which, s->times, &ns, &cpu_ns);
    figures[0] = figure_of(&wire_methods[s->which], s->times ? s->times : 1, ns, cpu_ns);
    return err;
}

/* ---- beside others --------------------------------------------------------------------------- */

enum { CASES_MAX = WIRE_METHODS_MAX * 2 + PEERS_MAX * WIRE_METHODS_MAX, WHAT_LEN = 64 };

/* The rows of the report: those that are measured, then how ours compare with the peers'. */
struct plan {
    struct wire_job *job;
    struct bench_case cases[CASES_MAX];
    char what[CASES_MAX][WHAT_LEN];
    int count;
    struct sampler samplers[WIRE_METHODS_MAX];
    int own[WIRE_METHODS_MAX]; /* where the method's own row is; its peers' follow */
};

static const struct wire_goal *goal_of(const struct plan *p, const struct wire_method *m)
{
    return strcmp(p->job->transport, "tcp") ? &m->shm : &m->tcp;
}

static struct bench_case *add_row(struct plan *p, const char *what, const char *peer,
                                  struct bench_figure figure)
{
    struct bench_case *c = &p->cases[p->count];
    char *text = p->what[p->count++];

    snprintf(text, WHAT_LEN, "%s%s%s", what, peer ? ", " : "", peer ? peer : "");
    *c = (struct bench_case){.figure_count = 1, .figures = {figure}};
    c->figures[0].what = text;
    return c;
}

static void add_method(struct plan *p, int which)
{
    const struct wire_method *m = &wire_methods[which];
    struct bench_figure figure = {.unit = units[m->figure],
                                  .target = goal_of(p, m)->figure,
                                  .target_is_floor = m->figure == STREAM};

    p->samplers[which] = (struct sampler){.job = p->job, .which = which};
    p->own[which] = p->count;
    struct bench_case *c = add_row(p, m->what, NULL, figure);
    c->sample = sample;
    c->user = &p->samplers[which];
}

static void add_peers(struct plan *p, int which)
{
    const struct wire_method *m = &wire_methods[which];
    const struct wire_peers *peers = &p->job->peers[which];

    for (int i = 0; i < peers->count; i++) {
        struct bench_case *c = add_row(p, m->what, peers->runs[i].name,
                                       (struct bench_figure){.unit = units[m->figure],
                                                             .target_is_floor = m->figure == STREAM});
        c->sample = peer_sample;
        c->user = (void *)&peers->runs[i];
    }
}

static bool is_shown(const struct wire_job *j, const struct wire_method *m)
{
    if (m->run == wire_limit_copy)
        return j->may_copy_straight && !strcmp(j->transport, "shm");
    if (wire_method_shares(m))
        return !strcmp(j->transport, "shm");
    return !j->v->peers || wire_method_has_peers(m);
}

static void make_plan(struct plan *p)
{
    for (int i = 0; i < wire_method_count; i++) {
        if (!is_shown(p->job, &wire_methods[i]))
            continue;
        add_method(p, i);
        add_peers(p, i);
    }
}

/* The method whose peers this one is compared with. */
static int find_like(int which)
{
    if (!wire_method_shares(&wire_methods[which]))
        return which;
    for (int i = 0; i < wire_method_count; i++)
        if (wire_method_has_peers(&wire_methods[i]) &&
            wire_methods[i].size == wire_methods[which].size)
            return i;
    return which;
}

/* One more row: ours over the best peer's, if there is one. */
static void compare(struct plan *p, int which)
{
    const struct wire_method *m = &wire_methods[which];
    const int like = find_like(which);
    const struct wire_peers *peers = &p->job->peers[like];
    const struct bench_case *own = &p->cases[p->own[which]], *first = &p->cases[p->own[like] + 1];
    const struct bench_case *best = first;
    const bool more_is_better = m->figure == STREAM;

    if (!peers->count || !is_shown(p->job, m))
        return;
    for (const struct bench_case *c = first; c < first + peers->count; c++)
        if ((c->figures[0].median > best->figures[0].median) == more_is_better)
            best = c;
    char what[WHAT_LEN];
    snprintf(what, sizeof(what), "%s over %s", m->what, peers->runs[best - first].name);
    struct bench_case *c =
        add_row(p, what, NULL,
                (struct bench_figure){.unit = "x",
                                      .target = goal_of(p, m)->ratio,
                                      .target_is_floor = more_is_better,
                                      .median = own->figures[0].median / best->figures[0].median,
                                      .best = own->figures[0].best / best->figures[0].best});
    c->noisy = own->noisy || best->noisy;
    c->background = own->background > best->background ? own->background : best->background;
    c->count = own->count < best->count ? own->count : best->count;
    for (int i = 0; i < c->count; i++)
        c->samples[i] = (struct bench_sample){
            {own->samples[i].figures[0] / best->samples[i].figures[0]}, c->background};
}

static int lead(struct wire_job *j)
{
    static struct plan p;
    char title[64];

    p.job = j;
    make_plan(&p);
    int err = bench_run(p.cases, p.count, &j->v->common);
    if (err)
        return err;
    for (int i = 0; i < wire_method_count; i++)
        compare(&p, i);
    snprintf(title, sizeof(title), "%s: latency one way, streams", j->comm->ops->name);
    bench_report(title, p.cases, p.count, &j->v->common);
    return order(j, STOP, 0, NULL, NULL);
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

    command_mute(true); /* launch_ranks says what went wrong, once */
    int err = launch_join(config, &j->comm);
    if (!err && j->v->peers)
        j->comm->deadline_ns = PEERS_NS;
    bench_pin(config->rank);
    if (!err)
        err = take_buffers(j);
    if (!err)
        err = wire_limit_meet(j);
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

/* Before there are ranks, which would not wait for each other that long. */
static void find_peers(struct wire_job *j)
{
    for (int i = 0; i < wire_method_count; i++) {
        const struct wire_method *m = &wire_methods[i];
        const enum peer_test test = m->figure == STREAM ? PEER_STREAM : PEER_LATENCY;
        if (wire_method_has_peers(m))
            j->peers[i].count = peers_find(j->transport, test, m->size, j->peers[i].runs);
    }
}

static int measure(const struct wire_values *v, const char *transport)
{
    struct wire_job job = {.v = v, .transport = transport};

    if (v->peers)
        find_peers(&job);
    if (pipe(job.there))
        return command_broke("cannot make a pipe: %s", strerror(errno));
    if (pipe(job.back)) {
        close(job.there[0]);
        close(job.there[1]);
        return command_broke("cannot make a pipe: %s", strerror(errno));
    }
    int status = launch_ranks(2, 0, transport, run_rank, &job);
    for (int i = 0; i < 2; i++) {
        close(job.there[i]);
        close(job.back[i]);
    }
    return status;
}

static const char *const transports[] = {"both", "shm", "tcp", NULL};
static const struct arg args[] = {
    {"transport", 0, NULL, "which of them", ARG_CHOICE,
     .offset = offsetof(struct wire_values, transport),
     .fallback = "both", .choices = transports},
    {"sockets", 0, "N", "of a tcp connection; 0: as it chooses itself", ARG_INT,
     .offset = offsetof(struct wire_values, sockets),
     .fallback = "0"}, /* the library says how many are too many */
    {"peers", 0, NULL, "beside other libraries that are installed", ARG_FLAG,
     .offset = offsetof(struct wire_values, peers)},
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

int run_bench_wire(int argc, char **argv)
{
    const struct arg_group groups[] = {
        {"what", args, sizeof(args) / sizeof(args[0])}, bench_group, {0},
    };
    const struct usage usage = {
        .command = "dualpipe bench wire",
        .about = "Time messages between two processes, each on a core of its own: one at a time\n"
                 "there and back, and streams of large ones; what a rank costs that waits for\n"
                 "10 ms; and both again while a thread that computes shares each core. Targets\n"
                 "are those of the machine that this library is developed on. With --peers:\n"
                 "latency and streams only, in turns with other libraries, and ours over theirs.",
        .groups = groups,
        .examples = "  dualpipe bench wire\n"
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
        return measure(&v, v.transport);
    status = measure(&v, "shm");
    return status ? status : measure(&v, "tcp");
}
