/* SPDX-License-Identifier: Apache-2.0
 *
 * Loss and every gradient are the same to the last bit, whatever carries the messages, whatever the
 * schedule, the number of ranks, with the overlap hook and without, with a backward in one part or
 * two, with dropout. The measure is a plain loop over the micro-batches (model_run_sequential).
 */
#include "cmocka_all.h"

#include "unit/comm/comm_group.h"
#include "pipeline_job.h"

enum { STEPS = 2, MICROBATCHES = 8 };
static const int64_t deadline_ns = INT64_C(20000000000);

static int run_steps(struct dp_comm *comm, void *arg)
{
    struct job_rank r;

    CHECK(!job_rank_open(&r, arg, comm));
    for (int i = 0; i < STEPS; i++)
        CHECK(!job_rank_step(&r));
    job_rank_close(&r);
    return 0;
}

struct variant {
    bool hook, split, reduce;
    float dropout;
};

static const struct variant variants[] = {
    {true, true, true, 0.3f},
    {false, true, false, 0.3f},
    {true, false, true, 0},
    {false, false, true, 0.3f},
};
enum { VARIANTS = sizeof(variants) / sizeof(*variants) };

static void expect_sequential(const struct comm_kind *comm, enum dp_schedule_kind kind, int ranks,
                              const struct variant *v)
{
    struct dp_schedule *s;
    int killed;

    assert_int_equal(dp_schedule_new(&(struct dp_schedule_spec){.kind = kind,
                                                                .ranks = ranks,
                                                                .microbatches = MICROBATCHES,
                                                                .mirror_reduce = v->reduce},
                                     &s),
                     0);
    struct job job = job_make(s);
    job.model.dropout = v->dropout;
    job.ops = v->hook ? &model_ops : &model_ops_no_hook;
    job.no_split = !v->split;
    job_begin(&job);
    if (comm->run(comm, ranks, deadline_ns, run_steps, &job, &killed) ||
        !job_result_is_sequential(&job, STEPS - 1))
        fail_msg("%s, %d ranks, over %s, hook %d, split %d, dropout %g",
                 dp_name(DP_NAMES_SCHEDULE, kind), ranks, comm->name, v->hook, v->split,
                 (double)v->dropout);
    job_end(&job);
    dp_schedule_free(s);
}

static void expect_sequential_everywhere(enum dp_schedule_kind kind)
{
    for (const struct comm_kind *comm = comm_kinds; comm->name; comm++)
        for (int ranks = kind == DP_SCHEDULE_DUALPIPE ? 2 : 1; ranks <= 4; ranks *= 2)
            for (int i = 0; i < (comm->processes ? 2 : VARIANTS); i++)
                expect_sequential(comm, kind, ranks, &variants[i]);
}

static void gpipe_is_sequential_to_the_last_bit(void **state)
{
    expect_sequential_everywhere(DP_SCHEDULE_GPIPE);
}

static void one_f_one_b_is_sequential_to_the_last_bit(void **state)
{
    expect_sequential_everywhere(DP_SCHEDULE_1F1B);
}

static void dualpipe_is_sequential_to_the_last_bit(void **state)
{
    expect_sequential_everywhere(DP_SCHEDULE_DUALPIPE);
}

static void dualpipev_is_sequential_to_the_last_bit(void **state)
{
    expect_sequential_everywhere(DP_SCHEDULE_DUALPIPEV);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpipe_is_sequential_to_the_last_bit),
        cmocka_unit_test(one_f_one_b_is_sequential_to_the_last_bit),
        cmocka_unit_test(dualpipe_is_sequential_to_the_last_bit),
        cmocka_unit_test(dualpipev_is_sequential_to_the_last_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
