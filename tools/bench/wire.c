/* SPDX-License-Identifier: Apache-2.0
 *
 * wire.c - `dualpipe bench wire`: latency and bandwidth of messages between two processes, against
 * what memcpy and a pipe do on the same machine in the same run; what a rank costs that only waits;
 * and what becomes of it all where other threads want the cores.
 *
 * Rank 0 takes the samples and tells rank 1 what to do: which case, how often.
 */
#include "config.h"

#include "bench/bench.h"
#include "command.h"
#include "commands.h"
#include "launch.h"

#include <dualpipe/comm.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SAMPLE_MS = 150, WINDOW = 4, STOP = -1, BIGGEST = 64 << 20, PIPE_CHUNK = 64 << 10 };

struct values {
    struct bench_options common;
    const char *transport;
};

struct job {
    const struct values *v;
    const char *transport;
    int there[2], back[2]; /* pipes between the ranks, as a peer */
    /* In each rank's process: */
    struct dp_comm *comm;
    char *buffer, *other; /* [BIGGEST] each */
};

/* What rank 1 is to do. */
struct word {
    int32_t which; /* of methods, or STOP */
    int32_t times;
};

/* What a method is measured by: us one way, GB/s, % of a core that rank 0 has used. */
enum figure { LATENCY, STREAM, SHARE };
static const char *const units[] = {"us", "GB/s", "%"};

/* A way to move `size` bytes `times` times; both ranks call it. */
struct method {
    const char *what;
    size_t size;
    int (*run)(struct job *j, size_t size, int times);
    enum figure figure;
    double shm_target, tcp_target;
};

/* ---- messages ----------------------------------------------------------------------------------- */

static int wait_all(struct job *j, struct dp_request *requests, int count)
{
    int err = 0;

    for (int i = 0; i < count && !err; i++)
        err = dp_comm_wait(j->comm, &requests[i], 1 - j->comm->rank);
    return err;
}

static int send_one(struct job *j, size_t size, struct dp_request *req)
{
    return dp_comm_isend(j->comm, 1 - j->comm->rank, DP_CHANNEL_ACTIVATION, 0, j->buffer, size, req);
}

static int receive_one(struct job *j, size_t size, struct dp_request *req)
{
    return dp_comm_irecv(j->comm, 1 - j->comm->rank, DP_CHANNEL_ACTIVATION, 0, j->other, size, req);
}

/* One message there, one back. */
static int ping_pong(struct job *j, size_t size, int times)
{
    struct dp_request in, out;
    int err = 0;

    for (int i = 0; i < times && !err; i++) {
        err = receive_one(j, size, &in);
        if (!err && j->comm->rank == 0)
            err = send_one(j, size, &out);
        if (!err)
            err = wait_all(j, &in, 1);
        if (!err && j->comm->rank == 1)
            err = send_one(j, size, &out);
        if (!err)
            err = wait_all(j, &out, 1);
    }
    return err;
}

/* Messages one way, WINDOW of them under way; at the end a word back says that all have come. */
static int stream(struct job *j, size_t size, int times)
{
    int (*start)(struct job *, size_t, struct dp_request *) = j->comm->rank ? receive_one : send_one;
    struct dp_request window[WINDOW], last;
    int err = 0, begun = 0;

    for (int done = 0; done < times && !err; done++) {
        while (!err && begun < times && begun < done + WINDOW) {
            err = start(j, size, &window[begun % WINDOW]);
            begun++;
        }
        if (!err)
            err = wait_all(j, &window[done % WINDOW], 1);
    }
    if (!err)
        err = j->comm->rank ? send_one(j, 1, &last) : receive_one(j, 1, &last);
    return err ? err : wait_all(j, &last, 1);
}

/* ---- waiting, and company ---------------------------------------------------------------------- */

/* Rank 0 waits for a message that is 10 ms away, times over. */
static int idle(struct job *j, size_t size, int times)
{
    static const struct timespec nap = {.tv_nsec = 10 * 1000 * 1000};
    struct dp_request req;
    int err = 0;

    for (int i = 0; i < times && !err; i++) {
        if (j->comm->rank)
            nanosleep(&nap, NULL);
        err = j->comm->rank ? send_one(j, size, &req) : receive_one(j, size, &req);
        if (!err)
            err = wait_all(j, &req, 1);
    }
    return err;
}

static void *burn(void *stop)
{
    while (!atomic_load_explicit((atomic_bool *)stop, memory_order_relaxed))
        ;
    return NULL;
}

