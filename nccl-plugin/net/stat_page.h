/* SPDX-License-Identifier: Apache-2.0
 *
 * stat_page.h - what the net plugin counts in one process, in a page (base/page_file.h): net/stat.c
 * writes it, `dualpipe stat` reads it.
 *
 *      rows: devices[32], both ways, what closed connections have counted | connections[1024]
 *
 * When a connection ends, its counters move to its device's row; `changes` is odd meanwhile, so that a
 * reader that adds up both can tell. Labels: device and way, and of a connection, whose `device` leads
 * to that row, number, transport and peer.
 */
#ifndef DPN_NET_STAT_PAGE_H
#define DPN_NET_STAT_PAGE_H

#include "base/page_file.h"

enum {
    DPN_STAT_DEVICES = 32,
    DPN_STAT_CONNECTIONS = 1024,
    DPN_STAT_SIZES = 32, /* places of sizes of messages, in bytes */
    DPN_STAT_TIMES = 40, /* of times, in ns */
    DPN_STAT_NAME_LEN = 64,
    DPN_STAT_DEVICE_LEN = 120 /* a fused one is called after all that it is made of */
};

enum dpn_stat_way { DPN_STAT_RECEIVE, DPN_STAT_SEND, DPN_STAT_WAYS };
enum { DPN_STAT_FIRST_CONNECTION = DPN_STAT_DEVICES * DPN_STAT_WAYS };

/* Up to DPN_STAT_SIZE, a value's place is its column's number. */
#define DPN_STAT_COLUMNS(X)                                                                        \
    /* of a connection: its device's row; CLOCK_REALTIME */                                        \
    X(DPN_STAT_DEVICE, "device", "", BEFORE, 1)                                                    \
    X(DPN_STAT_OPENED_NS, "opened_ns", "ns", GAUGE, 1)                                             \
    /* of a device: connections, ever; those that are open and for which there was no row */       \
    X(DPN_STAT_SPEED_MBPS, "speed_mbps", "", GAUGE, 1)                                             \
    X(DPN_STAT_OPENED, "opened", "", COUNTER, 1)                                                   \
    X(DPN_STAT_LEFT_OUT, "left_out", "", GAUGE, 1)                                                 \
    /* of a connection: 1 */                                                                       \
    X(DPN_STAT_OPEN, "open", "", GAUGE, 1)                                                         \
    /* of both: messages done; requests begun, a group of receives is one, and of those */         \
    X(DPN_STAT_MESSAGES, "messages", "", COUNTER, 1)                                               \
    X(DPN_STAT_BYTES, "bytes", "B", COUNTER, 1)                                                    \
    X(DPN_STAT_REQUESTS, "requests", "", COUNTER, 1)                                               \
    X(DPN_STAT_FINISHED, "finished", "", COUNTER, 1)                                               \
    /* times that a send had to wait for the receiver's clear-to-send, and how long; times that    \
     * all requests were in use */                                                                 \
    X(DPN_STAT_STALLS, "stalls", "", COUNTER, 1)                                                   \
    X(DPN_STAT_STALL_NS, "stall_ns", "ns", COUNTER, 1)                                             \
    X(DPN_STAT_FULL, "full", "", COUNTER, 1)                                                       \
    /* messages, or parts of them, that the transport has sent again; times that one of its ways   \
     * failed, and it went on over others; calls that failed */                                    \
    X(DPN_STAT_RETRIES, "retries", "", COUNTER, 1)                                                 \
    X(DPN_STAT_FAILOVERS, "failovers", "", COUNTER, 1)                                             \
    X(DPN_STAT_ERRORS, "errors", "", COUNTER, 1)                                                   \
    /* sum of what is in DPN_STAT_TIME; messages that did not wait for their receive */            \
    X(DPN_STAT_TIMED_NS, "timed_ns", "ns", COUNTER, 1)                                             \
    X(DPN_STAT_EAGER, "eager", "", COUNTER, 1)                                                     \
    /* of messages; from isend or irecv until test says done */                                    \
    X(DPN_STAT_SIZE, "size_bytes", "B", HISTOGRAM, DPN_STAT_SIZES)                                 \
    X(DPN_STAT_TIME, "completion_ns", "ns", HISTOGRAM, DPN_STAT_TIMES)

DP_PAGE_DEFINE(dpn_stat, DPN_STAT_COLUMNS, DPN_STAT_FIRST_CONNECTION + DPN_STAT_CONNECTIONS,
               .option = "DUALPIPE_NET_STAT", .suffix = ".stat", .magic = "dpnstat",
               .name = "counters");

/* Binary digits of n, at most of a histogram's last place. */
static inline unsigned dpn_stat_place(uint64_t n, unsigned places)
{
    const unsigned digits = n ? 64 - (unsigned)__builtin_clzll(n) : 0;

    return digits < places ? digits : places - 1;
}

#endif
