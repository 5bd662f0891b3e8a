/* SPDX-License-Identifier: Apache-2.0
 *
 * network.h - the events of NCCL's progress thread: which chunk of which operation travels to which
 * rank, over which rail, and what it waits for. They are counted by flow (profiler/counters.h) and
 * recorded for the trace (profiler/trace.h).
 *
 *      collective, send        an operation, which stays known for a while after it was queued
 *        proxy operation       its part over one channel to one peer
 *          step                a chunk; its states say what it waits for
 *            net plugin        the rail
 *
 * Handles are numbers that are never used again, as NCCL holds them longer than it should. Nothing is
 * allocated. Any thread.
 */
#ifndef DPN_PROFILER_NETWORK_H
#define DPN_PROFILER_NETWORK_H

#include "nccl-plugin/profiler/page.h"

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

#endif
