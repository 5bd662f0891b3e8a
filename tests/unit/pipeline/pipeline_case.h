/* SPDX-License-Identifier: Apache-2.0
 *
 * pipeline_case.h - what tests of pipelines share: a schedule of a spec, and a job that all ranks
 * run and whose results are compared with the sequential loop. What goes wrong fails the test.
 */
#ifndef DP_TESTS_PIPELINE_CASE_H
#define DP_TESTS_PIPELINE_CASE_H

#include "cmocka_all.h"

#include "unit/comm/comm_group.h"
#include "pipeline_job.h"

static inline struct dp_schedule *case_schedule(struct dp_schedule_spec spec)
{
    struct dp_schedule *s = NULL;

    if (dp_schedule_new(&spec, &s))
        fail_msg("%s", dp_last_error());
    return s;
}

/* fn on a thread for each rank, whatever comes out. */
static inline void case_run_apart(struct job *job, int64_t deadline_ns, rank_fn fn)
{
    job_begin(job);
    assert_int_equal(comm_on_threads(job->schedule->ranks, deadline_ns, fn, job), 0);
    job_end(job);
}

/* The same, and the sequential loop's results come out; last_step is the number of the last step that it takes. */
static inline void case_run(struct job *job, int64_t deadline_ns, rank_fn fn, uint64_t last_step)
{
    job_begin(job);
    assert_int_equal(comm_on_threads(job->schedule->ranks, deadline_ns, fn, job), 0);
    assert_true(job_result_is_sequential(job, last_step));
    job_end(job);
}

/* A rank's part: open, so many steps, close. */
static inline int case_train(struct dp_comm *comm, const struct job *job, int steps)
{
    ENDED_BY(job_rank_close) struct job_rank r = {0};

    CHECK(!job_rank_open(&r, job, comm));
    for (int i = 0; i < steps; i++)
        CHECK(!job_rank_step(&r));
    return 0;
}

#endif
