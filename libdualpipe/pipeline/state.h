/* SPDX-License-Identifier: Apache-2.0
 *
 * state.h - what a pipeline consists of, for the files that carry out its steps.
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

#include "pipeline/border.h"
#include "pipeline/evict.h"
#include "pipeline/plan.h"
#include "pipeline/reduce.h"
#include "schedule/internal.h"
#include <dualpipe/comm.h>
#include <dualpipe/trace.h>

#include <stdio.h>

/* ---- skips ----------------------------------------------------------------------------------- */

/* The tensors of skip connections that a callback of a stage is handed (stage.h: dp_skip_stash
 * and the others), and what becomes of those it was to fill. */

struct dp_pipeline;

/* A skip that begins or ends at the stage which is called. */
struct dp_skip_use {
    int32_t skip;
    bool makes;           /* it begins here */
    bool asked_value, asked_gradient; /* by the callback at hand */
    DLTensor value, gradient;
    int64_t shape[2][DP_MAX_DIMS];
    char *at[2]; /* where value and gradient are kept; NULL: nowhere */
};

/* What dp_stage_call.skips points at. */
struct dp_stage_skips {
    const struct dp_schedule *schedule;
    int stage;
    enum dp_plan_kind kind; /* of the entry */
    int32_t count;
    struct dp_skip_use *uses; /* [most of any slot] */
    int stream;
    uint32_t mb;
    char wrong[300]; /* what the callback did and must not; "": nothing */
};

struct dp_pipeline_skips {
    struct dp_tensor_spec *specs; /* [skips of the schedule] */
    size_t *bytes, *gradient_bytes; /* of one message of each; a gradient: 0 for none */
    int32_t **of_slot;  /* [slots] numbers of its skips, then -1 */
    bool *absent;       /* [streams * skips * micro-batches] no value was put out */
    struct dp_stage_skips now[2]; /* of a pair, forward and backward */
};

/* Of the config's schedule. DP_ENOMEM. */
int dp_pipeline_skips_init(struct dp_pipeline *pipe);
/* When it is known how many micro-batches a step may have. DP_ENOMEM. */
int dp_pipeline_skips_take(struct dp_pipeline *pipe, int32_t mbs);
void dp_pipeline_skips_fini(struct dp_pipeline *pipe);

/* The tensors for an entry; NULL where its stage has none. */
struct dp_stage_skips *dp_skips_begin(struct dp_pipeline *pipe, enum dp_plan_kind kind, int slot,
                                      uint32_t mb);
/* After its callback, which returned 0. `wrong` says what it has not taken or filled and should have. */
int dp_skips_end(struct dp_pipeline *pipe, struct dp_stage_skips *skips);

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
    int first_slot, last_slot; /* -1: none here */
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

/* Where a message arrives that may be any. */
enum { DP_LANDINGS = 2 };
struct dp_landing {
    struct dp_request request;
    char *memory;
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
    struct dp_pipeline_config config; /* its schedule is that of the step at hand */
    int rank, slots;                  /* pipeline rank; slots that it has */
    struct dp_stage *stages;          /* [slots] */
    struct dp_slot_step *slot_steps;  /* [slots] */
    struct dp_border *declared;       /* [stages + 1] */
    struct dp_border *borders;        /* the same with the extents of the micro-batch at hand */
    struct dp_border
        *handed_out; /* the same: the shapes that callbacks are handed, and might change */
    DLTensor *blanks; /* [stages + 1][DP_MAX_TENSORS] as callbacks are handed them, but for the data;
                       * the shapes are those of handed_out */
    struct dp_border_layout *layouts;
    struct dp_border declared_labels, labels;
    struct dp_border_layout label_layout;
    struct dp_ends ends;
    struct dp_program *programs; /* [program_count] the first is of the config's schedule */
    int program_count;
    struct dp_plan plan; /* of the step at hand; owned by its program */
    struct dp_driven *driven; /* the same */
    struct dp_landing landings[DP_LANDINGS];
    size_t landing_bytes; /* of one */
    char *landing_memory;
    struct dp_plan most; /* no entries; its numbers are the largest of all programs */

    struct dp_device *device;
    DLDevice dl; /* the device's */
    bool owns_device, owns_compute;
    struct dp_live *live; /* of the step at hand; NULL: none looks on */
    bool out_of_reach; /* the CPU and wires do not reach the device's memory: sums go through pinned
                        * memory, */
    bool staged;       /* and messages, too, unless the communicator reaches it */
    bool registered;   /* memory, with a communicator that reads and writes it on the device */
    bool sums_there;   /* ordered: the device adds gradients up, also those of mirrors */
    bool ordered;      /* messages are in the order of streams: these wait, not the host */
    struct dp_device_stream *compute, *outgoing, *summing; /* summing: sums that are queued */
    void *native_stream;           /* compute, as a stage knows it */
    struct dp_device_event *done;  /* of a copy that the host waits for; one stream for another */
    size_t taken_bytes;            /* all of the below, but the accumulator */
    char *memory;  /* plan.bytes, of memory_kind */
    enum dp_memory memory_kind;
    char *pinned;  /* staged: as many bytes on the host */
    char *wire;    /* what transports read and write: one of the two */
    char *label_memory; /* copies of strided labels, of a forward and of a backward */
    void **own; /* [2 * slots * mb_per_stream] buffers that stages have handed over to be sent */
    void **handles;     /* [slots * mb_per_stream] of stages */
    struct dp_message_state *messages; /* [plan.requests] */
    double *loss_memory;               /* [max_loss_values] */

    struct dp_tied *tied; /* tied.c */
    struct dp_pipeline_skips skips;
    struct dp_evictions evictions;
    struct dp_accumulator accumulator;
    char *arrivals; /* sums_there: pieces of the mirror's gradients, on the device */
    char *
        reduce_memory; /* pieces of the mirror's gradients; out of reach: of the own, and of sums */
    struct dp_mirror_sums reductions;

    int64_t deadline_ns;
    uint64_t step;
    uint64_t digest;                  /* of all that ranks agreed on */
    uint64_t *agreement;              /* [DP_AGREED * ranks] see dp_step_agree */
    const int64_t (*extents)[DP_MAX_EXTENTS]; /* of the step; NULL: all as declared */
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
    return (size_t)op->slot * (size_t)pipe->config.schedule->mb_per_stream + op->mb;
}

static inline void **dp_own_buffer(const struct dp_pipeline *pipe, const struct dp_plan_op *op,
                                   int channel)
{
    return &pipe->own[2 * dp_pipeline_index(pipe, op) + (channel == DP_CHANNEL_GRADIENT)];
}

static inline const struct dp_slot *dp_pipeline_slot(const struct dp_pipeline *pipe, int slot)
{
    return dp_schedule_slot(pipe->config.schedule, pipe->rank, slot);
}

/* "rank 2, op 17: F of micro-batch 3 in slot 0 (stage 2)". */
static inline void dp_pipeline_describe(const struct dp_pipeline *pipe,
                                        const struct dp_plan_op *op, char *text, size_t len)
{
    const struct dp_op *listed =
        dp_schedule_ops(pipe->config.schedule, pipe->rank) + op->index;

    snprintf(text, len, "rank %d, op %u: %s of micro-batch %u in slot %d (stage %d)", pipe->rank,
             op->index, dp_op_kind_name((enum dp_op_kind)listed->kind), op->mb, op->slot,
             dp_pipeline_slot(pipe, op->slot)->stage);
}

#endif
