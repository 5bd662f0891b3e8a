/* SPDX-License-Identifier: Apache-2.0
 *
 * lives.h - how long each buffer of a rank is needed, in indices of its op list, and so where in
 * memory it lies.
 *
 *      input            its receive (or the forward that copies it)  ..  B, or W after an I
 *      output           F .. the batch after the one that sends it; a last stage's: F .. B
 *      output gradient  its receive (a last stage's: B) .. B or I
 *      input gradient   B or I .. the batch after the one that sends it
 *      save area        F .. B, or W after an I
 *
 * A buffer that is sent lives one batch longer than the schedule asks, so that a peer that is a
 * little late does not stop the rank. What a slot hands to another slot of the same rank (DualPipeV
 * where it turns) is one buffer with one life.
 */
#ifndef DP_PIPELINE_LIVES_H
#define DP_PIPELINE_LIVES_H

#include "pipeline/arena.h"
#include "pipeline/border.h"
#include <dualpipe/pipeline.h>

#define DP_NEVER UINT32_MAX

/* What a rank's plan is made from. */
struct dp_plan_source {
    const struct dp_schedule *schedule;
    int rank; /* pipeline rank */
    const struct dp_stage *stages;          /* [slots_per_rank] */
    const struct dp_border_layout *layouts; /* [stages + 1] */
    bool copy_batch; /* micro-batches are not contiguous in the caller's batch */
    bool fixed_order;
    bool staged; /* what is received leaves the wire's memory by a copy that takes its time */
};

/* When things happen to one micro-batch in one slot: indices of ops. */
struct dp_moments {
    uint32_t recv_f, recv_b; /* its receives */
    uint32_t f;
    uint32_t b_first, b;     /* B or I; b_first is earlier where it is part of an overlapped pair */
    uint32_t done;           /* the last that needs its input: W, B, or the F of a forward-only step */
    uint32_t sent_f, sent_b; /* the end of what is sent */
};

enum dp_memory_part { DP_PART_IN, DP_PART_OUT, DP_PART_GOUT, DP_PART_GIN, DP_PART_SAVE, DP_PARTS };

/* A buffer: the `life`-th of a part. life DP_NEVER: no memory of ours (a view of the caller's batch,
 * or a gradient that nobody wants). */
struct dp_place {
    uint32_t part, life;
};

struct dp_places {
    struct dp_place in, out, gout, gin, save;
};

struct dp_part {
    struct dp_life *lives;
    uint32_t count;
    struct dp_arena_before before;
    size_t base, bytes; /* where the part begins in the rank's memory, and its size */
};

struct dp_lives {
    uint32_t mb_count; /* of one slot */
    struct dp_moments *moments; /* [slots * mb_count] */
    struct dp_places *places;   /* [slots * mb_count] */
    struct dp_part parts[DP_PARTS];
    size_t bytes;
    int32_t peak_activations;
};

int dp_lives_init(struct dp_lives *lives, const struct dp_plan_source *source);
void dp_lives_fini(struct dp_lives *lives);

/* The F at index i and the B after it are handed to the stage as one call. */
bool dp_plan_is_pair(const struct dp_plan_source *source, uint32_t i);

/* An I of this slot leaves a weight part for a W. */
static inline bool dp_plan_splits(const struct dp_plan_source *source, int slot)
{
    return !source->stages[slot].no_split;
}

static inline size_t dp_lives_at(const struct dp_lives *lives, uint32_t slot, uint32_t mb)
{
    return (size_t)slot * lives->mb_count + mb;
}

/* Offset in the rank's memory, or DP_NOWHERE. */
static inline size_t dp_lives_offset(const struct dp_lives *lives, struct dp_place place)
{
    if (place.life == DP_NEVER)
        return DP_NOWHERE;
    return lives->parts[place.part].base + lives->parts[place.part].lives[place.life].offset;
}

#endif
