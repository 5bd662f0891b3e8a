/* SPDX-License-Identifier: Apache-2.0
 *
 * shuffled_comm.h - a communicator over another one, whose receives from any rank get messages in
 * another order than the one in which they came: also those of one sender, which keep theirs
 * otherwise.
 */
#ifndef DP_TESTS_SHUFFLED_COMM_H
#define DP_TESTS_SHUFFLED_COMM_H

#include <dualpipe/comm.h>

/* room: of the longest message. The order follows from the seed, and from when messages come. The
 * new one is closed with dp_comm_close, and inner, which must be used through it only, after it.
 * NULL: no memory. */
struct dp_comm *shuffled_comm_new(struct dp_comm *inner, size_t room, uint64_t seed);
/* A number made of the order of all messages that were received since the last call. */
uint64_t shuffled_comm_order(struct dp_comm *comm);

#endif
