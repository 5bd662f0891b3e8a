/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.h - one rank's op list, compiled: what dp_pipeline_step carries out, one entry after the
 * other. Plain data; every buffer, save area and request already has its place.
 *
 *      schedule   RECV_F(1)  COMMIT  F(0)         SEND_F(0)  RECV_F(2)  COMMIT  F(1) ...
 *      plan       RECV 1, RECV 2,    FORWARD 0,   SEND 0,                       FORWARD 1
 *                 (as early as their                                            (waits for RECV 1)
 *                  memory is free)
 *
 * A receive is posted as soon as the memory it was given is free, in the schedule's order on each
 * directed link and channel. A send is posted where the schedule posts it. Entries wait for the
 * messages they consume, and for the sends whose buffers they overwrite; nothing else waits.
 * Waiting later and receiving earlier than the schedule says adds no cycle to a schedule without
 * one.
 */
#ifndef DP_PIPELINE_PLAN_H
#define DP_PIPELINE_PLAN_H

#include "pipeline/lifetimes.h"

enum dp_plan_kind {
    DP_PLAN_RECV,
    DP_PLAN_SEND,
    DP_PLAN_FORWARD,
    DP_PLAN_RECOMPUTE, /* the forward again, for what it saves */
    DP_PLAN_BACKWARD,  /* for input and weights */
    DP_PLAN_INPUT,     /* for the input only */
    DP_PLAN_WEIGHT,
    DP_PLAN_ADD,    /* fixed order: add gradients that were kept apart, and clear those */
    DP_PLAN_SUM,    /* fixed order: add the gradients of one block of the slot to another's */
    DP_PLAN_REDUCE, /* start to sum the slot's gradients with its mirror's */
    DP_PLAN_REDUCE_WAIT,
    DP_PLAN_EVICT, /* start to copy save areas to the host */
    DP_PLAN_FETCH, /* start to bring them back */
    DP_PLAN_ROUND, /* add the slot's float32 sums to its gradients of two bytes */
    DP_PLAN_KINDS
};

/* Offsets in the rank's memory; DP_NOWHERE as in lifetimes.h. */
struct dp_plan_buffers {
    size_t in, out, gout, gin, save, save_input, save_weight;
};

struct dp_plan_message {
    size_t offset, len;
    int32_t peer;     /* pipeline rank */
    uint16_t channel; /* enum dp_channel */
    uint16_t stage;   /* whose output, or whose input gradient, it is; a skip's: its number */
    bool skip;
    uint32_t request; /* slot in the table of requests */
};

/* What an EVICT or a FETCH copies: `save` and `save_input`. */
enum { DP_PLAN_COPY_PARTS = 2 };
struct dp_plan_copy {
    size_t device[DP_PLAN_COPY_PARTS], host[DP_PLAN_COPY_PARTS]; /* offsets */
    size_t bytes[DP_PLAN_COPY_PARTS];                            /* 0: nothing */
    uint32_t number;                                             /* of the eviction */
};

struct dp_plan_op {
    uint8_t kind;
    uint8_t slot;
    bool pair : 1;       /* FORWARD: the next entry is the BACKWARD of one call */
    bool recomputed : 1; /* FORWARD: what it saves is thrown away, a RECOMPUTE follows */
    uint8_t set;        /* of gradients, that weights are added to */
    uint16_t waits;     /* how many; they are plan->waits[first_wait] and on. RECV, staged: requests
                         * whose messages must have left this memory */
    uint32_t first_wait;
    uint32_t mb;
    uint32_t index;     /* of the op in the rank's list */
    /* Evictions number .. - 1 must have left, or come back: see evict.h. 0: none. */
    uint32_t evicted, fetched;
    union {
        struct dp_plan_buffers at;
        struct dp_plan_message message; /* RECV, SEND */
        struct dp_plan_copy copy;       /* EVICT, FETCH */
        uint8_t from;                   /* ADD, SUM: the set that is added to `set` */
    };
};

/* Where a skip of one micro-batch is; DP_NOWHERE as in struct dp_skip_buffers. */
struct dp_plan_skip {
    size_t out, again, in, gout, gin;
};

struct dp_plan_wait {
    uint32_t request;
    int32_t peer;            /* pipeline rank */
    size_t offset, received; /* a receive: where it is, and how long; a send: 0 */
};

struct dp_plan {
    struct dp_plan_op *ops;
    struct dp_plan_wait *waits;
    struct dp_plan_skip *skips; /* [streams * skips * micro-batches] */
    size_t count, wait_count;
    size_t first_backward; /* ops[first_backward] and on: from the first backward on */
    bool in_two;           /* all forwards come before that */
    size_t last_wait; /* waits[last_wait] .. waits[wait_count - 1]: sends open at the end */
    uint32_t requests; /* most in flight at once; ordered: all */
    size_t bytes;      /* of the rank's memory */
    uint32_t evictions;
    size_t host_bytes; /* of memory on the host, for them */
    size_t part_bytes[DP_PARTS];
    int32_t peak_activations;
    uint8_t sets[DP_MAX_SLOTS]; /* of gradients, of each slot */
};

/* A schedule that steps may take, and its plan for this rank. */
struct dp_driven; /* asyncpipe/driven.c */
struct dp_program {
    const struct dp_schedule *schedule;
    struct dp_plan plan;
    struct dp_driven *driven; /* NULL unless messages drive the rank */
};

/* An entry that calls the stage. */
static inline bool dp_plan_is_compute(const struct dp_plan_op *op)
{
    return op->kind >= DP_PLAN_FORWARD && op->kind <= DP_PLAN_WEIGHT;
}

/* An entry that works on gradients of this rank only. */
static inline bool dp_plan_is_sum(const struct dp_plan_op *op)
{
    return op->kind == DP_PLAN_ADD || op->kind == DP_PLAN_SUM || op->kind == DP_PLAN_ROUND;
}

/* An entry that makes the gradient of a step of those of its blocks: left out while steps
 * accumulate. */
static inline bool dp_plan_is_last(const struct dp_plan_op *op)
{
    return op->kind == DP_PLAN_SUM || op->kind == DP_PLAN_REDUCE ||
           op->kind == DP_PLAN_REDUCE_WAIT || op->kind == DP_PLAN_ROUND;
}

/* DP_ENOMEM; DP_EUNSUPPORTED where fixed order takes too many sets of gradients. */
int dp_plan_init(struct dp_plan *plan, const struct dp_plan_source *source);
void dp_plan_fini(struct dp_plan *plan);

#endif
