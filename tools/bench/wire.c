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

enum { STOP = -1 };
static const int64_t PEERS_NS = INT64_C(300000000000); /* longest for all peers between two of ours */

/* What rank 1 is to do. */
struct word {
    int32_t which; /* of wire_methods, or STOP */
    int32_t times;
};

/* ---- together -------------------------------------------------------------------------------- */

/* Once around, so that caches and the ways that messages take are what they are in the middle. */
static int warm_up(struct wire_job *j, const struct wire_method *m, int times)
{
    return m->figure == SHARE ? 0 : m->run(j, m->size, 1 + times / 8);
}

/* Both ranks do it; the other one's CPU time is added to our own. */
static int do_together(struct wire_job *j, struct word word, int64_t *ns, int64_t *cpu_ns)
{
    const struct wire_method *m = &wire_methods[word.which];
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

int wire_order(struct wire_job *j, int which, int times, int64_t *ns, int64_t *cpu_ns)
{
    struct word word = {which, times};
    int err = dp_comm_broadcast(j->comm, &word, sizeof(word), 0);

    return err || which == STOP ? err : do_together(j, word, ns, cpu_ns);
}

static int lead(struct wire_job *j)
{
    int err = wire_compare(j);

    return err ? err : wire_order(j, STOP, 0, NULL, NULL);
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
    if (!err && j->peer_ops)
        dp_comm_set_deadline(j->comm, PEERS_NS);
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
            j->peers[i].count =
                j->peer_ops->find(j->transport, test, m->size, WIRE_TURN_MS, j->peers[i].runs);
    }
}

static int measure(const struct wire_values *v, const struct wire_peer_ops *peers,
                   const char *transport)
{
    struct wire_job job = {.v = v, .peer_ops = peers, .transport = transport};

    if (pipe(job.there))
        return command_broke("cannot make a pipe: %s", strerror(errno));
    if (pipe(job.back)) {
        close(job.there[0]);
        close(job.there[1]);
        return command_broke("cannot make a pipe: %s", strerror(errno));
    }
    int status = wire_limit_open(&job);
    if (!status && peers)
        find_peers(&job);
    if (!status)
        status = launch_ranks(2, 0, transport, run_rank, &job);
    if (peers)
        peers->end();
    wire_limit_close(&job);
    for (int i = 0; i < 2; i++) {
        close(job.there[i]);
        close(job.back[i]);
    }
    return status;
}

static const char alone[] =
    "Time messages between two processes, each on a core of its own: one at a time\n"
    "there and back, and streams of large ones; what a rank costs that waits for\n"
    "10 ms; and both again while a thread that computes shares each core. Targets\n"
    "are those of the machine that this library is developed on.";
static const char with_peers[] =
    "Time messages between two processes, each on a core of its own, in short turns\n"
    "with the same messages of other libraries that are installed, and ours over\n"
    "theirs: each turn of theirs is compared with those of ours before and after it.";

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

int wire_bench(int argc, char **argv, const struct wire_peer_ops *peers)
{
    const struct arg_group groups[] = {
        {"what", args, sizeof(args) / sizeof(args[0])}, bench_group, {0},
    };
    const struct usage usage = {
        .command = peers ? "sh tests/bench/wire.sh" : "dualpipe bench wire",
        .about = peers ? with_peers : alone,
        .groups = groups,
        .examples = peers ? "  sh tests/bench/wire.sh --transport shm --samples 15\n"
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
        return measure(&v, peers, v.transport);
    status = measure(&v, peers, "shm");
    return status ? status : measure(&v, peers, "tcp");
}

int run_bench_wire(int argc, char **argv)
{
    return wire_bench(argc, argv, NULL);
}
