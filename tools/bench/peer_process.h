/* SPDX-License-Identifier: Apache-2.0
 *
 * peer_process.h - run a program of somebody else's, or two that talk to each other, each on a core of
 * its own, and read what the client prints.
 */
#ifndef DP_TOOLS_BENCH_PEER_PROCESS_H
#define DP_TOOLS_BENCH_PEER_PROCESS_H

#include <stdbool.h>
#include <stddef.h>

enum { PEER_OUTPUT_MAX = 4096 };

/* Commands are words with one space between two; those that begin with "@" are filled in. */
struct peer_command {
    const char *server; /* listens on TCP port @port; NULL: none */
    const char *client;
    const char *environment; /* "NAME=VALUE NAME=VALUE" */
    size_t size;
    int times;
};

/* Whether the command's program is found in PATH. */
bool peer_process_is_installed(const char *command);

/* Start the server, wait until it listens, run the client to its end, then the server. output gets the
 * end of what the client prints. DP_EIO with the reason in why; whatever was started has ended then. */
int peer_process_run(const struct peer_command *command, char output[PEER_OUTPUT_MAX], char *why,
                     size_t why_len);

#endif
