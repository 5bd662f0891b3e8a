/* SPDX-License-Identifier: Apache-2.0
 *
 * stall.h - a connection that makes no progress although requests are open fails, whatever the
 * cause:
 *
 *      sender     a send is in flight, and nothing completes         fails after
 *                                                                    DUALPIPE_NET_TIMEOUT
 *      receiver   a receive is open, and nothing arrives             reports to the sender what has
 *                                                                    arrived, four times in that
 * time
 *
 * A receiver may wait for hours, as the sender may have nothing to send. So only the sender can
 * detect a stall: the receiver has written a clear-to-send entry that has not arrived, or lacks a
 * message that was acknowledged. What is in flight arrives between two reports, so it is a stall
 * only when REPORTS consecutive reports are the same.
 */
#ifndef DPN_VERBS_STALL_H
#define DPN_VERBS_STALL_H

#include "nccl-plugin/verbs/control_message.h"

struct dpn_verbs;

struct dpn_stall {
    bool has_moved;     /* something completed or arrived since the last poll */
    uint32_t moves;     /* number of polls with has_moved */
    int64_t stalled_ns; /* time without it while requests were open */
    /* receiver */
    int64_t reported_ns; /* stalled_ns at the last report */
    uint32_t number;     /* number of the control message with that report */
    /* sender */
    uint32_t peer_moves, cts_read; /* at the last report */
    unsigned reports;              /* consecutive reports with the same contents */
};

/* now_ns: time of this poll; v->polled_ns is that of the previous one. */
void dpn_stall_poll(struct dpn_verbs *v, int64_t now_ns);
/* Process the receiver's report. */
void dpn_stall_take(struct dpn_verbs *v, const struct dpn_stalled *report);

#endif
