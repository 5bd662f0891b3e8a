/* SPDX-License-Identifier: Apache-2.0
 *
 * state.h - what a pipeline consists of beside its base, for the files that carry out its steps; the
 * other files know the base only.
 *
 *      pipeline.c   new and free
 *      check.c      is a config valid?
 *      agree.c      do all ranks agree on it? The others are told of a failure
 *      step.c       a step's arguments, its begin and its end, and the loop over the plan;
 *                   asyncpipe/driven.c: that over the messages that come
 *      compute.c    entries that call the stage or the loss; micro-batches of a loader
 *      messages.c   entries that send and receive, and all waiting, also of streams for each other;
 *                   links are made, copies of a stage start equal
 *      reduce.c     gradients: sets of them, summed on this rank and with the mirror's
 *      skips.c      tensors of skip connections
 *      evict.c      save areas that wait on the host
 *      border.c     the caller's micro-batches, and the bytes of a border
 *      recorder.c   start and end of every entry
 */
#ifndef DP_PIPELINE_STATE_H
#define DP_PIPELINE_STATE_H

#include "pipeline/base.h"
#include "pipeline/border.h"
#include "pipeline/evict.h"
#include "pipeline/plan.h"
#include "pipeline/reduce.h"
#include "pipeline/skips.h"
#include "schedule/internal.h"
#include <dualpipe/comm.h>
#include <dualpipe/trace.h>

#include <stdio.h>

/* ---- state ----------------------------------------------------------------------------------- */

struct dp_message_state {
    struct dp_request request;
    struct dp_device_event *copied; /* staged: the copy to or from the wire's memory */
    bool unsent;                    /* staged: still waits for that copy ... */
    const struct dp_plan_op *next_unsent; /* ... before this one */
    void *given; /* the buffer of the stage in given_slot that is sent; NULL: the pipeline's own is */
    int given_slot;
};

/* Where micro-batches begin and end: filled only where this rank holds such a stage. */
struct dp_ends {
    struct dp_batch inputs, labels, outputs, output_grads; /* of the step */
};

/* What changes during a step, and is empty between steps. */
struct dp_step_state {
    struct dp_step *args;
    int32_t loss_values; /* of a micro-batch, 0: no loss has been taken yet */
    int32_t pair_losses; /* of the pair at hand */
    int64_t waited_ns, longest_wait_ns; /* of the entry at hand */
    int32_t waited_for;                 /* the peer of the longest */
    const struct dp_plan_op *first_unsent, *last_unsent; /* staged: sends that wait for a copy */
};

/* A border of a slot's stage. */
struct dp_side {
    const struct dp_border *border; /* as it is now */
    const DLTensor *blanks;
    const struct dp_border_layout *layout;
};

/* What a step has in common for all micro-batches of a slot, so that an op needs not look it up. */
struct dp_slot_step {
    struct dp_side in, out;
    const struct dp_slot *slot;
    const struct dp_stage *stage;
    struct dp_stage_call call; /* of micro-batch 0, random of number 0 of the whole batch */
    uint64_t doing;            /* its part of dp_comm_note */
};

struct dp_pipeline {
    struct dp_pipeline_base base;
    struct dp_slot_step *slot_steps;  /* [slots] */
    struct dp_border *declared;       /* [stages + 1] */
    struct dp_border *borders;        /* the same with the extents of the micro-batch at hand */
    struct dp_border *handed_out; /* the same: shapes that callbacks are handed, and might change */
    DLTensor *blanks; /* [stages + 1][DP_MAX_TENSORS] as callbacks are handed them, but for the data;
                       * the shapes are those of handed_out */
    struct dp_border_layout *layouts;
    struct dp_border declared_labels, labels;
    struct dp_border_layout label_layout;
    struct dp_ends ends;
    struct dp_plan plan; /* of the step at hand; owned by its program */
    struct dp_driven *driven; /* the same */
    struct dp_plan most; /* no entries; its numbers are the largest of all programs */

    bool owns_device, owns_compute;
    struct dp_live *live; /* of the step at hand; NULL: none looks on */
    bool staged;       /* out of reach of the communicator, too: messages go through pinned memory */
    bool registered;   /* memory, with a communicator that reads and writes it on the device */
    bool sums_there;   /* ordered: the device adds gradients up, also those of mirrors */
    bool ordered;      /* messages are in the order of streams: these wait, not the host */
    struct dp_device_stream *outgoing, *summing; /* summing: sums that are queued */
    void *native_stream;           /* compute, as a stage knows it */
    struct dp_device_event *done;  /* of a copy that the host waits for; one stream for another */
    size_t taken_bytes;            /* all of the below, but the accumulator */
    enum dp_memory memory_kind;
    char *pinned;  /* staged: as many bytes on the host */
    char *wire;    /* what transports read and write: one of the two */
    char *label_memory; /* copies of strided labels, of a forward and of a backward */
    void **own; /* [2 * slots * mb_per_stream] buffers that stages have handed over to be sent */
    void **handles;     /* [slots * mb_per_stream] of stages */
    struct dp_message_state *messages; /* [plan.requests] */
    double *loss_memory;               /* [max_loss_values] */

    struct dp_pipeline_skips skips;
    struct dp_evictions evictions;
    struct dp_accumulator accumulator;
    char *arrivals; /* sums_there: pieces of the mirror's gradients, on the device */
    char *reduce_memory; /* pieces of the mirror's gradients; out of reach: of the own, and of sums */
    struct dp_mirror_sums reductions;

    int64_t deadline_ns;
    uint64_t step;
    uint64_t digest;                  /* of all that ranks agreed on */
    uint64_t *agreement;              /* [DP_AGREED * ranks] see dp_step_agree */
    bool accumulating;                /* the step before left its gradients to this one */
    bool recording;                   /* this step */
    struct dp_step_state now;
};

/* What a rank does: 4 bits of kind, 24 of step, 16 of stage, 20 of micro-batch; here of step and stage.
 * See dp_pipeline_doing_text. */
static inline uint64_t dp_pipeline_doing(uint64_t step, int stage)
{
    return (step & 0xffffff) << 36 | ((uint64_t)stage & 0xffff) << 20;
}

/* Of a micro-batch of a slot, in tables of all of them. */
static inline size_t dp_pipeline_index(const struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    return (size_t)op->slot * (size_t)pipe->base.config.schedule->mb_per_stream + op->mb;
}

static inline void **dp_own_buffer(const struct dp_pipeline *pipe, const struct dp_plan_op *op,
                                   int channel)
{
    return &pipe->own[2 * dp_pipeline_index(pipe, op) + (channel == DP_CHANNEL_GRADIENT)];
}

static inline const struct dp_slot *dp_pipeline_slot(const struct dp_pipeline *pipe, int slot)
{
    return dp_base_slot(&pipe->base, slot);
}

/* "rank 2, op 17: F of micro-batch 3 in slot 0 (stage 2)". */
static inline void dp_pipeline_describe(const struct dp_pipeline *pipe,
                                        const struct dp_plan_op *op, char *text, size_t len)
{
    const struct dp_op *listed =
        dp_schedule_ops(pipe->base.config.schedule, pipe->base.rank) + op->index;

    snprintf(text, len, "rank %d, op %u: %s of micro-batch %u in slot %d (stage %d)", pipe->base.rank,
             op->index, dp_op_kind_name((enum dp_op_kind)listed->kind), op->mb, op->slot,
             dp_pipeline_slot(pipe, op->slot)->stage);
}

#endif