/* With a thread beside each rank, on the rank's own core, that computes all the time. spin_ns < 0: as
 * the communicator would have it. */
static int in_company(struct job *j, int64_t spin_ns, size_t size, int times)
{
    int (*run)(struct job *, size_t, int) = size < 1 << 18 ? ping_pong : stream;
    const int64_t usual_ns = j->comm->spin_ns;
    atomic_bool stop = false;
    pthread_t hog;

    int error = pthread_create(&hog, NULL, burn, &stop);
    if (error)
        return command_broke("cannot start a thread: %s", strerror(error)), DP_EIO;
    if (spin_ns >= 0)
        j->comm->spin_ns = spin_ns;
    int err = run(j, size, times);
    j->comm->spin_ns = usual_ns;
    atomic_store(&stop, true);
    pthread_join(hog, NULL);
    return err;
}

static int beside_hogs(struct job *j, size_t size, int times)
{
    return in_company(j, -1, size, times);
}

static int asleep_beside_hogs(struct job *j, size_t size, int times)
{
    return in_company(j, 0, size, times);
}

/* ---- peers -------------------------------------------------------------------------------------- */

static int copy(struct job *j, size_t size, int times)
{
    for (int i = 0; i < times && !j->comm->rank; i++)
        memcpy(j->other, j->buffer, size);
    return 0;
}

static int pipe_read(int fd, char *buffer, size_t size)
{
    while (size) {
        ssize_t len = read(fd, buffer, size);
        if (len <= 0)
            return command_broke("a pipe has ended: %s", strerror(errno)), DP_EIO;
        size -= (size_t)len;
    }
    return 0;
}

static int pipe_write(int fd, const char *buffer, size_t size)
{
    while (size) {
        ssize_t len = write(fd, buffer, size);
        if (len <= 0)
            return command_broke("a pipe has ended: %s", strerror(errno)), DP_EIO;
        size -= (size_t)len;
    }
    return 0;
}

static int pipe_ping_pong(struct job *j, size_t size, int times)
{
    int err = 0;

    for (int i = 0; i < times && !err; i++) {
        if (!j->comm->rank)
            err = pipe_write(j->there[1], j->buffer, size);
        if (!err)
            err = pipe_read(j->comm->rank ? j->there[0] : j->back[0], j->other, size);
        if (!err && j->comm->rank)
            err = pipe_write(j->back[1], j->buffer, size);
    }
    return err;
}

static int pipe_stream(struct job *j, size_t size, int times)
{
    int err = 0;

    for (int i = 0; i < times && !err; i++)
        err = j->comm->rank ? pipe_read(j->there[0], j->other, size)
                            : pipe_write(j->there[1], j->buffer, size);
    if (err)
        return err;
    return j->comm->rank ? pipe_write(j->back[1], j->buffer, 1) : pipe_read(j->back[0], j->other, 1);
}

/* Targets: nine tenths of the best other library's latency, 1.12 to 1.7 times its bandwidth, as
 * measured on two virtual CPUs. Beside hogs it is what they do without spinning, less a tenth. */
static const struct method methods[] = {
    {"8 B", 8, ping_pong, LATENCY, 0.225, 3.26},
    {"4 KiB", 4 << 10, ping_pong, LATENCY, 0, 0},
    {"64 KiB", 64 << 10, ping_pong, LATENCY, 0, 0},
    {"512 KiB", 512 << 10, stream, STREAM, 45, 7.95},
    {"4 MiB", 4 << 20, stream, STREAM, 26.5, 0},
    {"64 MiB", BIGGEST, stream, STREAM, 18.2, 5.95},
    {"waiting, of a core", 8, idle, SHARE, 2, 2},
    {"8 B, a hog on each core", 8, beside_hogs, LATENCY, 0, 0},
    {"8 B, the same without spinning", 8, asleep_beside_hogs, LATENCY, 0, 0},
    {"512 KiB, a hog on each core", 512 << 10, beside_hogs, STREAM, 0, 0},
    {"512 KiB, the same without spinning", 512 << 10, asleep_beside_hogs, STREAM, 0, 0},
    {"  for comparison: a pipe, 8 B", 8, pipe_ping_pong, LATENCY, 0, 0},
    {"  for comparison: a pipe, 64 KiB", PIPE_CHUNK, pipe_stream, STREAM, 0, 0},
    {"  for comparison: memcpy, 512 KiB", 512 << 10, copy, STREAM, 0, 0},
    {"  for comparison: memcpy, 4 MiB", 4 << 20, copy, STREAM, 0, 0},
    {"  for comparison: memcpy, 64 MiB", BIGGEST, copy, STREAM, 0, 0},
};
enum { METHODS = sizeof(methods) / sizeof(methods[0]) };

