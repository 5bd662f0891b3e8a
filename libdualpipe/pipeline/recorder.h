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

#endif
