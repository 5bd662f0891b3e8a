/* SPDX-License-Identifier: Apache-2.0
 *
 * profiler.h - the core of the profiler plugin: communicators and what was sent in them. It knows
 * no version of NCCL; events.c reads the descriptors of all versions. What travels over the network is
 * in network.h.
 *
 * NCCL calls from many threads and uses contexts after it has finalized them. So a context is a
 * number of a slot and of its use, which is checked under the slot's lock; a stale one is counted
 * and ignored.
 */
#ifndef DPN_PROFILER_PROFILER_H
#define DPN_PROFILER_PROFILER_H

#include "nccl-plugin/profiler/network.h"

#include <dualpipe/dualpipe.h>

#include <sys/types.h>

/* What is known of a communicator; ranks 0: not told (versions 1 to 3). */
struct dpn_profiled {
    uint64_t hash;    /* the same on every rank */
    const char *name; /* may be NULL; copied */
    int rank, ranks, nodes;
};

/* Begin to count; *context is never NULL on success. DP_ENOMEM: too many communicators at once. */
int dpn_profiler_open(const struct dpn_profiled *comm, void **context);
/* Write the communicator's line, if DUALPIPE_PROFILER_TRAFFIC asks for it, and end it. */
void dpn_profiler_close(void *context);

/* The rank and the hash of a communicator whose init did not tell them. */
void dpn_profiler_identify(void *context, uint64_t hash, const char *name, int rank);
/* The communicator's own rank has sent bytes to peer. Returns the event's handle, NULL without the
 * events of the network. */
void *dpn_profiler_sent(void *context, int peer, uint64_t bytes);
/* It will receive from peer, which counts the bytes. The same. */
void *dpn_profiler_received(void *context, int peer, uint64_t bytes);
/* It takes part in a collective; bytes: the count that NCCL reports, times the size of its type. */
void *dpn_profiler_collective(void *context, enum dpn_function function, uint64_t bytes);

/* Whose events of the network these are. false: of no communicator that there is. */
bool dpn_profiler_comm(void *context, struct dpn_network_comm *out);
/* This process, as the descriptors name it. */
pid_t dpn_profiler_pid(void);
/* Whether events of the network are asked for. */
bool dpn_profiler_has_network(void);

#endif
