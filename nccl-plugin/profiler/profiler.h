/* SPDX-License-Identifier: Apache-2.0
 *
 * profiler.h - the core of the profiler plugin: communicators and what was sent in them. It knows
 * no version of NCCL; events.c reads the descriptors of all versions.
 *
 * NCCL calls from many threads and uses contexts after it has finalized them. So a context is a
 * number of a slot and of its use, which is checked under the slot's lock; a stale one is counted
 * and ignored.
 */
#ifndef DPN_PROFILER_PROFILER_H
#define DPN_PROFILER_PROFILER_H

#include <dualpipe/dualpipe.h>

/* Functions of NCCL, in the order of their numbers in version 1 of the interface, then the newer
 * ones. */
enum dpn_function {
    DPN_BROADCAST,
    DPN_REDUCE,
    DPN_ALL_GATHER,
    DPN_REDUCE_SCATTER,
    DPN_ALL_REDUCE,
    DPN_SEND_RECV,
    DPN_SEND,
    DPN_RECV,
    DPN_ALL_TO_ALL,
    DPN_GATHER,
    DPN_SCATTER,
    DPN_FUNCTIONS
};
extern const char *const dpn_function_names[DPN_FUNCTIONS];

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
/* The communicator's own rank has sent bytes to peer. */
void dpn_profiler_sent(void *context, int peer, uint64_t bytes);
/* It takes part in a collective; bytes: the count that NCCL reports, times the size of its type. */
void dpn_profiler_collective(void *context, enum dpn_function function, uint64_t bytes);

#endif
