/* SPDX-License-Identifier: Apache-2.0
 *
 * wire.h - what the parts of `dualpipe bench wire` share: a rank, and the ways to move messages.
 * tests/bench/wire_compare.c sets other libraries beside them.
 */
#ifndef DP_TOOLS_BENCH_WIRE_H
#define DP_TOOLS_BENCH_WIRE_H

#include "bench/bench.h"

#include <dualpipe/comm.h>

enum { WIRE_METHODS_MAX = 32 };
#define WIRE_BIGGEST ((size_t)64 << 20) /* message */

struct wire_values {
    struct bench_options common;
    const char *transport;
    int64_t sockets; /* of a tcp connection; 0: as it chooses itself */
};

struct wire_job {
    const struct wire_values *v;
    const struct wire_others *others; /* NULL: none */
    const struct wire_method *methods;
    int method_count;
    const char *transport;
    int there[2], back[2]; /* pipes between the ranks, as something to compare with */
    /* In each rank's process: */
    struct dp_comm *comm;
    int rank;
    char *buffer, *other; /* [WIRE_BIGGEST] each: what is sent, and what comes */
    char *shared_buffer, *shared_other; /* the same, of the library's shared memory */
};

/* What a method is measured by: us one way, GB/s, % of a core that rank 0 has used. */
enum wire_figure { WIRE_LATENCY, WIRE_STREAM, WIRE_SHARE };

/* A way to move `size` bytes `times` times; both ranks call it. */
struct wire_method {
    const char *what;
    size_t size;
    int (*run)(struct wire_job *j, size_t size, int times);
    enum wire_figure figure;
    double shm, tcp; /* targets; 0: none */
};
int wire_ping_pong(struct wire_job *j, size_t size, int times);
int wire_stream(struct wire_job *j, size_t size, int times);
/* From and into memory that both processes share. */
int wire_stream_shared(struct wire_job *j, size_t size, int times);
extern const struct wire_method wire_methods[];
extern const int wire_method_count;

/* What is measured beside ours. */
struct wire_others {
    const struct wire_method *methods; /* instead of wire_methods */
    int method_count;
    const char *command, *about, *examples;
    /* Before there are ranks, and when they have ended. 0, or an exit status: why has been printed. */
    int (*open)(struct wire_job *j);
    void (*close)(struct wire_job *j);
    int (*meet)(struct wire_job *j);    /* both ranks call it once */
    int (*compare)(struct wire_job *j); /* rank 0: take all samples, and report */
};

/* The command, with others, or NULL. */
int wire_bench(int argc, char **argv, const struct wire_others *others);

/* A method's turns, on rank 0. */
struct wire_runner {
    struct wire_job *job;
    int which, times; /* times that fill a sample; 0: not known yet */
    int sample_ms;
};
int wire_take_turn(struct wire_runner *r, double *figure);
/* Of the method, without `what`. */
struct bench_figure wire_figure(const struct wire_job *j, const struct wire_method *m);
void wire_report(const struct wire_job *j, const struct bench_case *cases, int count);

#endif
