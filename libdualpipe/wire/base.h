/* SPDX-License-Identifier: Apache-2.0
 *
 * base.h - what every wire begins with, for implementations.
 */
#ifndef DP_WIRE_BASE_H
#define DP_WIRE_BASE_H

#include "wire/wire.h"

struct dp_wire_base {
    struct dp_wire wire;
    struct dp_wire_queue sends, receives;
    size_t skip; /* bytes of a message that was too long for its receive, still to come */
    size_t buffer_bytes; /* about how much is sent before there is a receive */
    bool expects;        /* see dp_wire_expect */
    unsigned moves;      /* calls that have moved bytes */
    unsigned forks;      /* dp_forks_passed when it was made */
};

static inline bool dp_wire_wants_input(const struct dp_wire_base *base)
{
    return base->receives.head || base->skip;
}

/* Whether a message of the other side would be news. */
static inline bool dp_wire_listens(const struct dp_wire_base *base)
{
    return base->expects || dp_wire_wants_input(base);
}

static inline void dp_wire_init(struct dp_wire_base *base, const struct dp_wire_ops *ops)
{
    base->wire.ops = ops;
    base->forks = dp_forks_passed;
    base->sends.end = &base->sends.head;
    base->receives.end = &base->receives.head;
}
/* dp_wire_may_progress, of a wire that is broken or was made before a fork. */
bool dp_wire_check_fork(struct dp_wire_base *base);
/* What progress begins with. false: the wire is broken; also, from now on, if it is a parent's,
 * whose ring and socket a child must leave alone. */
static inline bool dp_wire_may_progress(struct dp_wire_base *base)
{
    return (!base->wire.error && base->forks == dp_forks_passed) || dp_wire_check_fork(base);
}
/* The head of the queue is done; 0 or DP_EMISMATCH. */
static inline void dp_wire_finish_head(struct dp_wire_queue *queue, int status)
{
    struct dp_wire_request *req = queue->head;

    queue->head = req->next;
    if (!queue->head)
        queue->end = &queue->head;
    req->status = status;
}
/* The peer receives nothing any more, but what it sent before may still be received: finish the
 * sends with DP_ECOMM. `reason` becomes why, unless there is one. */
void dp_wire_fail_sends(struct dp_wire_base *base, const char *reason);

#endif
