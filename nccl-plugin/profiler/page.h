/* SPDX-License-Identifier: Apache-2.0
 *
 * page.h - what the profiler plugin counts in one process, in a page (base/page_file.h):
 * profiler/counters.c writes it, `dualpipe stat` reads it.
 *
 *      rows: communicators[129], calls of NCCL | rails[33] | flows[2048], what travels over the network
 *
 * Labels: a communicator's hash, name and rank; a rail's name; and of a flow, which leads to one of
 * each, the peer and the way.
 */
#ifndef DPN_PROFILER_PAGE_H
#define DPN_PROFILER_PAGE_H

#include "base/page_file.h"

enum {
    DPN_PROFILE_COMMS = 128, /* its row: of messages of other processes, which go through this one */
    DPN_PROFILE_RAILS = 32,  /* rail 0: not known */
    DPN_PROFILE_FLOWS = 2048,
    DPN_PROFILE_FIRST_RAIL = DPN_PROFILE_COMMS + 1,
    DPN_PROFILE_FIRST_FLOW = DPN_PROFILE_FIRST_RAIL + 1 + DPN_PROFILE_RAILS,
    DPN_PROFILE_NAME_LEN = 64,
    DPN_PROFILE_RAIL_LEN = 120 /* as the names of the net plugin's devices */
};

#define DPN_PROFILE_OTHERS "(others)" /* the name of the last communicator */

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

/* What a chunk on the network waits for. */
enum dpn_profile_wait {
    DPN_WAIT_GPU,     /* for the kernel: to fill a chunk, or to empty one */
    DPN_WAIT_PEER,    /* a sender for the receiver's clear-to-send, a receiver for data */
    DPN_WAIT_NETWORK, /* a sender until the transfer is done */
    DPN_WAIT_FLUSH,   /* a receiver until the data is visible to the GPU */
    DPN_WAITS,
    DPN_WAIT_NONE = DPN_WAITS
};

/* As NCCL calls them. */
static inline const char *dpn_function_name(enum dpn_function function)
{
    static const char *const names[DPN_FUNCTIONS] = {
        [DPN_BROADCAST] = "Broadcast",
        [DPN_REDUCE] = "Reduce",
        [DPN_ALL_GATHER] = "AllGather",
        [DPN_REDUCE_SCATTER] = "ReduceScatter",
        [DPN_ALL_REDUCE] = "AllReduce",
        [DPN_SEND_RECV] = "SendRecv",
        [DPN_SEND] = "Send",
        [DPN_RECV] = "Recv",
        [DPN_ALL_TO_ALL] = "AlltoAll",
        [DPN_GATHER] = "Gather",
        [DPN_SCATTER] = "Scatter",
    };

    return names[function];
}

static inline const char *dpn_wait_name(enum dpn_profile_wait wait)
{
    static const char *const names[DPN_WAITS] = {
        [DPN_WAIT_GPU] = "gpu",
        [DPN_WAIT_PEER] = "peer",
        [DPN_WAIT_NETWORK] = "network",
        [DPN_WAIT_FLUSH] = "flush",
    };

    return names[wait];
}

/* A flow is what one rank sends to, or receives from, another one over one channel of NCCL; its `use` is
 * its key, dpn_profile_key. */
#define DPN_PROFILE_COLUMNS(X)                                                                     \
    /* of a flow: its rows, from 1 on */                                                           \
    X(DPN_PROFILE_COMM, "comm", "", BEFORE, 1)                                                     \
    X(DPN_PROFILE_RAIL, "rail", "", BEHIND, 1)                                                     \
    X(DPN_PROFILE_CHANNELS, "channels", "", GAUGE, 1)                                              \
    /* that are done */                                                                            \
    X(DPN_PROFILE_BYTES, "bytes", "B", COUNTER, 1)                                                 \
    X(DPN_PROFILE_OPERATIONS, "operations", "", COUNTER, 1)                                        \
    X(DPN_PROFILE_CHUNKS, "chunks", "", COUNTER, 1)                                                \
    /* of all chunks, several of which are in flight; those that wait now; their last change */    \
    X(DPN_PROFILE_WAIT_NS, "wait_ns", "ns", COUNTER, DPN_WAITS)                                    \
    X(DPN_PROFILE_WAITING, "waiting", "", GAUGE, DPN_WAITS)                                        \
    X(DPN_PROFILE_STILL_NS, "still_ns", "ns", SINCE, 1)                                            \
    /* of a communicator; of the last one, events for which there was no place */                  \
    X(DPN_PROFILE_LOST, "lost", "", COUNTER, 1)                                                    \
    X(DPN_PROFILE_RANKS, "ranks", "", GAUGE, 1)                                                    \
    X(DPN_PROFILE_NODES, "nodes", "", GAUGE, 1)                                                    \
    X(DPN_PROFILE_CALLS, "calls", "", COUNTER, DPN_FUNCTIONS)                                      \
    X(DPN_PROFILE_CALLS_BYTES, "calls_bytes", "B", COUNTER, DPN_FUNCTIONS)

DP_PAGE_DEFINE(dpn_profile, DPN_PROFILE_COLUMNS, DPN_PROFILE_FIRST_FLOW + DPN_PROFILE_FLOWS,
               .option = "DUALPIPE_PROFILER_STAT", .suffix = ".profile", .magic = "dpnprof",
               .name = "the profiler plugin");

/* comm: its row. Keys are in the order in which flows are shown. */
static inline uint64_t dpn_profile_key(unsigned comm, int peer, bool is_send, unsigned channel)
{
    return (uint64_t)(comm + 1) << 40 | (uint64_t)!is_send << 32 |
           (uint64_t)((uint32_t)peer & 0xffffff) << 8 | (uint64_t)(channel & 0xff);
}

static inline unsigned dpn_profile_key_comm(uint64_t key)
{
    return (unsigned)(key >> 40) - 1;
}

static inline int dpn_profile_key_peer(uint64_t key)
{
    return (int)(key >> 8 & 0xffffff);
}

static inline unsigned dpn_profile_key_channel(uint64_t key)
{
    return (unsigned)(key & 0xff);
}

static inline bool dpn_profile_key_is_send(uint64_t key)
{
    return !(key >> 32 & 1);
}

#endif
