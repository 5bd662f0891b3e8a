/* SPDX-License-Identifier: Apache-2.0
 *
 * peer_process.h - run a peer's program, or two that talk to each other, each on a core of
 * its own, and read what the client prints.
 */
#ifndef DP_TESTS_BENCH_PEER_PROCESS_H
#define DP_TESTS_BENCH_PEER_PROCESS_H

#include "tests/bench/peer_text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PEER_OUTPUT_MAX = 4096 };

/* Its words are filled in, see peer_text.h. */
struct peer_command {
    const char *server; /* listens on TCP port @port; NULL: none */
    const char *client;
    const char *environment; /* "NAME=VALUE NAME=VALUE" */
};

/* Start the server, wait until it listens, run the client to its end, then the server. output gets
 * the end of what the client prints. DP_EIO with the reason in why; whatever was started has ended
 * then. */
int peer_process_run(const struct peer_command *command, struct peer_load load,
                     char output[PEER_OUTPUT_MAX], char *why, size_t why_len);

/* A peer that lives between its tests, and sleeps then: a line of its standard input is one test.
 * The command outlives it. */
struct peer_process;
int peer_process_open(const struct peer_command *command, struct peer_process **out, char *why,
                      size_t why_len);
/* Give the order to both sides, read what the client prints until a line is the answer, and wait
 * until both sleep again. */
int peer_process_order(struct peer_process *p, const char *order, struct peer_load load,
                       bool (*is_answer)(void *user, const char *line), void *user, char *why,
                       size_t why_len);
/* CPU time of all its processes so far. */
int64_t peer_process_cpu_ns(const struct peer_process *p);
/* At the end of its input it ends. Of those who share it by fork, one does this, and last. NULL is
 * fine. */
void peer_process_close(struct peer_process *p);

#endif
