/* SPDX-License-Identifier: Apache-2.0
 *
 * stat_page.h - the counters of one process, in a file of shared memory that its user may read
 * while they grow: net/stat.c writes it, `dualpipe stat` reads it.
 *
 *      head (base/page_file.h) | devices[32], what closed connections have counted | connections[1024]
 *
 * A counter has one writer at a time, which loads, adds and stores, all relaxed: no reader can make
 * it wait. When a connection ends, its counters move to its device; `changes` is odd meanwhile, so
 * that a reader that adds up both can tell.
 *
 * Every change of the layout is a new version.
 */
#ifndef DPN_NET_STAT_PAGE_H
#define DPN_NET_STAT_PAGE_H

#include "base/page_file.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define DPN_STAT_SUFFIX ".stat"
#define DPN_STAT_KIND                                                                              \
    .option = "DUALPIPE_NET_STAT", .suffix = DPN_STAT_SUFFIX, .magic = "dpnstat",                  \
    .version = DPN_STAT_VERSION, .bytes = sizeof(struct dpn_stat_page), .name = "counters"

enum {
    DPN_STAT_VERSION = 3,
    DPN_STAT_DEVICES = 32,
    DPN_STAT_CONNECTIONS = 1024,
    DPN_STAT_SIZES = 32, /* sizes[k]: messages whose size in bytes has k binary digits */
    DPN_STAT_TIMES = 40, /* times[k]: the same for ns; the last one has all that are longer */
    DPN_STAT_NAME_LEN = 64,
    DPN_STAT_DEVICE_LEN = 120 /* a fused one is called after all that it is made of */
};

enum dpn_stat_way { DPN_STAT_RECEIVE, DPN_STAT_SEND, DPN_STAT_WAYS };

typedef _Atomic uint64_t dpn_stat_counter;

/* In the order of dpn_stat_counters. */
enum dpn_stat_what {
    DPN_STAT_MESSAGES,  /* done */
    DPN_STAT_BYTES,     /* of those */
    DPN_STAT_REQUESTS,  /* begun; a group of receives is one */
    DPN_STAT_FINISHED,  /* of those */
    DPN_STAT_STALLS,    /* times that a send had to wait for the receiver's clear-to-send */
    DPN_STAT_STALL_NS,  /* and how long */
    DPN_STAT_FULL,      /* times that all requests were in use */
    DPN_STAT_RETRIES,   /* messages, or parts of them, that the transport has sent again */
    DPN_STAT_FAILOVERS, /* times that one of its ways failed, and it went on over others */
    DPN_STAT_ERRORS,    /* calls that failed */
    DPN_STAT_TIMED_NS,  /* sum of what is in times[] */
    DPN_STAT_EAGER,     /* messages that did not wait for their receive */
    DPN_STAT_WHATS
};

struct dpn_stat_counters {
    dpn_stat_counter counts[DPN_STAT_WHATS];
    dpn_stat_counter sizes[DPN_STAT_SIZES];
    dpn_stat_counter times[DPN_STAT_TIMES]; /* from isend or irecv until test says done */
    uint64_t rest[4];
};

struct dpn_stat_device {
    char name[DPN_STAT_DEVICE_LEN];
    int32_t speed_mbps;
    uint32_t rest;
    struct dpn_stat_counters closed[DPN_STAT_WAYS];
};

struct dpn_stat_connection {
    _Atomic uint32_t in_use; /* a reader looks at it first and, before it believes, at changes */
    uint32_t device;         /* of devices */
    uint32_t way;            /* enum dpn_stat_way */
    uint32_t number;         /* of the process, counted from 1 */
    int64_t opened_ns;       /* CLOCK_REALTIME */
    char transport[16], peer[DPN_STAT_NAME_LEN];
    uint8_t rest[24];
    struct dpn_stat_counters counters;
};

struct dpn_stat_page {
    struct dp_page_head head;
    uint32_t device_count, connection_count; /* of the arrays below, that have ever been in use */
    dpn_stat_counter opened;   /* connections, ever */
    dpn_stat_counter left_out; /* connections that are open and for which there was no place */
    uint64_t rest[8];
    struct dpn_stat_device devices[DPN_STAT_DEVICES];
    struct dpn_stat_connection connections[DPN_STAT_CONNECTIONS];
};

_Static_assert(sizeof(dpn_stat_counter) == 8, "a counter is its number");
/* All in whole lines of 64 bytes, so that no two connections write to the same one. */
_Static_assert(sizeof(struct dpn_stat_counters) == 704, "layout of version 3");
_Static_assert(sizeof(struct dpn_stat_device) == 128 + 2 * 704, "layout of version 3");
_Static_assert(offsetof(struct dpn_stat_connection, counters) == 128, "layout of version 3");
_Static_assert(offsetof(struct dpn_stat_page, devices) == 192, "layout of version 3");
_Static_assert(sizeof(struct dpn_stat_page) == 192 + 32 * 1536 + 1024 * 832, "layout of version 3");

/* For one writer at a time. */
static inline void dpn_stat_add(dpn_stat_counter *counter, uint64_t n)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n,
                          memory_order_relaxed);
}

/* Binary digits of n, at most of a histogram's last place. */
static inline unsigned dpn_stat_place(uint64_t n, unsigned places)
{
    const unsigned digits = n ? 64 - (unsigned)__builtin_clzll(n) : 0;

    return digits < places ? digits : places - 1;
}

#endif
