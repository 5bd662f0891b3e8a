/* SPDX-License-Identifier: Apache-2.0
 *
 * net.h - `dualpipe bench net`: contenders, each a pair of processes, take turns at carrying messages.
 * A contender is a net plugin, driven as NCCL drives it.
 *
 *      rank 0 leads: it names a contender, a test and a number; that pair carries it out
 *      ranks 0, 1    contender 0, sides 0 and 1
 *      ranks 2, 3    contender 1, sides 0 and 1 ...
 *
 * Started by a launcher as one of two ranks, which may be on different machines, it is the one side of
 * the only pair.
 *
 * A pair of its own gives every plugin an environment of its own, and keeps its crashes to itself.
 */
#ifndef DP_TOOLS_BENCH_NET_H
#define DP_TOOLS_BENCH_NET_H

#include "bench/bench.h"

#include <dualpipe/comm.h>

enum {
    NET_PLUGINS_MAX = 8,
    NET_LIST_MAX = 16,
    NET_CONNECTIONS_MAX = 64,
    NET_WINDOW = 8, /* NCCL has at most so many requests of a connection in flight */
    NET_WHY_LEN = 1024 /* a path and a sentence */
};

struct net_list {
    int count;
    double items[NET_LIST_MAX];
};

/* What the command line says. */
struct net_values {
    struct bench_options common;
    struct arg_list plugins;
    struct net_list sizes, connections;
    const char *device;
    int64_t abi; /* 0: the newest */
};

/* What a plugin says of itself. */
struct net_facts {
    char plugin[64], device[64];
    int version, device_number, device_count, speed_mbps;
};

struct net_side;

struct net_contender {
    char label[2];     /* "A", "B", ... */
    char *assignments; /* "NAME=VALUE NAME=VALUE" in front of the file; may be empty */
    const char *file;
    struct net_facts facts;
};

/* One process of a pair. */
struct net_side {
    const struct net_values *values;
    const struct net_contender *contender;
    struct dp_comm *comm; /* for control */
    int side;             /* 0 sends streams */
    int connections;      /* most */
    size_t room;          /* bytes of each buffer: a multiple of the largest message */
    char *out, *in;
    int64_t idle_since_ns;
    unsigned idle;        /* polls in vain */
    char why[NET_WHY_LEN];
    struct connections *state; /* of the plugin */
};

/* Say in side->why what went wrong, and return err. */
int net_side_fail(struct net_side *side, int err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* To call after a poll in vain: DP_ETIMEDOUT if nothing has moved for a minute. */
int net_side_idle(struct net_side *side);
static inline void net_side_moved(struct net_side *side)
{
    side->idle = 0;
    side->idle_since_ns = 0;
}
/* Where message `at` of a connection lies in a buffer. */
size_t net_slot(size_t room, size_t size, int connection, int at);

/* What a side does with its plugin; both call the same. 0, or an error after net_side_fail. */
int net_open(struct net_side *side);
/* One message there, one back, `times` times. */
int net_ping_pong(struct net_side *side, size_t size, int times);
/* `times` messages on each connection from side 0 to side 1, NET_WINDOW of them in flight. */
int net_stream(struct net_side *side, size_t size, int connections, int times);
void net_close(struct net_side *side);

/* Load the plugin in a process that ends at once, to see what it is. 0, or an EXIT_ value; one line
 * has been printed that says why it cannot be measured. */
int net_probe(const struct net_values *values, struct net_contender *contender);
/* As a rank: set what stands in front of the file. */
void net_set_environment(const struct net_contender *contender);

/* ---- tests ----------------------------------------------------------------------------------- */

/* A row of the report. */
struct net_test {
    bool is_stream;
    size_t size;
    int connections;
};

struct net_result {
    const struct net_test *test;
    int contender;
    struct bench_case *measured; /* latency: us. stream: GB/s, million messages a second */
};

struct net_report {
    const struct net_values *values;
    const struct net_contender *contenders;
    int contender_count, test_count, result_count, host_count;
    const struct net_test *tests;
    const struct net_result *results;
};

/* All ranks of all pairs, until the lead has its samples. With launched->size 2 this process is one
 * rank of the only pair, and a launcher has started the other one. Returns an EXIT_ value. */
int net_run(const struct net_values *values, const struct net_contender *contenders, int count,
            const struct dp_comm_config *launched);
/* What the lead does with its samples. */
void net_print(const struct net_report *report);

#endif
