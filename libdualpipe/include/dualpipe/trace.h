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
    int64_t makespan_ns;
    int64_t simulated_ns; /* the same ops with the same durations, and messages that take no time */
    double bubble_ratio;  /* sum of bubbles / (ranks * makespan) */
};
/* DP_EINVAL: a timeline of another number of ranks; DP_ENOMEM. */
DP_SIZED(dp_trace_report, (t, s, out, sizeof(struct dp_trace_report)), const struct dp_timeline *t,
         const struct dp_schedule *s, struct dp_trace_report *out);
/* An op that began later than on paper, where each op takes the time that it took and a message none. */
struct dp_late {
    struct dp_span span;
    int64_t late_ns; /* beyond what the rank's op before it, or that which sent its message, was late */
    int32_t because; /* the pipeline rank whose message it waited for; -1: this rank itself */
};
/* The ops that were late the most, at most `room`, the latest first; *count says how many. What a step
 * takes longer than on paper is the sum of these along its critical path. DP_EINVAL, DP_ENOMEM. */
DP_PUBLIC int dp_trace_late(const struct dp_timeline *t, const struct dp_schedule *s,
                            struct dp_late *out, int room, int *count);

/* ---- while it runs --------------------------------------------------------------------------- */

/* What a rank does and waits for, for another thread or process to look at: in memory that may be
 * shared. The rank writes each member with a relaxed atomic store, a few an op; read each with
 * __atomic_load_n (members may be of different moments). Zeroed memory says nothing. */
struct dp_live {
    uint64_t doing;           /* the op begun last, dp_pipeline_doing_text; 0: none yet */
    int64_t waiting_since_ns; /* CLOCK_MONOTONIC; 0: it does not wait for a message */
    int64_t waiting_for;      /* the pipeline rank whose message it waits for, or did last */
    uint64_t sent_bytes, received_bytes; /* of messages, as they are handed to the communicator; by
                                          * DP_EXECUTE_MESSAGES received ones are not counted */
};
/* A pipeline with this recorder, also where it is off, tells what it does there from its next step
 * on. NULL: no more. `live` must stay until then. */
DP_PUBLIC void dp_recorder_show(struct dp_recorder *rec, struct dp_live *live);

/* A rank's last recorded step. */
struct dp_rank_pace {
    double compute_ns; /* by kind of op and stage, the lower quartile of times, times their number:
                        * what ranks that hold the same stages have in common */
    double step_ns;    /* all of it */
    double busy_ns, waited_ns;
    double waited_for_ns; /* for the peer waited for longest, */
    int32_t waited_for;   /* which is this pipeline rank; -1: none */
};
/* Of pipeline rank `rank`, which `rec` is of. DP_ESTATE: no step was recorded, or more ops than its
 * ring holds; DP_ENOMEM. */
DP_PUBLIC int dp_recorder_pace(const struct dp_recorder *rec, const struct dp_schedule *s, int rank,
                               struct dp_rank_pace *out);

/* Which ranks and links hold the others up. A rank is slow if it computes DP_SLOW_RATIO times as
 * long as the others that hold the same stages (its mirror in DualPipe, the same rank of replicas
 * of the pipeline; where there is none, nothing is said), and for more than 5 % of the step. A link
 * is slow if each message that a rank waited for took at least DP_SLOW_LINK_RATIO times the median
 * of all links, from the commit of its send on, and longer by 1 ms and by 2 % of the step. Each is
 * said after DP_SLOW_STEPS such steps in a row, and taken back after as many without. */
#define DP_SLOW_RATIO      1.5
#define DP_SLOW_LINK_RATIO 3.0
enum { DP_SLOW_STEPS = 3 };

enum dp_slow_kind { DP_SLOW_COMPUTE, DP_SLOW_LINK };
struct dp_slow {
    int32_t kind;         /* enum dp_slow_kind */
    int32_t rank, peer;   /* compute: the process, and one that it was compared with; link: the
                           * pipeline ranks that send and receive */
    double ns, others_ns; /* of the last step: the computes, or a message; and of the others */
};

struct dp_watch;
/* For `processes` of a schedule, those of one replica after the other: process i holds what
 * pipeline rank i % ranks does. The schedule must stay; NULL: each process holds all stages.
 * DP_EINVAL: not a multiple of its ranks; DP_ENOMEM. */
DP_PUBLIC int dp_watch_new(const struct dp_schedule *s, int processes, struct dp_watch **out);
DP_PUBLIC void dp_watch_free(struct dp_watch *watch);
/* A step of all of them, paces[processes]; of a pace compute_ns and step_ns count. Whether links
 * are worth a look, as dp_watch_links takes it: in the first steps, and where steps take longer.
 * The same on all ranks that are told the same paces. */
DP_PUBLIC bool dp_watch_step(struct dp_watch *watch, const struct dp_rank_pace *paces);
/* The links of a step, of one replica: dp_recorder_gather's. DP_EINVAL, DP_ENOMEM. */
DP_PUBLIC int dp_watch_links(struct dp_watch *watch, const struct dp_timeline *t);
/* All that are slow now, at most `room`; returns how many. */
DP_PUBLIC int dp_watch_list(const struct dp_watch *watch, struct dp_slow *out, int room);
/* "rank 3 computes 2.1 times as long as rank 0, which holds the same stages"; returns text, which
 * is cut to room. */
DP_PUBLIC const char *dp_slow_text(const struct dp_slow *slow, char *text, size_t room);

#ifdef __cplusplus
}
#endif
#endif
