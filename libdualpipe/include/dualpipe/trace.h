/* SPDX-License-Identifier: Apache-2.0
 *
 * trace.h - what a real step did, op by op: recorded in a ring, gathered from all ranks on one
 * clock, written as Perfetto JSON, summed up in a report.
 */
#ifndef DUALPIPE_TRACE_H
#define DUALPIPE_TRACE_H

#include <dualpipe/comm.h>
#include <dualpipe/schedule.h>

#ifdef __cplusplus
extern "C" {
#endif

struct dp_recorder;

/* A ring for the last `steps` steps of at most `ops` computes and reduces each (the length of the
 * rank's op list is always enough), allocated here and never again. Recording an op costs two clock
 * reads and one store of 32 bytes. DP_EINVAL, DP_ENOMEM. One pipeline at a time may use it. */
DP_PUBLIC int dp_recorder_new(size_t ops, int steps, struct dp_recorder **out);
DP_PUBLIC void dp_recorder_free(struct dp_recorder *rec);
/* Off (a new recorder is on): steps run as if there were none. */
DP_PUBLIC void dp_recorder_enable(struct dp_recorder *rec, bool on);

/* Collective: gather the last recorded step of all ranks, on rank 0's clock, on rank 0. Elsewhere
 * *out becomes empty. comm may be NULL for a schedule of one rank. Time 0 is when the first rank
 * began. DP_ESTATE everywhere if a rank has recorded no step, another one or more ops than its ring
 * holds. The caller ends it with dp_timeline_fini. */
DP_PUBLIC int dp_recorder_gather(struct dp_recorder *rec, const struct dp_schedule *s,
                                 struct dp_comm *comm, struct dp_timeline *out);

/* Chrome trace-event JSON, as ui.perfetto.dev and chrome://tracing open it: a process per rank, in
 * it a thread per slot and one for waiting, flow arrows from the op that produced a message to the
 * one that consumed it, counters of live activation sets and of the weight queue. For recorded
 * timelines and simulated ones. *json is malloc'ed, NUL-terminated, *len without the NUL.
 * Source: "Trace Event Format", the document of the Chromium project. */
DP_PUBLIC int dp_timeline_write_perfetto(const struct dp_timeline *t, const struct dp_schedule *s,
                                         char **json, size_t *len);

/* Where the time of a step went. achieved / simulated is makespan_ns / simulated_ns. */
struct dp_trace_report {
    int32_t rank_count;
    int64_t makespan_ns;
    int64_t simulated_ns; /* the same ops with the same durations, and messages that take no time */
    double bubble_ratio;  /* sum of bubbles / (ranks * makespan) */
    struct dp_rank_report *ranks; /* [P] */
    int32_t *waited_for;          /* [P] the peer waited for longest, -1: none */
    int64_t *waited_for_ns;       /* [P] how long that was */
};
DP_PUBLIC int dp_trace_report(const struct dp_timeline *t, const struct dp_schedule *s,
                              struct dp_trace_report *out);
DP_PUBLIC void dp_trace_report_fini(struct dp_trace_report *report);
/* A table for people. *text is malloc'ed, NUL-terminated. */
DP_PUBLIC int dp_trace_report_text(const struct dp_trace_report *report, char **text, size_t *len);

#ifdef __cplusplus
}
#endif
#endif
