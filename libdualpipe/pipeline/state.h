/* SPDX-License-Identifier: Apache-2.0
 *
 * state.h - what a pipeline consists of, for the files that carry out its steps.
 *
 *      pipeline.c   new and free
 *      check.c      is a config right?          agree.c   is it everybody's?
 *      step.c       a step's arguments, its begin and its end
 *      run.c        the loop over the plan
 *      compute.c    entries that call the stage or the loss
 *      messages.c   entries that send and receive, and all waiting
 *      reduce.c     entries that add gradients up; halves.c: the second set of fixed order
 *      batch.c      the caller's batch, cut into micro-batches
 *      recorder.c   start and end of every entry
 */
#ifndef DP_PIPELINE_STATE_H
#define DP_PIPELINE_STATE_H

#include "pipeline/batch.h"
#include "pipeline/halves.h"
#include "pipeline/plan.h"
#include <dualpipe/trace.h>

struct dp_message_state {
    struct dp_request request;
    struct dp_device_event *copied; /* staged: the copy to or from the wire's memory */
    bool unsent;                    /* staged: still waits for that copy ... */
    const struct dp_plan_op *next_unsent; /* ... before this one */
};

/* Where micro-batches begin and end: filled only where this rank holds such a stage. */
struct dp_ends {
    int first_slot, last_slot; /* -1: none here */
};

/* What changes during a step, and is empty between steps. */
struct dp_step_state {
    struct dp_step *args;
    int32_t loss_values; /* of a micro-batch, 0: no loss has been taken yet */
    int64_t waited_ns, longest_wait_ns; /* of the entry at hand */
    int32_t waited_for;                 /* the peer of the longest */
    const struct dp_plan_op *first_unsent, *last_unsent; /* staged: sends that wait for a copy */
};

struct dp_pipeline {
    struct dp_pipeline_config config;
    int rank;                      /* pipeline rank */
    struct dp_stage *stages;       /* [slots_per_rank] */
    struct dp_border *borders;     /* [stages + 1] */
    struct dp_border *handed_out;  /* the same: whose shapes callbacks get to see, and might change */
    struct dp_border_layout *layouts;
    struct dp_tensor_spec label;
    struct dp_ends ends;
    struct dp_plan plan;

    struct dp_device *device;
    bool owns_device, staged; /* staged: messages go through pinned memory */
    struct dp_device_stream *compute, *outgoing;
    void *native_stream;           /* compute, as a stage knows it */
    struct dp_device_event *done;  /* of a copy that the host waits for */
    size_t taken_bytes; /* all of the below, but the second half */
    char *memory;  /* plan.bytes, of memory_kind */
    enum dp_memory memory_kind;
    char *pinned;  /* staged: as many bytes on the host */
    char *wire;    /* what transports read and write: one of the two */
    char *label_memory;
    struct dp_message_state *messages; /* [plan.requests] */
    double *loss_memory;               /* [max_loss_values] */

    struct dp_halves halves;
    char *reduce_memory; /* two chunks of the mirror's gradients, and of the own where staged */

    int64_t deadline_ns;
    uint64_t step;
    uint64_t digest;                  /* of all that ranks agreed on */
    uint64_t *agreement;              /* [2 * ranks] each rank's step and digest */
    bool recording;                   /* this step */
    struct dp_step_state now;
};

static inline const struct dp_slot *dp_pipeline_slot(const struct dp_pipeline *pipe, int slot)
{
    return dp_schedule_slot(pipe->config.schedule, pipe->rank, slot);
}

#endif
