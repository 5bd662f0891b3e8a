/* SPDX-License-Identifier: Apache-2.0
 *
 * peers.h - other programs that move messages between two processes, measured in turns with ours. A
 * row of the table in peers.c is a peer; those that are installed take part.
 */
#ifndef DP_TESTS_BENCH_PEERS_H
#define DP_TESTS_BENCH_PEERS_H

#include "bench/wire.h"

extern const struct wire_peer_ops peer_ops;

#endif
