/* SPDX-License-Identifier: Apache-2.0
 *
 * wire.h - what the parts of `dualpipe bench wire` share: a rank, and the ways to move messages.
 */
#ifndef DP_TOOLS_BENCH_WIRE_H
#define DP_TOOLS_BENCH_WIRE_H

#include "bench/bench.h"
#include "bench/peers.h"

#include <dualpipe/comm.h>

enum { WIRE_METHODS_MAX = 32 };
enum { WIRE_TURN_MS = 40 }; /* beside peers */
#define WIRE_BIGGEST ((size_t)64 << 20) /* message */

struct wire_values {
    struct bench_options common;
    const char *transport;
    int64_t sockets; /* of a tcp connection; 0: as it chooses itself */
    bool peers;
};

/* Those that can do what a method does. */
struct wire_peers {
    struct peer_run runs[PEERS_MAX];
    int count;
};

struct wire_job {
    const struct wire_values *v;
    const char *transport;
    int there[2], back[2]; /* pipes between the ranks, as something to compare with */
    struct wire_line *lines; /* [2] shared by the ranks: there, and back */
    struct wire_peers peers[WIRE_METHODS_MAX];
    /* In each rank's process: */
    struct dp_comm *comm;
    char *buffer, *other; /* [WIRE_BIGGEST] each: what is sent, and what comes */
    char *shared_buffer, *shared_other; /* the same, of the library's shared memory */
    struct wire_place {
        int64_t pid;
        char *buffer, *other; /* in that process */
    } peer;
    bool may_copy_straight; /* both ranks may copy from and to each other's memory */
};

/* What a method is measured by: us one way, GB/s, % of a core that rank 0 has used. */
enum wire_figure { LATENCY, STREAM, SHARE };

/* 0: none. */
struct wire_goal {
    double figure;
    double ratio; /* to the best peer */
};

/* A way to move `size` bytes `times` times; both ranks call it. */
struct wire_method {
    const char *what;
    size_t size;
    int (*run)(struct wire_job *j, size_t size, int times);
    enum wire_figure figure;
    struct wire_goal shm, tcp;
};
extern const struct wire_method wire_methods[];
extern const int wire_method_count;

/* Whether it is what other libraries can do, too. */
bool wire_method_has_peers(const struct wire_method *method);
/* Whether it is a stream from and into shared memory; its peers are those of the stream of that size. */
bool wire_method_shares(const struct wire_method *method);

/* Before there are ranks, and when they have ended. 0, or an exit status: why has been printed. */
int wire_limit_open(struct wire_job *j);
void wire_limit_close(struct wire_job *j);
/* Both ranks call it once: tell each other where their buffers are, and see who may copy. */
int wire_limit_meet(struct wire_job *j);
/* Methods. Both sides copy, straight. */
int wire_limit_copy(struct wire_job *j, size_t size, int times);
/* A number in a line of memory there, and one back. */
int wire_limit_line(struct wire_job *j, size_t size, int times);

/* Rank 0: both ranks do a method so often, once they have warmed up. How long that takes, and what
 * CPU time this one uses. */
int wire_order(struct wire_job *j, int which, int times, int64_t *ns, int64_t *cpu_ns);
/* Rank 0: take all samples, and report. */
int wire_compare(struct wire_job *j);

#endif
