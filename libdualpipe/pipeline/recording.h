/* SPDX-License-Identifier: Apache-2.0
 *
 * recording.h - what a recorder holds, for the files that read it.
 */
#ifndef DP_PIPELINE_RECORDING_H
#define DP_PIPELINE_RECORDING_H

#include "pipeline/recorder.h"

struct dp_recorded_step {
    uint64_t step;
    int64_t begin_ns, end_ns;
    size_t count; /* records of the step; those beyond the capacity are lost */
};

struct dp_recorder {
    size_t capacity; /* records of a step */
    int step_count;
    int current;     /* being recorded, -1: none */
    int last;        /* the newest whole step, -1: none */
    bool on;
    struct dp_live *live; /* NULL: none looks on */
    struct dp_recorded_step *steps; /* [step_count] */
    struct dp_record *records;      /* [step_count * capacity] */
};

#endif
