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

#include "pipeline/border.h"
#include "pipeline/offsets.h"
#include <dualpipe/pipeline.h>
#include <dualpipe/schedule.h>
#include <dualpipe/stage.h>

/* ---- lifetimes ------------------------------------------------------------------------------- */

/* How long each buffer of a rank is needed, in indices of its op list, and so where
 * in memory it lies.
 *
 *      input            its receive (or the forward that copies it)  ..  the weight part
 *      output           F .. the batch after the one that sends it; a last stage's: F .. B
 *      output gradient  its receive (a last stage's: B) .. the weight part
 *      input gradient   B or I .. the batch after the one that sends it
 *      evicted          save and save_input: F .. EVICT, and FETCH .. their end; on the host between
 *                       EVICT and the backward
 *      save             F (or RECOMPUTE) .. the weight part: B, W after an I, or its turn in fixed
 *                       order
 *      save_input       F (or RECOMPUTE) .. B or I
 *      save_weight      B or I .. the weight part
 *
 *      skip's value     begins here: F .. as an output; ends here: its receive .. the weight part
 *      skip's gradient  ends here: B or I .. as an input gradient; begins here: its receive .. the
 *                       weight part; both ends here: from its maker to its reader
 *
 * A buffer that is sent lives one batch longer than the schedule asks, so that a peer that is a
 * little late does not stop the rank. What a slot hands to another slot of the same rank (DualPipeV
 * where it turns) is one buffer with one lifetime.
 *
 * Where messages drive the rank, its ops come in another order than in the list. Only buffers of
 * one forward, or of one backward with its RECOMPUTE, share memory then; all others live for the
 * whole step. */

/* ---- fixed order --------------------------------------------------------------------------------
 * Fixed order: to which set of gradients each weight part adds, and when its turn is.
 *
 * The micro-batches of the whole batch are cut into `blocks` blocks. Each block is summed in the
 * order of its micro-batches, and the blocks are summed pairwise:
 *
 *      blocks 4, M 8      ((mb 0 + mb 1) + (mb 2 + mb 3)) + ((mb 4 + mb 5) + (mb 6 + mb 7))
 *
 * Where a schedule has the weight part of a micro-batch before that of one that precedes it in its
 * block, it waits for its turn: a backward that can be split leaves its weight part for later; the
 * gradient of one that cannot is kept apart, and added when its turn comes.
 *
 * Slots that share their parameters (a layer used several times) are summed one by one, and the
 * sums are added from the last slot to the first. */

enum { DP_ORDER_MAX_BLOCKS = 64, DP_ORDER_MAX_SETS = 255 };

/* The part of a micro-batch of a slot. */
struct dp_order_part {
    uint32_t ready; /* the op that has its weight part, or the backward with it */
    uint32_t turn;  /* the op after which it is added, >= ready */
    uint8_t set;    /* where it is added */
    uint8_t apart;  /* the set that it is kept in until then; 0: none */
};

/* Zeroed memory is a valid empty one. */
struct dp_order {
    uint32_t mb_count;           /* of one slot */
    struct dp_order_part *parts; /* [slots * mb_count]; meaningless in a forward-only schedule */
    uint8_t block_sets[DP_MAX_SLOTS]; /* sets of blocks; those kept apart come after them */
    uint8_t sets[DP_MAX_SLOTS];       /* all of a slot, at least 1 */
    uint32_t last_turn[DP_MAX_SLOTS];
};

/* A sum of two sets: `from` is added to `to`. */
struct dp_order_sum {
    uint8_t to, from;
};

/* blocks: a power of two from the number of streams up; 0: parts are added as they come. driven:
 * ops come in another order than in the list, so that no two parts share a set that is kept apart.
 * DP_ENOMEM; DP_EUNSUPPORTED if more than DP_ORDER_MAX_SETS sets are needed. */
int dp_order_init(struct dp_order *order, const struct dp_schedule *s, int rank,
                  const struct dp_stage *stages, int blocks, bool driven);
void dp_order_fini(struct dp_order *order);

/* Whether a later slot of the rank has the same parameters. In fixed order none of its sets is then
 * the parameters' own (set 0), to which its sum is added last, after those of the later slots. */
bool dp_order_is_shared(const struct dp_schedule *s, int rank, int slot);

/* The sums of a slot's sets, in the order in which they are taken; returns their number.
 * sums[DP_ORDER_MAX_BLOCKS]. */
int dp_order_sums(const struct dp_schedule *s, int rank, int slot, int blocks,
                  struct dp_order_sum *sums);

static inline struct dp_order_part *dp_order_part(const struct dp_order *order, uint32_t slot,
                                                  uint32_t mb)
{
    return &order->parts[(size_t)slot * order->mb_count + mb];
}

/* An I of this stage leaves a weight part for a W. */
static inline bool dp_stage_splits(const struct dp_stage *stage)
{
    return !stage->no_split;
}

/* ---- lifetimes ---------------------------------------------------------------------------------- */

#define DP_NO_LIFETIME UINT32_MAX

