/* SPDX-License-Identifier: Apache-2.0
 *
 * net_run.c - the pairs of processes: rank 0 takes the samples and tells the others what to do.
 */
#include "config.h"

#include "bench/net.h"
#include "command.h"
#include "launch.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    STOP = -1,
    SAMPLE_MS = 120,
    POLLS_BETWEEN_LOOKS = 4096, /* at the clock, while nothing moves */
    TESTS_MAX = NET_LIST_MAX * (NET_LIST_MAX + 1),
    LINE_BYTES = 64,
    DEADLINE_S = 60
};
static const size_t room_limit = 64 << 20;
/* On a busy machine a sample takes its time, and the other pairs wait for it. */
static const int64_t comm_deadline_ns = INT64_C(600000000000);

struct job {
    const struct net_values *values;
    const struct net_contender *contenders;
    int contender_count, test_count;
    struct net_test tests[TESTS_MAX];
    size_t room;
    int host_count;
};

/* ---- what every way uses --------------------------------------------------------------------- */

int net_side_fail(struct net_side *s, int err, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(s->why, sizeof(s->why), fmt, args);
    va_end(args);
    return err;
}

int net_side_idle(struct net_side *s)
{
    if (++s->idle % POLLS_BETWEEN_LOOKS)
        return 0;
    sched_yield(); /* where there is one core for both sides */
    const int64_t at_ns = now_ns();
    if (!s->idle_since_ns)
        s->idle_since_ns = at_ns;
    if (at_ns - s->idle_since_ns < DEADLINE_S * INT64_C(1000000000))
        return 0;
    return net_side_fail(s, DP_ETIMEDOUT, "%s: nothing has moved for %d s",
                         s->contender->file, DEADLINE_S);
}

