/* SPDX-License-Identifier: Apache-2.0
 *
 * base.h - what the parts of a pipeline stand on (skips, tied parameters, steps of batches, execution by
 * messages): what is decided when it is made, and what is at hand in a step.
 */
#ifndef DP_PIPELINE_BASE_H
#define DP_PIPELINE_BASE_H

#include "pipeline/plan.h"
#include "schedule/internal.h"
#include <dualpipe/device.h>
#include <dualpipe/pipeline.h>

struct dp_pipeline_base {
    struct dp_pipeline *pipe;         /* that it is of, for the functions of steps.h */
    struct dp_pipeline_config config; /* its schedule is that of the step at hand */
    int rank, slots;                  /* pipeline rank; slots that it has */
    int first_slot, last_slot;        /* where the model begins and ends; -1: not here */
    struct dp_stage *stages;          /* [slots] */
    struct dp_program *programs;      /* [program_count] the first is of the config's schedule */
    int program_count;
    struct dp_device *device;
    struct dp_device_stream *compute;
    bool out_of_reach;    /* the CPU and wires do not reach the device's memory: sums go through pinned
                           * memory */
    char *memory;         /* plan.bytes */
    char *landing_memory; /* DP_LANDINGS messages that arrive from anywhere ... */
    size_t landing_bytes; /* ... of that length at most */
    const int64_t (*extents)[DP_MAX_EXTENTS]; /* of the step; NULL: all as declared */
    struct dp_tied *tied;                     /* tied.c */
};

/* A pipeline's, for a function of the interface that is handed only that. */
const struct dp_pipeline_base *dp_base_of(const struct dp_pipeline *pipe);

static inline const struct dp_slot *dp_base_slot(const struct dp_pipeline_base *base, int slot)
{
    return dp_schedule_slot(base->config.schedule, base->rank, slot);
}

#endif
