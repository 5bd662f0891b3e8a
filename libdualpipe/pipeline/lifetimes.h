/* SPDX-License-Identifier: Apache-2.0
 *
 * lifetimes.h - how long each buffer of a rank is needed, in indices of its op list, and so where
 * in memory it lies.
 *
 *      input            its receive (or the forward that copies it)  ..  the weight part
 *      output           F .. the batch after the one that sends it; a last stage's: F .. B
 *      output gradient  its receive (a last stage's: B) .. the weight part
 *      input gradient   B or I .. the batch after the one that sends it
 *      evicted          save and save_input: F .. EVICT, and FETCH .. their end; on the host between
 *                       EVICT and the backward
 *      save             F (or RECOMPUTE) .. the weight part: B, W after an I, or its turn in fixed
 * order save_input       F (or RECOMPUTE) .. B or I save_weight      B or I .. the weight part
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
 * whole step.
 */
#ifndef DP_PIPELINE_LIFETIMES_H
#define DP_PIPELINE_LIFETIMES_H

#include "pipeline/border.h"
#include "pipeline/offsets.h"
#include "pipeline/order.h"
#include <dualpipe/pipeline.h>

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

#endif