static size_t stride_of(size_t size)
{
    return (size + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
}

size_t net_slot(size_t room, size_t size, int connection, int at)
{
    const size_t stride = stride_of(size), slots = room / stride;

    return ((size_t)connection * NET_WINDOW + (size_t)at % NET_WINDOW) % slots * stride;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void list_tests(struct job *j)
{
    const struct net_list *sizes = &j->values->sizes, *connections = &j->values->connections;

    for (int i = 0; i < sizes->count; i++)
        j->tests[j->test_count++] = (struct net_test){false, (size_t)sizes->items[i], 1};
    for (int k = 0; k < connections->count; k++)
        for (int i = 0; i < sizes->count; i++)
            j->tests[j->test_count++] = (struct net_test){true, (size_t)sizes->items[i],
                                                          (int)connections->items[k]};
}

static double largest(const struct net_list *list)
{
    double most = 0;

    for (int i = 0; i < list->count; i++)
        most = list->items[i] > most ? list->items[i] : most;
    return most;
}

/* NET_WINDOW messages of each connection lie side by side, as far as that is not too much. */
static size_t room_for(const struct net_values *v)
{
    const size_t stride = stride_of((size_t)largest(&v->sizes));
    const size_t all = stride * NET_WINDOW * (size_t)largest(&v->connections);

    return all <= room_limit ? all : stride <= room_limit ? room_limit : stride;
}

/* ---- a rank ---------------------------------------------------------------------------------- */

/* What all ranks are told, and what they answer. */
struct order {
    int32_t contender, test, times;
};
struct answer {
    int64_t cpu_ns, ns;
    char host[40]; /* its boot_id */
};

static void read_host(char *out, size_t len)
{
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");

    memset(out, 0, len);
    if (f && !fgets(out, (int)len, f))
        *out = '\0';
    if (f)
        fclose(f);
}

static int carry_out(struct job *j, struct net_side *s, const struct order *o, int64_t *ns)
{
    const struct net_test *t = &j->tests[o->test];
    int64_t began = now_ns();
    int err = t->is_stream ? net_stream(s, t->size, t->connections, o->times)
                           : net_ping_pong(s, t->size, o->times);

    *ns = now_ns() - began;
    return err;
}

/* All ranks: receive the order; those that it names carry it out and tell each other. ns: how long
 * side 0 took. */
static int do_order(struct job *j, struct net_side *s, struct order *o, int64_t *ns)
{
    struct answer mine = {0}, all[2 * NET_PLUGINS_MAX];
    int err = dp_comm_broadcast(s->comm, o, sizeof(*o), 0);

    if (err || o->contender == STOP)
        return err;
    read_host(mine.host, sizeof(mine.host));
    mine.cpu_ns = -bench_self_ns();
    if (o->contender == dp_comm_rank(s->comm) / 2)
        err = carry_out(j, s, o, &mine.ns);
    mine.cpu_ns += bench_self_ns();
    if (!err)
        err = dp_comm_allgather(s->comm, &mine, all, sizeof(mine));
    if (err)
        return err;
    for (int r = 0; r < dp_comm_size(s->comm); r++)
        if (strcmp(all[r].host, mine.host) != 0)
            j->host_count = 2; /* what is done there is no load here */
        else if (r != dp_comm_rank(s->comm))
            bench_add_own(all[r].cpu_ns);
    *ns = all[2 * o->contender].ns;
    return 0;
}

/* ---- the lead -------------------------------------------------------------------------------- */

struct sampler {
    struct job *job;
    struct net_side *side;
    int contender, test, times; /* times that fill a sample; 0: not known yet */
};

static int order(void *user, int times, int64_t *ns)
{
    const struct sampler *s = user;
    struct order o = {s->contender, s->test, times};

    return do_order(s->job, s->side, &o, ns);
}

static int sample(void *user, double *figures)
{
    struct sampler *s = user;
    const struct net_test *t = &s->job->tests[s->test];
    int64_t ns = 1;
    int err = s->times ? 0 : bench_find_times(order, s, SAMPLE_MS, &s->times);

    if (!err)
        err = order(s, s->times, &ns);
    const double messages = (double)s->times * t->connections;
    if (t->is_stream) {
        figures[0] = messages * (double)t->size / (double)ns;
        figures[1] = messages / (double)ns * 1e3;
    } else {
        figures[0] = (double)ns / 2 / s->times / 1e3;
    }
    return err;
}

static struct bench_case case_of(struct sampler *s)
{
    if (s->job->tests[s->test].is_stream)
        return (struct bench_case){
            .sample = sample, .user = s, .figure_count = 2,
            .figures = {{.what = "bandwidth", .unit = "GB/s", .target_is_floor = true},
                        {.what = "rate", .unit = "million/s", .target_is_floor = true}}};
    return (struct bench_case){.sample = sample, .user = s, .figure_count = 1,
                               .figures = {{.what = "latency", .unit = "us"}}};
}

/* For each test all contenders, one after the other: their samples alternate. */
static int measure(struct job *j, struct net_side *side, struct bench_case *cases,
                   struct sampler *samplers, struct net_result *results)
{
    int count = 0;

    for (int t = 0; t < j->test_count; t++)
        for (int c = 0; c < j->contender_count; c++) {
            samplers[count] = (struct sampler){.job = j, .side = side, .contender = c, .test = t};
            cases[count] = case_of(&samplers[count]);
            results[count] = (struct net_result){&j->tests[t], c, &cases[count]};
            count++;
        }
    int err = bench_run(cases, count, &j->values->common);
    if (err)
        return err;
    net_print(&(struct net_report){.values = j->values, .contenders = j->contenders,
                                   .contender_count = j->contender_count, .tests = j->tests,
                                   .test_count = j->test_count, .results = results,
                                   .result_count = count, .host_count = j->host_count});
    return do_order(j, side, &(struct order){.contender = STOP}, NULL);
}

static int lead(struct job *j, struct net_side *side)
{
    const size_t most = (size_t)(j->test_count * j->contender_count);
    struct bench_case *cases = calloc(most, sizeof(*cases));
    struct sampler *samplers = calloc(most, sizeof(*samplers));
    struct net_result *results = calloc(most, sizeof(*results));
    int err = cases && samplers && results
                  ? measure(j, side, cases, samplers, results)
                  : net_side_fail(side, DP_ENOMEM, "no memory for %zu figures", most);

    free(cases);
    free(samplers);
    free(results);
    return err;
}

static int follow(struct job *j, struct net_side *side)
{
    struct order o = {0};
    int64_t ns;
    int err = 0;

    while (!err && o.contender != STOP)
        err = do_order(j, side, &o, &ns);
    return err;
}

static int open_side(struct job *j, struct net_side *s)
{
    s->out = malloc(j->room);
    s->in = malloc(j->room);
    if (!s->out || !s->in)
        return net_side_fail(s, DP_ENOMEM, "no memory for two buffers of %zu bytes", j->room);
    memset(s->out, 1, j->room);
    memset(s->in, 2, j->room);
    return net_open(s);
}

static int run_side(struct job *j, struct net_side *s)
{
    int err = open_side(j, s);

    if (!err)
        err = dp_comm_barrier(s->comm);
    if (!err)
        err = dp_comm_rank(s->comm) ? follow(j, s) : lead(j, s);
    net_close(s);
    free(s->out);
    free(s->in);
    return err;
}

static int run_rank(void *user, const struct dp_comm_config *config, struct dp_abort *why)
{
    struct job *j = user;
    struct net_side s = {.values = j->values, .contender = &j->contenders[config->rank / 2],
                         .side = config->rank % 2,
                         .connections = (int)largest(&j->values->connections), .room = j->room};

    command_mute(true); /* launch_ranks says what went wrong, once */
    bench_pin(s.side); /* sides 0 on one core, sides 1 on another */
    int err = launch_join(config, &s.comm);
    net_set_environment(s.contender);
    if (!err) {
        dp_comm_set_deadline(s.comm, comm_deadline_ns);
        err = run_side(j, &s);
    }
    if (err) {
        *why = (struct dp_abort){.rank = config->rank, .error = err};
        snprintf(why->text, sizeof(why->text), "%.*s", (int)sizeof(why->text) - 1,
                 *s.why ? s.why : dp_last_error());
    }
    dp_comm_close(s.comm);
    return err;
}

/* ---- the pairs -------------------------------------------------------------------------------- */

static int run_launched(struct job *j, const struct dp_comm_config *config)
{
    struct dp_abort why;

    launch_alone();
    int err = run_rank(j, config, &why);
    command_mute(false);
    return err ? command_broke("rank %d failed: %s", why.rank, why.text) : EXIT_OK;
}

int net_run(const struct net_values *values, const struct net_contender *contenders, int count,
            const struct dp_comm_config *launched)
{
    struct job job = {.values = values, .contenders = contenders, .contender_count = count,
                      .room = room_for(values), .host_count = 1};

    list_tests(&job);
    if (launched->size)
        return run_launched(&job, launched);
    return launch_ranks(2 * count, 0, "shm", run_rank, &job);
}
