/* SPDX-License-Identifier: Apache-2.0
 *
 * peers.h - other programs that move messages between two processes, measured in turns with ours. A
 * row of the table in peers.c is a peer; those that are installed take part.
 */
#ifndef DP_TESTS_BENCH_PEERS_H
#define DP_TESTS_BENCH_PEERS_H

#include <stddef.h>
#include <stdint.h>

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

/* The peers that stand beside our transport "shm" or "tcp" and can do this test here: each does it
 * once, to see how often it must for a turn of turn_ms. A peer that fails is left out from then on,
 * and a line on standard error says why. Most stay started from then on, asleep between their turns.
 * Returns how many there are. */
int peers_find(const char *transport, enum peer_test test, size_t size, int turn_ms,
               struct peer_run runs[PEERS_MAX]);
/* A turn: us, or GB/s. Its processes keep to the first two cores, as ours do. DP_EIO if it fails: why
 * has been printed. */
int peers_turn(const struct peer_run *run, double *figure);
/* CPU time so far of all peers that are started. */
int64_t peers_cpu_ns(void);
/* The peers that are started end. */
void peers_end(void);

#endif