/* What a rank's plan is made from. */
struct dp_plan_source {
    const struct dp_schedule *schedule;
    int rank;                               /* pipeline rank */
    const struct dp_stage *stages;          /* [slots of the rank] */
    const struct dp_border_layout *layouts; /* [stages + 1] */
    const size_t *skip_bytes, *skip_gradient_bytes; /* [skips of the schedule] of a message */
    bool copy_strided; /* the caller's tensors may be strided, and the stage wants them compact */
    int order_blocks; /* of fixed order; 0: any order */
    bool driven;      /* messages decide the order of ops, see dp_execution */
    bool staged; /* what is received leaves the wire's memory by a copy that takes its time */
    bool ordered; /* streams wait for messages, the host only at the end of a step: each message of
                   * a step has a request of its own */
    bool adds_sums; /* slots are summed with their mirrors', though the schedule has no REDUCE */
    bool reduced_outside; /* REDUCE takes the stage's own gradients, not what they are made of */
};

/* When things happen to one micro-batch in one slot: indices of ops. */
struct dp_lifetime_steps {
    uint32_t recv_f, recv_b; /* its receives */
    uint32_t f;
    uint32_t evict, fetch; /* DP_NO_LIFETIME: none */
    uint32_t again;      /* RECOMPUTE, DP_NO_LIFETIME: none */
    uint32_t b_first, b; /* B or I; b_first is earlier where it is part of an overlapped pair */
    uint32_t done;       /* the last that needs its input: W, B, or the F of a forward-only step */
    uint32_t sent_f, sent_b; /* the end of what is sent */
};

enum dp_memory_part { DP_PART_IN, DP_PART_OUT, DP_PART_GOUT, DP_PART_GIN, DP_PART_SAVE, DP_PARTS };

/* A buffer: number `lifetime` of a part. DP_NO_LIFETIME: none of the pipeline's memory (a view of
 * the caller's batch, or a gradient that is not needed). */
struct dp_buffer_id {
    uint32_t part, lifetime;
};

struct dp_buffer_ids {
    struct dp_buffer_id in, out, gout, gin, save, save_input, save_weight;
    /* Of a micro-batch that is recomputed: `save` and `save_input` are filled then; its first
     * forward has others, and the second one another output. */
    struct dp_buffer_id first_save, first_save_input, again_out;
    /* Of one that is evicted: where it is from its FETCH on, and on the host (lifetimes.host). */
    struct dp_buffer_id back_save, back_save_input, host_save, host_save_input;
};

/* A skip of one micro-batch, on a rank where it begins (out, gout), ends (in, gin), or both: then they
 * are the same. again: what a recomputed forward puts out once more. */
struct dp_skip_buffers {
    struct dp_buffer_id out, again, in, gout, gin;
};

/* When its messages are posted, and no longer needed. */
struct dp_skip_steps {
    uint32_t recv_f, recv_b, sent_f, sent_b;
};

struct dp_part {
    struct dp_lifetime *lifetimes;
    uint32_t count;
    struct dp_offset_owners before;
    size_t base, bytes; /* where the part begins in the rank's memory, and its size */
};

struct dp_lifetimes {
    struct dp_order order;
    uint32_t mb_count;               /* of one slot */
    bool driven;
    struct dp_lifetime_steps *steps; /* [slots * mb_count] */
    struct dp_buffer_ids *buffers;   /* [slots * mb_count] */
    struct dp_skip_steps *skip_steps;     /* [streams * skips * mb_count] */
    struct dp_skip_buffers *skip_buffers; /* the same */
    int32_t skips;                        /* of the schedule */
    struct dp_part parts[DP_PARTS];
    struct dp_part host;             /* of the memory on the host */
    size_t bytes;
    int32_t peak_activations;
};

int dp_lifetimes_init(struct dp_lifetimes *lifetimes, const struct dp_plan_source *source);
void dp_lifetimes_fini(struct dp_lifetimes *lifetimes);

/* The F at index i and the B after it are handed to the stage as one call. */
bool dp_lifetimes_is_pair(const struct dp_lifetimes *lifetimes, const struct dp_plan_source *source,
                          uint32_t i);

static inline size_t dp_lifetimes_index(const struct dp_lifetimes *lifetimes, uint32_t slot,
                                        uint32_t mb)
{
    return (size_t)slot * lifetimes->mb_count + mb;
}

static inline size_t dp_lifetimes_skip(const struct dp_lifetimes *lifetimes, int stream,
                                       uint32_t skip, uint32_t mb)
{
    return ((size_t)stream * (size_t)lifetimes->skips + skip) * lifetimes->mb_count + mb;
}

/* Offset in the rank's memory, or DP_NOWHERE. */
static inline size_t dp_lifetimes_offset(const struct dp_lifetimes *lifetimes,
                                         struct dp_buffer_id id)
{
    if (id.lifetime == DP_NO_LIFETIME)
        return DP_NOWHERE;
    const struct dp_part *part = &lifetimes->parts[id.part];
    return part->base + part->lifetimes[id.lifetime].offset;
}

/* ---- plan ------------------------------------------------------------------------------------ */

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

/* Offsets in the rank's memory; DP_NOWHERE as in border.h. */
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
    /* Evictions number .. - 1 must have left, or come back: see evict.c. 0: none. */
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
