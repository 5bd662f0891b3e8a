/* SPDX-License-Identifier: Apache-2.0
 *
 * internal.h - what other layers of the library call of this one, and its users do not.
 */
#ifndef DP_PIPELINE_INTERNAL_H
#define DP_PIPELINE_INTERNAL_H

#include <dualpipe/pipeline.h>
#include <dualpipe/trace.h>

/* Off (a new recorder is on): steps run as if there were none. */
void dp_recorder_enable(struct dp_recorder *rec, bool on);
/* Copies of save areas to the host and back (EVICT, FETCH), since the pipeline was made: how long those
 * of each direction were at work, and how long the calling thread waited for them, where it computes.
 * Between steps. */
struct dp_pipeline_copies {
    int64_t down_ns, up_ns, wait_ns;
};
void dp_pipeline_copies(const struct dp_pipeline *pipe, struct dp_pipeline_copies *out);
/* "list", "messages". */
const char *dp_execution_name(enum dp_execution execution);

#endif
