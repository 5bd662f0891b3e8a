/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.h - one rank's op list, compiled: what dp_pipeline_step carries out, one entry after the
 * other. Plain data; every buffer, save area and request already has its place.
 *
 *      schedule   RECV_F(1)  COMMIT  F(0)         SEND_F(0)  RECV_F(2)  COMMIT  F(1) ...
 *      plan       RECV 1, RECV 2,    FORWARD 0,   SEND 0,                       FORWARD 1 waits for 1
 *                 (as early as their memory is free)
 *
 * A receive is posted as soon as the memory it was given is free, in the schedule's order on each
 * directed link and channel. A send is posted where the schedule posts it. Entries wait for the
 * messages they consume, and for the sends whose buffers they overwrite; nothing else waits. Waiting
 * later and receiving earlier than the schedule says adds no circle to a schedule without one.
 */
#ifndef DP_PIPELINE_PLAN_H
#define DP_PIPELINE_PLAN_H

#include "pipeline/lives.h"

enum dp_plan_kind {
    DP_PLAN_RECV,
    DP_PLAN_SEND,
    DP_PLAN_FORWARD,
    DP_PLAN_BACKWARD, /* for input and weights */
    DP_PLAN_INPUT,    /* for the input only */
    DP_PLAN_WEIGHT,
    DP_PLAN_MERGE,    /* fixed order: add the slot's second half of gradients to its first */
    DP_PLAN_REDUCE,   /* sum the slot's gradients with its mirror's */
    DP_PLAN_KINDS
};

/* Offsets in the rank's memory; DP_NOWHERE as in lives.h. */
struct dp_plan_buffers {
    size_t in, out, gout, gin, save;
};

struct dp_plan_message {
    size_t offset, len;
    int32_t peer;     /* pipeline rank */
    uint16_t channel; /* enum dp_channel */
    uint16_t stage;   /* whose output, or whose input gradient, it is */
    uint32_t request; /* slot in the table of requests */
};

struct dp_plan_op {
    uint8_t kind;
    uint8_t slot;
    bool pair;          /* FORWARD: the next entry is the BACKWARD of one call */
    uint16_t waits;     /* how many; they are plan->waits[first_wait] and on. RECV, staged: requests
                         * whose messages must have left this memory */
    uint32_t first_wait;
    uint32_t mb;
    uint32_t index;     /* of the op in the rank's list */
    union {
        struct dp_plan_buffers at;
        struct dp_plan_message message; /* RECV, SEND */
    };
};

struct dp_plan_wait {
    uint32_t request;
    int32_t peer;            /* pipeline rank */
    size_t offset, received; /* a receive: where it is, and how long; a send: 0 */
};

struct dp_plan {
    struct dp_plan_op *ops;
    struct dp_plan_wait *waits;
    size_t count, wait_count;
    size_t last_wait; /* waits[last_wait] .. waits[wait_count - 1]: sends open at the end */
    uint32_t requests; /* most in flight at once */
    size_t bytes;      /* of the rank's memory */
    size_t part_bytes[DP_PARTS];
    int32_t peak_activations;
    bool second_half[DP_MAX_SLOTS]; /* fixed order: the slot needs a second set of gradients */
};

/* DP_ENOMEM; DP_EUNSUPPORTED where fixed order is asked of a schedule that cannot have it. */
int dp_plan_init(struct dp_plan *plan, const struct dp_plan_source *source);
void dp_plan_fini(struct dp_plan *plan);

/* Fixed order: micro-batches of the whole batch from here on are the second half. */
static inline int32_t dp_plan_half(const struct dp_schedule *s)
{
    return s->microbatches > 1 ? s->microbatches / 2 : 1;
}

#endif
