/* SPDX-License-Identifier: Apache-2.0
 *
 * fail.c - the error of a connection, and failures of its queue pairs, many of which are one.
 */
#include "base/clock.h"
#include "nccl-plugin/verbs/comm.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { FAILURES_PER_QP = 20 }; /* consecutive, without a completed message */

void dpn_verbs_fail(struct dpn_verbs *v, int error, const char *fmt, ...)
{
    va_list args;

    if (v->error)
        return;
    v->error = error;
    va_start(args, fmt);
    vsnprintf(v->why, sizeof(v->why), fmt, args);
    va_end(args);
    v->failed_ns = dp_now_ns();
}

void dpn_qp_fail(struct dpn_verbs *v, struct dpn_qp *qp, const char *what, const char *status,
                 const char *hint)
{
    struct dpn_queues *q = &v->queues;
    const bool was_up = qp->state == DPN_QP_UP;

    if (!dpn_qp_stop(q, qp, what, status, hint))
        return;
    if (was_up) {                            /* failed attempts to open do not count */
        q->failures += dpn_verbs_is_busy(v); /* a link may flap while no request is open */
        dpn_stat_count(&v->comm->stat, DPN_STAT_FAILOVERS, 1);
    }
    if (q->failures > FAILURES_PER_QP * q->qp_count)
        dpn_verbs_fail(v, DP_ECOMM, "%d failures in a row, the last one: %s", q->failures,
                       q->reason);
}

void dpn_qp_heartbeat(struct dpn_verbs *v, struct dpn_qp *qp)
{
    int error = dpn_qp_write_heartbeat(&v->queues, qp);

    if (error)
        dpn_qp_fail(v, qp, "heartbeat", strerror(error), ": the send queue takes no more");
}
