/* SPDX-License-Identifier: Apache-2.0
 *
 * peers.h - other programs that move messages between two processes, measured in turns with ours. A
 * row of the table in peers.c is a peer; whichever are installed take part.
 */
#ifndef DP_TOOLS_BENCH_PEERS_H
#define DP_TOOLS_BENCH_PEERS_H

#include <stdbool.h>
#include <stddef.h>

enum { PEERS_MAX = 8 };

/* Half of a message there and one back, in us; or messages of one size one way, in GB/s. */
enum peer_test { PEER_LATENCY, PEER_STREAM, PEER_TESTS };

struct peer;

/* What one peer is to do, as the user of a bench_case. */
struct peer_run {
    const struct peer *peer;
    const char *name; /* of the peer */
    enum peer_test test;
    size_t size;
    int times; /* messages that fill a sample */
};

/* The peers that stand beside our transport "shm" or "tcp" and can do this test here: each does it
 * once, to see how often it must. Who fails is left out from then on, and a line on standard error
 * says why.
 * Returns how many. */
int peers_find(const char *transport, enum peer_test test, size_t size,
               struct peer_run runs[PEERS_MAX]);

/* For bench_case.sample; user is a struct peer_run. Its processes keep to the first two cores, as
 * ours do. DP_EIO if it fails: why has been printed. */
int peer_sample(void *user, double *figures);

#endif
