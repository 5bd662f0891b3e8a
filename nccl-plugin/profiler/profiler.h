/* SPDX-License-Identifier: Apache-2.0
 *
 * profiler.h - the core of the profiler plugin: communicators and what was sent in them. It knows
 * no version of NCCL; events.c reads the descriptors of all versions. What travels over the network is
 * below.
 *
 * NCCL calls from many threads and uses contexts after it has finalized them. So a context is a
 * number of a slot and of its use, which is checked under the slot's lock; a stale one is counted
 * and ignored.
 */
#ifndef DPN_PROFILER_PROFILER_H
#define DPN_PROFILER_PROFILER_H

#include "nccl-plugin/profiler/page.h"

#include <dualpipe/dualpipe.h>

#include <sys/types.h>

/* ---- the network (network.c) ----------------------------------------------------------------- */

/* The events of NCCL's progress thread: which chunk of which operation travels to which
 * rank, over which rail, and what it waits for. They are counted by flow (profiler/counters.h) and
 * recorded for the trace (trace.c).
 *
 *      collective, send        an operation, which stays known for a while after it was queued
 *        proxy operation       its part over one channel to one peer
 *          step                a chunk; its states say what it waits for
 *            net plugin        the rail
 *
 * Handles are numbers that are never used again, as NCCL holds them longer than it should. Nothing is
 * allocated. Any thread.
 */

/* Whose event it is. */
struct dpn_network_comm {
    unsigned counters; /* of the page; DPN_PROFILE_COMMS: unknown */
    uint32_t trace;    /* of the trace's communicators */
};

/* A collective, or a send to a peer (otherwise -1), is queued; sequence counts those of its function.
 */
void *dpn_network_operation(const struct dpn_network_comm *comm, enum dpn_function function, int peer,
                            uint64_t bytes, uint64_t sequence);

struct dpn_network_part {
    void *operation; /* that it is part of, or NULL */
    int peer;
    unsigned channel;
    bool is_send;
};
void *dpn_network_part(const struct dpn_network_comm *comm, const struct dpn_network_part *part);
void *dpn_network_step(void *part, int step);
/* The step's message is given to this rail. */
void dpn_network_rail(void *step, const char *name);

/* Events of a part or a step; other handles, and those that have ended, are ignored. bytes: of the
 * state's arguments, or NULL. */
void dpn_network_state(void *handle, int state, const uint64_t *bytes);
void dpn_network_stop(void *handle);
/* The communicator ends: what it never ended does. */
void dpn_network_close(const struct dpn_network_comm *comm);

/* ---- communicators (profiler.c) -------------------------------------------------------------- */

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

/* ---- events.c: the events of NCCL, read by tables of offsets --------------------------------- */

enum { DPN_PROFILER_VERSIONS = 7 };

/* startEvent of a version: counts sends, collectives and what travels over the network, and writes
 * *handle. Any thread. */
void dpn_profiler_event(int version, void *context, void **handle, const void *descriptor);
/* recordEventState, whose arguments may be NULL. */
void dpn_profiler_state(void *handle, int state, const void *arguments);

/* ---- trace.c: a ring of records, written as Perfetto JSON ------------------------------------ */

enum dpn_trace_kind { DPN_TRACE_QUEUED, DPN_TRACE_SEND, DPN_TRACE_RECEIVE };

struct dpn_trace_record {
    int64_t start_ns, end_ns; /* CLOCK_MONOTONIC */
    uint64_t bytes, sequence, chunks, wait_ns[DPN_WAITS];
    uint32_t comm;
    int32_t peer; /* -1: none */
    uint8_t kind, function, channel, rail;
};

/* A communicator of the trace; all of them are kept. */
uint32_t dpn_trace_comm(const struct dpn_profiled *comm);
void dpn_trace_add(const struct dpn_trace_record *record);
/* Add all of it to the file of the option, once; nothing without the option. */
void dpn_trace_write(void);

#endif
