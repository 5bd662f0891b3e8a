/* SPDX-License-Identifier: Apache-2.0 */
#include "cmocka_all.h"

#include "comm_group.h"
#include "pipeline_job.h"

#include <stdlib.h>
#include <string.h>

enum { STEPS = 2 };
static const int64_t deadline_ns = INT64_C(10000000000);

static int run_steps(struct dp_comm *comm, void *arg)
{
    struct job_rank r;

    CHECK(!job_rank_open(&r, arg, comm));
    for (int i = 0; i < STEPS; i++)
        CHECK(!job_rank_step(&r));
    job_rank_close(&r);
    return 0;
}

static void expect_sequential(struct job job)
{
    struct job_result result;
    int killed;

    job_result_init(&result, &job);
    job.result = &result;
    assert_int_equal(comm_kinds[0].run(&comm_kinds[0], job.schedule->ranks, deadline_ns, run_steps,
                                       &job, &killed),
                     0);
    assert_true(job_result_is_sequential(&job, STEPS - 1));
    job_result_fini(&result, &job);
}

static struct dp_schedule *build(struct dp_schedule_spec spec)
{
    struct dp_schedule *s = NULL;
    if (dp_schedule_new(&spec, &s))
        fail_msg("%s", dp_last_error());
    return s;
}

static const struct dp_schedule_spec shapes[] = {
    {.kind = DP_SCHEDULE_GPIPE, .ranks = 1, .microbatches = 1},
    {.kind = DP_SCHEDULE_GPIPE, .ranks = 1, .microbatches = 4},
    {.kind = DP_SCHEDULE_GPIPE, .ranks = 2, .microbatches = 5},
    {.kind = DP_SCHEDULE_GPIPE, .ranks = 4, .microbatches = 8},
    {.kind = DP_SCHEDULE_1F1B, .ranks = 1, .microbatches = 4},
    {.kind = DP_SCHEDULE_1F1B, .ranks = 2, .microbatches = 4},
    {.kind = DP_SCHEDULE_1F1B, .ranks = 4, .microbatches = 9},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 2, .microbatches = 4},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 8},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 14},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 8, .microbatches = 16},
    {.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 1, .microbatches = 2},
    {.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 2, .microbatches = 4},
    {.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 3, .microbatches = 7},
    {.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 4, .microbatches = 10},
};
enum { SHAPES = sizeof(shapes) / sizeof(*shapes) };

static void every_schedule_trains_like_a_sequential_loop(void **state)
{
    (void)state;
    for (int i = 0; i < SHAPES; i++) {
        struct dp_schedule *s = build(shapes[i]);
        expect_sequential(job_make(s));
        dp_schedule_free(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_schedule_trains_like_a_sequential_loop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
