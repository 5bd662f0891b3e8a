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

/* A ring for the last `steps` steps of at most `ops` ops each, allocated here and never again.
 * Recording an op costs two clock reads and two stores. */
DP_PUBLIC int dp_recorder_new(size_t ops, int steps, struct dp_recorder **out);
DP_PUBLIC void dp_recorder_free(struct dp_recorder *rec);
/* Off (a new recorder is on): steps run as if there were none. */
DP_PUBLIC void dp_recorder_enable(struct dp_recorder *rec, bool on);

/* Collective: gather the last recorded step of all ranks, on rank 0's clock, on rank 0. Elsewhere
 * *out becomes empty. DP_ESTATE if a rank has recorded no step or another one. The caller ends it
 * with dp_timeline_fini. */
DP_PUBLIC int dp_recorder_gather(struct dp_recorder *rec, const struct dp_schedule *s,
                                 struct dp_comm *comm, struct dp_timeline *out);

/* Chrome trace-event JSON, as ui.perfetto.dev and chrome://tracing open it: a process per rank, a
 * thread per slot, flow arrows from the op that produced a message to the one that consumed it.
 * *json is malloc'ed. */
DP_PUBLIC int dp_timeline_write_perfetto(const struct dp_timeline *t, const struct dp_schedule *s,
                                         char **json, size_t *len);

/* Per rank: busy, bubble, waiting and for whom; and what the simulator makes of the same op times.
 * *text is malloc'ed: a table for people. achieved / simulated is the ratio of makespans. */
struct dp_trace_report {
    int64_t makespan_ns;
    int64_t simulated_ns;  /* critical path with each op's measured time */
    double bubble_ratio;
    struct dp_rank_report *ranks; /* [P] */
    int32_t *waited_for;          /* [P] the peer waited for longest, -1 none */
};
DP_PUBLIC int dp_trace_report(const struct dp_timeline *t, const struct dp_schedule *s,
                              struct dp_trace_report *out);
DP_PUBLIC void dp_trace_report_fini(struct dp_trace_report *report);
DP_PUBLIC int dp_trace_report_text(const struct dp_trace_report *report, int32_t ranks, char **text,
                                   size_t *len);

#ifdef __cplusplus
}
#endif
#endif
