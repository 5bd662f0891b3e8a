/* SPDX-License-Identifier: Apache-2.0
 *
 * page.h - what the profiler plugin counts in one process, in a file of shared memory that its user may
 * read while it grows: profiler/counters.c writes it, `dualpipe stat` reads it.
 *
 *      head (base/page_file.h) | communicators[128]: calls of NCCL |
 *      flows[2048]: what travels over the network
 *
 * It lies beside the pages of the net plugin (nccl-plugin/net/stat_page.h). Every change of the
 * layout is a new version.
 */
#ifndef DPN_PROFILER_PAGE_H
#define DPN_PROFILER_PAGE_H

#include "base/page_file.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define DPN_PROFILE_KIND                                                                           \
    .option = "DUALPIPE_PROFILER_STAT", .suffix = ".profile", .magic = "dpnprof",                  \
    .version = DPN_PROFILE_VERSION, .bytes = sizeof(struct dpn_profile_page),                      \
    .name = "the profiler plugin"

enum {
    DPN_PROFILE_VERSION = 2,
    DPN_PROFILE_COMMS = 128,
    DPN_PROFILE_FLOWS = 2048,
    DPN_PROFILE_RAILS = 32,
    DPN_PROFILE_NAME_LEN = 64,
    DPN_PROFILE_RAIL_LEN = 120 /* as the names of the net plugin's devices */
};

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

typedef _Atomic uint64_t dpn_profile_counter;

struct dpn_profile_comm {
    _Atomic uint32_t in_use;
    int32_t rank, ranks, nodes;
    uint64_t hash; /* the same on all ranks */
    char name[DPN_PROFILE_NAME_LEN];
    dpn_profile_counter calls[DPN_FUNCTIONS], bytes[DPN_FUNCTIONS];
};

/* What one rank sends to, or receives from, another one over one channel of NCCL. */
struct dpn_profile_flow {
    /* dpn_profile_key, below 2: there is none. A reader looks at it before and after. */
    dpn_profile_counter key;
    _Atomic uint32_t rail; /* of rails, from 1 on; 0: not known */
    uint32_t rest;
    dpn_profile_counter bytes, operations, chunks; /* that are done */
    dpn_profile_counter wait_ns[DPN_WAITS];        /* of all chunks, several of which are in flight */
    _Atomic int64_t waiting[DPN_WAITS];            /* chunks that wait now */
    _Atomic int64_t changed_ns;                    /* CLOCK_MONOTONIC of the last change of those */
    uint64_t reserved[4];
};

struct dpn_profile_page {
    struct dp_page_head head;
    dpn_profile_counter lost; /* events of the network for which there was no place */
    _Atomic uint32_t rail_count;
    uint32_t rest;
    char rails[DPN_PROFILE_RAILS][DPN_PROFILE_RAIL_LEN];
    struct dpn_profile_comm comms[DPN_PROFILE_COMMS];
    struct dpn_profile_flow flows[DPN_PROFILE_FLOWS];
};

_Static_assert(sizeof(struct dpn_profile_flow) == 144, "layout of version 2");

/* comm: of comms; DPN_PROFILE_COMMS: one of another process, whose messages this one carries (PXN). */
static inline uint64_t dpn_profile_key(unsigned comm, int peer, bool is_send, unsigned channel)
{
    return (uint64_t)(comm + 1) << 40 | (uint64_t)((uint32_t)peer & 0xffffff) << 16 |
           (uint64_t)(channel & 0xff) << 8 | is_send;
}

static inline unsigned dpn_profile_key_comm(uint64_t key)
{
    return (unsigned)(key >> 40) - 1;
}

static inline int dpn_profile_key_peer(uint64_t key)
{
    return (int)(key >> 16 & 0xffffff);
}

static inline unsigned dpn_profile_key_channel(uint64_t key)
{
    return (unsigned)(key >> 8 & 0xff);
}

static inline bool dpn_profile_key_is_send(uint64_t key)
{
    return key & 1;
}

#endif
