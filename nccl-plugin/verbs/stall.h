/* SPDX-License-Identifier: Apache-2.0
 *
 * stall.h - a connection on which nothing moves although something should ends, whatever the cause:
 *
 *      sender     a send is in flight, and nothing completes         after DUALPIPE_NET_TIMEOUT
 *      receiver   a receive is open, and nothing arrives             tells the sender what it has,
 * four times in DUALPIPE_NET_TIMEOUT
 *
 * A receiver may wait for hours, as the sender may have nothing to send. So only the sender can
 * tell a stall: a clear-to-send entry was written, and it has not come; or a message was
 * acknowledged, and the receiver does not have it. What is on its way arrives between two reports,
 * so a stall is one only when REPORTS of them say the same.
 */
#ifndef DPN_VERBS_STALL_H
#define DPN_VERBS_STALL_H

#include "nccl-plugin/verbs/control_message.h"

struct dpn_verbs;

struct dpn_stall {
    bool has_moved;   /* something completed or arrived since the last look */
    uint32_t moves;   /* looks that found this */
    int64_t still_ns; /* without it, while there was something to wait for */
    /* receiver */
    int64_t told_ns; /* still_ns at the last report */
    uint32_t number; /* of the control message with that report */
    /* sender */
    uint32_t peer_moves, cts_read; /* at the last report */
    unsigned reports;              /* in a row that say the same */
};

/* now_ns: of this look; v->looked_ns is that of the last one. */
void dpn_stall_poll(struct dpn_verbs *v, int64_t now_ns);
/* The receiver's report. */
void dpn_stall_take(struct dpn_verbs *v, const struct dpn_stalled *report);

#endif
