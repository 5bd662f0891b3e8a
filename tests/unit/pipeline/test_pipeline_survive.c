/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank is killed in the middle of a step of a group that survives: the step ends on all others and
 * names that rank; they make a pipeline over the survivors, and its step is right to the last bit.
 */
#include "cmocka_all.h"

#include "unit/comm/comm_group.h"
#include "pipeline_job.h"

#include <dualpipe/survival.h>

enum { RANKS = 4, MICROBATCHES = 8 };
static const int64_t deadline_ns = INT64_C(20000000000);

/* What four ranks do, and the survivors after them. */
struct plan {
    enum dp_schedule_kind before, after;
    enum dp_execution execution;
    int ranks_after; /* the first ones of the survivors */
};

static const struct plan plans[] = {
    {DP_SCHEDULE_1F1B, DP_SCHEDULE_1F1B, DP_EXECUTE_LIST, 3},
    {DP_SCHEDULE_DUALPIPE, DP_SCHEDULE_DUALPIPE, DP_EXECUTE_LIST, 2},
    {DP_SCHEDULE_DUALPIPE, DP_SCHEDULE_1F1B, DP_EXECUTE_LIST, 3},
    {DP_SCHEDULE_ASYNC, DP_SCHEDULE_ASYNC, DP_EXECUTE_MESSAGES, 3},
};
enum { PLANS = sizeof(plans) / sizeof(*plans) };

struct run {
    struct job before, after;
    int ranks_after, culprit, at; /* the callback in which it dies */
};

static int calls_left; /* of this process */

static int count_down(void *user, const struct dp_stage_call *call, const char *what)
{
    if (calls_left >= 0 && calls_left-- == 0)
        raise(SIGKILL);
    return 0;
}

/* A rank that has finished its part learns of the death in what comes next, and says so. */
static int lose_a_rank(struct dp_comm *comm, const struct run *run)
{
    ENDED_BY(job_rank_close) struct job_rank r = {0};
    struct dp_abort why;

    calls_left = dp_comm_rank(comm) == run->culprit ? run->at : -1;
    CHECK(!job_rank_open(&r, &run->before, comm));
    int err = job_rank_step(&r);
    if (!err) {
        err = dp_comm_barrier(comm);
        if (err == DP_ECOMM)
            CHECK(!dp_comm_revoke(comm, err, dp_last_error()));
    }
    CHECK(err == DP_EABORTED || err == DP_ECOMM);
    CHECK(dp_comm_get(comm, DP_COMM_REVOKED) && dp_comm_aborted(comm, &why));
    CHECK(why.rank == run->culprit && why.error == DP_ECOMM);
    CHECK_ERROR(job_rank_step(&r), DP_EABORTED, "rank");
    return 0;
}

static int go_on(struct dp_comm *comm, const struct run *run)
{
    ENDED_BY(job_rank_close) struct job_rank r = {0};

    CHECK(!job_rank_open(&r, &run->after, comm));
    CHECK(!job_rank_step(&r));
    return 0;
}

static int survive(struct dp_comm *comm, void *arg)
{
    const struct run *run = arg;
    struct dp_comm *survivors, *part;

    CHECK(!dp_comm_survive(comm));
    CHECK(!lose_a_rank(comm, run));
    CHECK(!dp_comm_shrink(comm, &survivors));
    CHECK(dp_comm_size(survivors) == RANKS - 1);
    const bool goes_on = dp_comm_rank(survivors) < run->ranks_after;
    CHECK(!dp_comm_split(survivors, goes_on ? 0 : -1, 0, &part));
    if (goes_on)
        CHECK(!go_on(part, run));
    dp_comm_close(part);
    CHECK(!dp_comm_barrier(survivors));
    dp_comm_close(survivors);
    return 0;
}

static struct dp_schedule *build(enum dp_schedule_kind kind, int ranks)
{
    struct dp_schedule *s = NULL;

    assert_int_equal(dp_schedule_new(&(struct dp_schedule_spec){.kind = kind, .ranks = ranks,
                                                                .microbatches = MICROBATCHES,
                                                                .mirror_reduce = true},
                                     &s),
                     0);
    return s;
}

static void by_messages(void *user, int rank, struct dp_pipeline_config *config)
{
    config->execution = DP_EXECUTE_MESSAGES;
}

static struct job make_job(const struct plan *plan, enum dp_schedule_kind kind, int ranks)
{
    struct job job = job_make(build(kind, ranks));

    job.before = count_down;
    if (plan->execution == DP_EXECUTE_MESSAGES)
        job.edit = by_messages;
    job_begin(&job);
    return job;
}

static void end_job(struct job *job)
{
    job_end(job);
    dp_schedule_free((struct dp_schedule *)(uintptr_t)job->schedule);
}

static void kill_once(const struct comm_kind *kind, const struct plan *plan, int culprit, int at)
{
    struct run run = {.before = make_job(plan, plan->before, RANKS),
                      .after = make_job(plan, plan->after, plan->ranks_after),
                      .ranks_after = plan->ranks_after, .culprit = culprit, .at = at};
    int killed;
    const int failed = kind->run(kind, RANKS, deadline_ns, survive, &run, &killed);

    if (failed != 1 || killed != 1)
        fail_msg("%s, plan %d, rank %d killed at callback %d: %d of the ranks failed, %d were "
                 "killed, expected 1",
                 kind->name, (int)(plan - plans), culprit, at, failed, killed);
    assert_true(job_result_is_sequential(&run.after, 0));
    end_job(&run.before);
    end_job(&run.after);
}

/* Some callbacks of each rank; with DP_TEST_FULL, all. */
CASE(the_survivors_of_a_step_go_on_with_a_pipeline_of_their_own)
{
    const bool full = getenv("DP_TEST_FULL");

    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++)
        for (int i = 0; i < PLANS && kind->processes && !kind->by_ring; i++)
            for (int culprit = 0; culprit < RANKS; culprit++)
                for (int at = full ? 0 : 3 * culprit + i; at < 15; at += full ? 1 : 15)
                    kill_once(kind, &plans[i], culprit, at);
}

RUN_QUIET_CASES(NULL, NULL)
