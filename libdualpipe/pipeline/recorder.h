/* SPDX-License-Identifier: Apache-2.0
 *
 * recorder.h - the ring that a pipeline writes to.
 */
#ifndef DP_PIPELINE_RECORDER_H
#define DP_PIPELINE_RECORDER_H

#include <dualpipe/trace.h>

struct dp_record {
    int64_t start_ns, end_ns; /* dp_now_ns() of this rank */
    int64_t waited_ns;
    int32_t waited_for;       /* pipeline rank, -1 */
    uint32_t index : 31;      /* of the op in the rank's list */
    uint32_t pair : 1;        /* and of the one after it */
};

/* A step begins now; what is recorded from here on replaces the oldest step of the ring. */
void dp_recorder_begin(struct dp_recorder *rec, uint64_t step);
/* Beyond the ring's ops a step's records are counted, and lost. */
void dp_recorder_add(struct dp_recorder *rec, const struct dp_record *record);
/* The step has succeeded now; one that does not leaves no trace. */
void dp_recorder_end(struct dp_recorder *rec);
bool dp_recorder_enabled(const struct dp_recorder *rec);
/* NULL: none; rec may be NULL. */
struct dp_live *dp_recorder_live(const struct dp_recorder *rec);

/* What a recorder holds, for the files that read it. */
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
