/* SPDX-License-Identifier: Apache-2.0
 *
 * wire.h - what the parts of `dualpipe bench wire` share: a rank, and the ways to move messages.
 */
#ifndef DP_TOOLS_BENCH_WIRE_H
#define DP_TOOLS_BENCH_WIRE_H

#include "bench/bench.h"

#include <dualpipe/comm.h>

enum { WIRE_METHODS_MAX = 32 };
enum { WIRE_TURN_MS = 40 }; /* beside peers */
#define WIRE_BIGGEST ((size_t)64 << 20) /* message */

/* ---- peers: other programs that do the same (tests/bench) ------------------------------------ */

enum { PEERS_MAX = 4 }; /* beside one transport */

/* Half of a message there and one back, in us; or messages of one size one way, in GB/s. */
enum peer_test { PEER_LATENCY, PEER_STREAM, PEER_TESTS };

struct peer;

/* What one peer is to do. */
struct peer_run {
    const struct peer *peer;
    const char *name; /* of the peer */
    enum peer_test test;
    size_t size;
    int times; /* messages that fill a turn */
};

struct wire_peer_ops {
    /* The peers that stand beside our transport "shm" or "tcp" and can do this test here: each does
     * it once, to see how often it must for a turn of turn_ms. A peer that fails is left out from
     * then on, and a line on standard error says why. Most stay started from then on, asleep
     * between their turns. Returns how many there are. */
    int (*find)(const char *transport, enum peer_test test, size_t size, int turn_ms,
                struct peer_run runs[PEERS_MAX]);
    /* A turn: us, or GB/s. Its processes keep to the first two cores, as ours do. DP_EIO if it
     * fails: why has been printed. */
    int (*turn)(const struct peer_run *run, double *figure);
    /* CPU time so far of all peers that are started. */
    int64_t (*cpu_ns)(void);
    /* The peers that are started end. */
    void (*end)(void);
};

/* The command, with peers, or NULL. */
int wire_bench(int argc, char **argv, const struct wire_peer_ops *peers);

/* ---- a run ----------------------------------------------------------------------------------- */

struct wire_values {
    struct bench_options common;
    const char *transport;
    int64_t sockets; /* of a tcp connection; 0: as it chooses itself */
};

/* Those that can do what a method does. */
struct wire_peers {
    struct peer_run runs[PEERS_MAX];
    int count;
};

struct wire_job {
    const struct wire_values *v;
    const struct wire_peer_ops *peer_ops; /* NULL: without peers */
    const char *transport;
    int there[2], back[2]; /* pipes between the ranks, as something to compare with */
    struct wire_line *lines; /* [2] shared by the ranks: there, and back */
    struct wire_peers peers[WIRE_METHODS_MAX];
    /* In each rank's process: */
    struct dp_comm *comm;
    int rank;
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
/* Both ranks call it once: tell each other where their buffers are, and see which of them may copy. */
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
