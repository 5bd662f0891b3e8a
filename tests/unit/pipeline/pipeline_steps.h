/* SPDX-License-Identifier: Apache-2.0
 *
 * pipeline_steps.h - a few steps of a pipeline, compared with a sequential loop.
 */
#ifndef DP_TESTS_PIPELINE_STEPS_H
#define DP_TESTS_PIPELINE_STEPS_H

#include "pipeline_case.h"

enum { STEPS = 2 };
static const int64_t deadline_ns = INT64_C(20000000000);

static inline int run_steps(struct dp_comm *comm, void *arg)
{
    return case_train(comm, arg, STEPS);
}

static inline void expect_sequential_by(struct job job, rank_fn run)
{
    case_run(&job, deadline_ns, run, STEPS - 1);
}

static inline void expect_sequential(struct job job)
{
    expect_sequential_by(job, run_steps);
}

/* A few schedules, for what need not be tried with all of them. */
static const struct dp_schedule_spec some[] = {
    {.kind = DP_SCHEDULE_1F1B, .ranks = 2, .microbatches = 5},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 2, .microbatches = 6},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 10},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 12, .slack = 1},
    {.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 1, .microbatches = 3},
    {.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 3, .microbatches = 6},
};
enum { SOME = sizeof(some) / sizeof(*some) };

#endif
