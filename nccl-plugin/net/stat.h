/* SPDX-License-Identifier: Apache-2.0
 *
 * stat.h - what connections count while they work, with DUALPIPE_NET_STAT=1: on a page that others
 * may read (net/stat_page.h). The core counts what every transport has in common; a transport adds
 * what only it knows, with dpn_stat_count.
 *
 * To read the clock takes as long as to count ten times, so of short messages only one in
 * DPN_STAT_EVERY is timed. The comm's lock makes its holder the one writer.
 */
#ifndef DPN_NET_STAT_H
#define DPN_NET_STAT_H

#include "base/clock.h"
#include "nccl-plugin/net/stat_page.h"

#include <stdbool.h>

enum {
    DPN_STAT_EVERY = 13, /* no power of two, so as not to keep step with what is sent */
    DPN_STAT_LONG_BYTES = 64 << 10,
    DPN_STAT_REQUESTS_MAX = 32
};

/* A comm's. Zeroed memory counts nothing. */
struct dpn_stat {
    struct dpn_stat_row *on;  /* NULL: nothing is counted */
    bool is_private;          /* there was no place on the page */
    bool is_sender;
    int row;                  /* of its device and way */
    unsigned generation;      /* of the process that opened it: see net/stat.c */
    unsigned until_timed;     /* short messages */
    int64_t stalled_since_ns; /* 0: is not */
};

/* A request's. Zeroed memory, as for a flush, counts nothing. */
struct dpn_stat_mark {
    int count;        /* of its messages */
    int64_t began_ns; /* 0: is not timed */
};

/* Have a device, by its number, on the page, with nothing counted yet. Again does nothing. */
void dpn_stat_name_device(int dev, const char *name, int speed_mbps);
/* Count from now on, if the option says so. That it cannot is a warning, once. peer may be "". */
void dpn_stat_open(struct dpn_stat *stat, int dev, bool is_sender, const char *transport,
                   const char *peer);
/* What was counted moves to the device. */
void dpn_stat_close(struct dpn_stat *stat);

static inline void dpn_stat_count(struct dpn_stat *stat, enum dpn_stat_value what, uint64_t n)
{
    if (stat->on)
        dp_page_add(&stat->on->values[what], n);
}

static inline bool dpn_stat_is_timed(struct dpn_stat *stat, size_t bytes)
{
    if (bytes >= DPN_STAT_LONG_BYTES)
        return true;
    const bool yes = !stat->until_timed;
    stat->until_timed = yes ? DPN_STAT_EVERY - 1 : stat->until_timed - 1;
    return yes;
}

/* A request for `count` messages was made, which may have so many bytes. */
static inline void dpn_stat_began(struct dpn_stat *stat, int count, size_t bytes,
                                  struct dpn_stat_mark *mark)
{
    *mark = (struct dpn_stat_mark){0};
    if (!stat->on)
        return;
    mark->count = count;
    dpn_stat_count(stat, DPN_STAT_REQUESTS, 1);
    if (dpn_stat_is_timed(stat, bytes))
        mark->began_ns = dp_now_ns();
    if (stat->stalled_since_ns) {
        dpn_stat_count(stat, DPN_STAT_STALL_NS, (uint64_t)(dp_now_ns() - stat->stalled_since_ns));
        stat->stalled_since_ns = 0;
    }
}

/* None was made: all are in use, or, for a sender, the receiver is not ready. */
static inline void dpn_stat_held_up(struct dpn_stat *stat)
{
    const struct dpn_stat_row *c = stat->on;

    if (!c)
        return;
    if (!stat->is_sender || dp_page_get(&c->values[DPN_STAT_REQUESTS]) -
                                    dp_page_get(&c->values[DPN_STAT_FINISHED]) >=
                                DPN_STAT_REQUESTS_MAX) {
        dpn_stat_count(stat, DPN_STAT_FULL, 1);
    } else if (!stat->stalled_since_ns) {
        dpn_stat_count(stat, DPN_STAT_STALLS, 1);
        stat->stalled_since_ns = dp_now_ns();
    }
}

/* The request is done; sizes[mark->count]: of its messages. */
static inline void dpn_stat_ended(struct dpn_stat *stat, const struct dpn_stat_mark *mark,
                                  const int *sizes)
{
    uint64_t bytes = 0;

    if (!stat->on || !mark->count)
        return;
    _Atomic uint64_t *values = stat->on->values;
    for (int i = 0; i < mark->count; i++) {
        dp_page_add(&values[DPN_STAT_SIZE + dpn_stat_place((uint64_t)sizes[i], DPN_STAT_SIZES)], 1);
        bytes += (uint64_t)sizes[i];
    }
    dpn_stat_count(stat, DPN_STAT_MESSAGES, (uint64_t)mark->count);
    dpn_stat_count(stat, DPN_STAT_BYTES, bytes);
    dpn_stat_count(stat, DPN_STAT_FINISHED, 1);
    if (mark->began_ns) {
        const uint64_t ns = (uint64_t)(dp_now_ns() - mark->began_ns);
        dp_page_add(&values[DPN_STAT_TIME + dpn_stat_place(ns, DPN_STAT_TIMES)], 1);
        dpn_stat_count(stat, DPN_STAT_TIMED_NS, ns);
    }
}

#endif
