/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.h - what a seed says: which faults there are, and what is sent over each connection. Both sides
 * work it out by themselves.
 */
#ifndef DP_TESTS_FAULTS_PLAN_H
#define DP_TESTS_FAULTS_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    PLAN_CONNECTIONS = 4, /* each way */
    PLAN_MESSAGES = 24,   /* over each */
    PLAN_GROUP = 3,       /* the most receives of one irecv */
    PLAN_BYTES = 10000,   /* the longest message */
    PLAN_TEXT = 160,
    PLAN_SHAPES = 4,
};

struct plan_message {
    size_t size; /* what is sent */
    size_t room; /* what is received into, at least size */
    int tag;     /* its place in its group */
};

struct plan {
    uint64_t seed;
    char faults[PLAN_TEXT]; /* FAKE_VERBS_FAULTS */
    bool is_mild;           /* no fault of it may end a connection */
    bool is_fused;          /* over two devices as one */
    int qps;                /* per device */
    bool splits;            /* messages over all of them */
    bool adaptive;          /* packets may overtake each other */
    bool is_for_gpus;       /* messages are in memory of another device, where that can be */
};

void plan_make(uint64_t seed, const char *faults, struct plan *out);
/* Message i of a connection of the rank that sends. */
struct plan_message plan_message(const struct plan *p, int sender, int connection, int i);
/* How many receives begin with this one: 1 ... PLAN_GROUP. */
int plan_group(const struct plan *p, int sender, int connection, int i);
/* The bytes of that message, [plan_message().size]. */
void plan_fill(const struct plan *p, int sender, int connection, int i, unsigned char *out);

#endif
