/* SPDX-License-Identifier: Apache-2.0
 *
 * profiler_cost.c PLUGIN - what the profiler plugin adds to a job: ns, and instructions where the system
 * counts them, of the calls of NCCL for an operation, and for a chunk on the network. A line of JSON.
 * tests/bench/profiler.sh runs it with different options.
 */
#include "config.h"

#include <dlfcn.h>
#include <linux/perf_event.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { COLL = 2, PROXY_OP = 8, PROXY_STEP = 16, NET_PLUGIN = 128 };
enum { GPU_WAIT = 8, SEND_WAIT, PEER_WAIT = 20 };
/* Turns are shorter than what the scheduler gives a process at once. */
enum { ROUNDS = 400, CHUNKS = 8, RETRIES = 4, TURNS = 501 };

/* Version 5 of the interface. */
static const struct profiler {
    const char *name;
    int (*init)(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks, int rank,
                void *log);
    int (*start)(void *context, void **handle, void *descriptor);
    int (*stop)(void *handle);
    int (*state)(void *handle, int state, void *arguments);
    int (*finalize)(void *context);
} *profiler;
static void *context;
static int mask;

struct descriptor {
    uint64_t type;
    void *parent;
    uint64_t rank;
    char rest[112];
};

static void *start(struct descriptor *d)
{
    void *handle = NULL;

    if (mask & (int)d->type)
        profiler->start(context, &handle, d);
    return handle;
}

static void put(struct descriptor *d, int offset, uint64_t value, size_t size)
{
    memcpy((char *)d + offset, &value, size);
}

/* ---- what NCCL does -------------------------------------------------------------------------- */

static void *operation(void)
{
    struct descriptor d = {.type = COLL};

    put(&d, 32, (uintptr_t) "AllReduce", 8);
    put(&d, 56, 1 << 20, 8);
    put(&d, 72, (uintptr_t) "ncclFloat32", 8);
    void *handle = start(&d);
    profiler->stop(handle);
    return handle;
}

/* A send of a chunk that is tried RETRIES times until the receiver is ready. */
static void chunk(void *part, int number)
{
    struct descriptor d = {.type = PROXY_STEP, .parent = part};
    uint64_t bytes = 512 << 10;

    put(&d, 24, (uint64_t)number, 4);
    void *step = start(&d);
    profiler->state(step, GPU_WAIT, &bytes);
    for (int i = 0; i < RETRIES; i++)
        profiler->state(step, PEER_WAIT, &bytes);
    struct descriptor net = {.type = NET_PLUGIN, .parent = step};
    put(&net, 24, 0x4450 << 16 | 1, 8);
    put(&net, 32, (uintptr_t) "mlx5_0", 8);
    start(&net);
    profiler->state(step, SEND_WAIT, &bytes);
    profiler->stop(step);
}

static void part_of(void *coll)
{
    struct descriptor d = {.type = PROXY_OP, .parent = coll};

    put(&d, 24, (uint64_t)getpid(), 4);
    put(&d, 32, 1, 4);
    put(&d, 44, 1, 4);
    void *part = start(&d);
    for (int i = 0; i < CHUNKS; i++)
        chunk(part, i);
    profiler->stop(part);
}

static void operations(void)
{
    for (int i = 0; i < ROUNDS; i++)
        operation();
}

static void parts(void)
{
    void *coll = operation();

    for (int i = 0; i < ROUNDS / CHUNKS && mask & PROXY_STEP; i++)
        part_of(coll);
}

/* ---- measuring ------------------------------------------------------------------------------- */

static double now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* Of this process in user mode; -1: the system does not count them. */
static double instructions(void)
{
    static int fd = -2;
    uint64_t count;
    struct perf_event_attr about = {.type = PERF_TYPE_HARDWARE,
                                    .size = sizeof(about),
                                    .config = PERF_COUNT_HW_INSTRUCTIONS,
                                    .exclude_kernel = 1,
                                    .exclude_hv = 1};

    if (fd == -2)
        fd = (int)syscall(SYS_perf_event_open, &about, 0, -1, -1, 0);
    return fd >= 0 && read(fd, &count, sizeof(count)) == sizeof(count) ? (double)count : -1;
}

/* The fastest turn: what else runs on the machine makes the others longer. */
static void measure(const char *name, void (*run)(void), const char *end)
{
    double least_ns = 0, least = -1;

    for (int i = 0; i < TURNS; i++) {
        const double began = instructions(), began_ns = now_ns();
        run();
        const double ns = now_ns() - began_ns, count = began < 0 ? -1 : instructions() - began;
        least_ns = !i || ns < least_ns ? ns : least_ns;
        least = !i || count < least ? count : least;
    }
    printf("\"%s_ns\": %.1f, \"%s_instructions\": %.0f%s", name, least_ns / ROUNDS, name,
           least < 0 ? -1 : least / ROUNDS, end);
}

int main(int argc, char **argv)
{
    void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;

    profiler = library ? dlsym(library, "ncclProfiler_v5") : NULL;
    if (!profiler) {
        fprintf(stderr, "profiler-cost: %s\n", argc == 2 ? dlerror() : "expected PLUGIN");
        return 2;
    }
    profiler->init(&context, 1, &mask, "cost", 2, 8, 0, NULL);
    printf("{");
    measure("operation", operations, ", ");
    measure("chunk", parts, "}\n");
    profiler->finalize(context);
    return 0;
}