/* ---- samples, on rank 0 ------------------------------------------------------------------------- */

struct sampler {
    struct job *job;
    int which, times; /* times that fill a sample; 0: not known yet */
};

/* Both ranks do it; the other one's CPU time is added to our own. */
static int do_together(struct job *j, struct word word, int64_t *ns, int64_t *cpu_ns)
{
    int64_t cpu = -bench_self_ns(), all[2];
    int err = dp_comm_barrier(j->comm);

    int64_t began = bench_now_ns();
    if (!err)
        err = methods[word.which].run(j, methods[word.which].size, word.times);
    *ns = bench_now_ns() - began;
    cpu += bench_self_ns();
    *cpu_ns = cpu;
    if (!err)
        err = dp_comm_allgather(j->comm, &cpu, all, sizeof(cpu));
    if (!err)
        bench_add_own(all[1 - j->comm->rank]);
    return err;
}

static int order(struct job *j, int which, int times, int64_t *ns, int64_t *cpu_ns)
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

static double figure_of(const struct method *m, int times, int64_t ns, int64_t cpu_ns)
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
    figures[0] = figure_of(&methods[s->which], s->times ? s->times : 1, ns, cpu_ns);
    return err;
}

static int lead(struct job *j)
{
    static struct bench_case cases[METHODS];
    struct sampler samplers[METHODS];
    bool tcp = !strcmp(j->transport, "tcp");
    char title[64];

    for (int i = 0; i < METHODS; i++) {
        const struct method *m = &methods[i];
        samplers[i] = (struct sampler){.job = j, .which = i};
        cases[i] = (struct bench_case){.sample = sample, .user = &samplers[i], .figure_count = 1,
                                       .figures = {{.what = m->what,
                                                    .unit = units[m->figure],
                                                    .target = tcp ? m->tcp_target : m->shm_target,
                                                    .target_is_floor = m->figure == STREAM}}};
    }
    int err = bench_run(cases, METHODS, &j->v->common);
    if (err)
        return err;
    snprintf(title, sizeof(title), "%s: latency one way, streams", j->comm->ops->name);
    bench_report(title, cases, METHODS, &j->v->common);
    return order(j, STOP, 0, NULL, NULL);
}

static int follow(struct job *j)
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

/* ---- a rank ------------------------------------------------------------------------------------- */

static int run_rank(void *user, const struct dp_comm_config *config, struct dp_abort *why)
{
    struct job *j = user;

    command_mute(true); /* launch_ranks says what went wrong, once */
    int err = dp_comm_open(config, &j->comm);
    bench_pin(config->rank);
    j->buffer = malloc(BIGGEST);
    j->other = malloc(BIGGEST);
    if (!err && (!j->buffer || !j->other))
        err = (command_broke("no memory for messages of 64 MiB"), DP_ENOMEM);
    if (!err) {
        memset(j->buffer, 1, BIGGEST);
        memset(j->other, 2, BIGGEST);
        err = config->rank ? follow(j) : lead(j);
    }
    if (err) {
        *why = (struct dp_abort){.rank = config->rank, .error = err};
        snprintf(why->text, sizeof(why->text), "%s", dp_last_error());
    }
    dp_comm_close(j->comm);
    free(j->buffer);
    free(j->other);
    return err;
}

/* ---- the command -------------------------------------------------------------------------------- */

static int measure(const struct values *v, const char *transport)
{
    struct job job = {.v = v, .transport = transport};

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
    {"transport", 0, NULL, "which of them", ARG_CHOICE, .offset = offsetof(struct values, transport),
     .fallback = "both", .choices = transports},
};

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
                 "are those of the machine that this library is developed on.",
        .groups = groups,
        .examples = "  dualpipe bench wire\n"
                    "  dualpipe bench wire --transport tcp --samples 9\n",
    };
    struct operands operands;
    struct values v;
    int status;

    if (!args_parse(&usage, argc, argv, &v, &operands, &status))
        return status;
    if (strcmp(v.transport, "both"))
        return measure(&v, v.transport);
    status = measure(&v, "shm");
    return status ? status : measure(&v, "tcp");
}
