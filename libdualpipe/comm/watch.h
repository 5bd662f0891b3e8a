/* SPDX-License-Identifier: Apache-2.0
 *
 * watch.h - how the processes of a surviving group (survival.h) watch each other: a wire to the two
 * live ranks that follow, in a ring of all ranks, and one to each other rank that this one waits
 * for. The end of a wire is the end of the peer, and is found by both sides:
 *
 *      ... 3 -> 4 -> 5 -> 0 -> 1 ...       and two further:  3 ---> 5, 4 ---> 0, 5 ---> 1
 *
 * If a rank dies, each one before it connects to the next live one, so that the ring closes by
 * itself, however many die at once. What a rank learns it tells over all its wires.
 *
 * The wires are of the kind that messages take, TCP with keep-alives between hosts: no thread has
 * to send anything for a rank that computes. They are read when a rank calls.
 *
 * Threads: those of the communicator.
 */
#ifndef DP_COMM_WATCH_H
#define DP_COMM_WATCH_H

#include "comm/peers.h"
#include "comm/survival.h"

struct dp_watch_wire; /* a wire and the messages on their way */

struct dp_watch {
    struct dp_survival *survival;
    struct dp_peers *peers;
    struct dp_watch_wire *wires;
    int count;
    unsigned added; /* wires since the beginning: a new one has been told nothing */
    int64_t timeout_ns; /* of a host that does not acknowledge */
};

/* Connect to the neighbors, and again after a death. Until it has begun nothing is sent. */
void dp_watch_begin(struct dp_watch *w);
/* Connect to this peer, unless there is a wire. DP_EIO, DP_ENOMEM: this rank cannot, which is no death
 * of the peer but ends this rank's part in the group (dp_survival_end); so do failures of the others. */
int dp_watch_peer(struct dp_watch *w, int peer);
/* Copies the message. A rank that is gone gets it only if there is a wire. */
void dp_watch_tell(struct dp_watch *w, int peer, const void *message, size_t len);
void dp_watch_tell_neighbors(struct dp_watch *w, const void *message, size_t len);
/* Wait until what was told is on its way, at most until then: the caller will not call for long. */
void dp_watch_flush(struct dp_watch *w, int64_t until_ns);
/* Handle what has come. */
void dp_watch_poll(struct dp_watch *w);
/* Fill at most `room`; returns how many. -1: there is work to do now. Disarm comes next. */
int dp_watch_arm(struct dp_watch *w, struct pollfd *fds, int room);
void dp_watch_disarm(struct dp_watch *w);
/* Whether a connection is not made yet, which no descriptor reports. */
bool dp_watch_is_connecting(const struct dp_watch *w);
/* What was sent still arrives. */
void dp_watch_end(struct dp_watch *w);

#endif
