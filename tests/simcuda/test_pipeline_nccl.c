/* SPDX-License-Identifier: Apache-2.0
 *
 * Pipelines whose ranks are processes with a simulated GPU each, over the communicator by NCCL: the
 * real libnccl (tests/simcuda/README.md). The numbers are those of the sequential loop to the last
 * bit, as those of ranks that are threads are (test_pipeline.c).
 */
#include "base/clock.h"
#include "cuda_job.h"
#include "simcuda/nccl_ranks.h"
#include "unit/pipeline/pipeline_case.h"

enum { STEPS = 2, MOST_JOBS = 4 };
static const char *why_not;

/* One after the other over the same communicator, since to connect takes the longest. */
struct jobs {
    struct job jobs[MOST_JOBS];
    int count;
};

static int waits; /* of this rank, between the first and the last of what it queues in a step */

static int note_waits(void *user)
{
    (void)user;
    waits = nccl_ranks_waits();
    return 0;
}

/* The host waits for nothing, over messages and sums with mirrors; but this model's loss does. */
static bool may_wait(const struct job *job, int rank)
{
    for (int i = 0; i < dp_schedule_slot_count(job->schedule, rank); i++)
        if (dp_slot_is_last(dp_schedule_slot(job->schedule, rank, i)))
            return true;
    return false;
}

static int train(struct dp_comm *comm, void *arg)
{
    const struct jobs *all = arg;
    struct job_rank r;

    cuda_job_use_device(nccl_ranks_device());
    cuda_job_before_step(nccl_ranks_count_waits);
    for (int i = 0; i < all->count; i++) {
        CHECK(!cuda_job_open(&r, &all->jobs[i], comm));
        r.step.queued = note_waits;
        for (int k = 0; k < STEPS; k++) {
            CHECK(!cuda_job_step(&r));
            CHECK((waits > 0) == may_wait(&all->jobs[i], r.rank));
        }
        cuda_job_close(&r);
    }
    return 0;
}

static void add_job(struct jobs *all, struct dp_schedule_spec spec)
{
    struct job *job = &all->jobs[all->count];

    *job = job_make(case_schedule(spec));
    job->ops = &cuda_job_ops;
    job->edit = cuda_job_edit;
    job_begin(job);
    all->count++;
}

static void train_by_nccl(int ranks, struct dp_schedule_spec *specs, int count)
{
    const struct dp_schedule *schedules[MOST_JOBS];
    struct jobs all = {.count = 0};
    int killed;

    if (why_not)
        skip_because(why_not);
    for (int i = 0; i < count; i++) {
        specs[i].ranks = ranks;
        add_job(&all, specs[i]);
        schedules[i] = all.jobs[i].schedule;
    }
    assert_int_equal(nccl_ranks_run_schedules(schedules, count, train, &all, &killed), 0);
    for (int i = 0; i < count; i++) {
        assert_true(job_result_is_sequential(&all.jobs[i], STEPS - 1));
        job_end(&all.jobs[i]);
        dp_schedule_free((struct dp_schedule *)(uintptr_t)all.jobs[i].schedule);
    }
}

static void two_ranks_over_nccl_get_the_numbers_of_a_sequential_loop(void **state)
{
    struct dp_schedule_spec specs[] = {
        {.kind = DP_SCHEDULE_1F1B, .microbatches = 4},
        {.kind = DP_SCHEDULE_DUALPIPE, .microbatches = 4, .mirror_reduce = true},
        {.kind = DP_SCHEDULE_DUALPIPEV, .microbatches = 4, .return_outputs = true},
    };

    (void)state;
    train_by_nccl(2, specs, 3);
}

static void four_ranks_over_nccl_get_the_numbers_of_a_sequential_loop(void **state)
{
    struct dp_schedule_spec specs[] = {
        {.kind = DP_SCHEDULE_1F1B, .microbatches = 5},
        {.kind = DP_SCHEDULE_DUALPIPE, .microbatches = 8, .mirror_reduce = true},
        {.kind = DP_SCHEDULE_DUALPIPEV, .microbatches = 8},
    };

    (void)state;
    train_by_nccl(4, specs, 3);
}

/* ---- tied parameters --------------------------------------------------------------------------- */

enum { TIED = 2 }; /* with stage 0: their weights have the same shape */
static const int begins_as[] = {0, 1, 0, 3};

static bool is_tied(const struct model_stage *stage)
{
    return stage->stage == 0 || stage->stage == TIED;
}

static void tie(void *user, int rank, struct dp_pipeline_config *config)
{
    cuda_job_edit(user, rank, config);
    for (int i = 0; i < dp_schedule_slot_count(config->schedule, rank); i++) {
        struct model_stage *stage = config->stages[i].user;
        if (is_tied(stage))
            stage->parameters[0].tied = "table";
    }
}

static size_t tied_count(const struct model *m)
{
    return (size_t)model_width(m, 0) * (size_t)model_width(m, 1);
}

/* The owner has what the sequential loop makes of both stages' gradients, the others have zeros. */
static int check_sums(struct dp_comm *comm, const struct job_rank *r)
{
    const struct model *m = &r->job->model;
    struct model_result want;

    model_result_init(&want, m);
    model_run_sequential(m, STEPS - 1, true, &want);
    for (int i = 0; i < dp_schedule_slot_count(r->job->schedule, r->rank); i++) {
        const bool owner = dp_pipeline_owns(r->pipe, i, 0);
        for (size_t k = 0; k < tied_count(m) && is_tied(&r->stages[i]); k++)
            CHECK(r->stages[i].gw[k] == (owner ? want.first[0][k] + want.second[0][k] +
                                                     (want.first[TIED][k] + want.second[TIED][k])
                                               : 0));
    }
    model_result_fini(&want, m);
    return 0;
}

static int check_values(struct dp_comm *comm, const struct job_rank *r)
{
    for (int i = 0; i < dp_schedule_slot_count(r->job->schedule, r->rank); i++)
        for (size_t k = 0; k < tied_count(&r->job->model) && is_tied(&r->stages[i]); k++)
            CHECK(r->stages[i].w[k] == (float)k + 0.5f);
    return 0;
}

static void set_values(struct job_rank *r)
{
    for (int i = 0; i < dp_schedule_slot_count(r->job->schedule, r->rank); i++)
        for (size_t k = 0; k < tied_count(&r->job->model) && is_tied(&r->stages[i]); k++)
            r->stages[i].w[k] = dp_pipeline_owns(r->pipe, i, 0) ? (float)k + 0.5f : -1;
}

static int sum_tied(struct dp_comm *comm, void *arg)
{
    const struct jobs *all = arg;
    struct job_rank r;

    cuda_job_use_device(nccl_ranks_device());
    for (int i = 0; i < all->count; i++) {
        CHECK(!cuda_job_open(&r, &all->jobs[i], comm));
        for (int k = 0; k < STEPS; k++)
            CHECK(!cuda_job_step(&r));
        nccl_ranks_count_waits();
        CHECK(!dp_pipeline_sum_tied(r.pipe));
        CHECK(nccl_ranks_waits() == 0);
        CHECK(!cuda_job_copy(false));
        CHECK(!check_sums(comm, &r));
        set_values(&r);
        CHECK(!cuda_job_copy(true));
        CHECK(!dp_pipeline_broadcast_tied(r.pipe));
        CHECK(!cuda_job_copy(false));
        CHECK(!check_values(comm, &r));
        cuda_job_close(&r);
    }
    return 0;
}

/* The second one's weights are more than one piece. */
static void tied_parameters_are_summed_on_the_devices(void **state)
{
    struct dp_schedule_spec specs[] = {
        {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 8, .mirror_reduce = true},
        {.kind = DP_SCHEDULE_1F1B, .ranks = 4, .microbatches = 4},
    };
    struct jobs all = {.count = 0};
    int killed;

    (void)state;
    if (why_not)
        skip_because(why_not);
    for (int i = 0; i < 2; i++) {
        add_job(&all, specs[i]);
        all.jobs[i].edit = tie;
        all.jobs[i].model.same_as = begins_as;
    }
    all.jobs[1].model.width = 1100;
    job_end(&all.jobs[1]);
    job_begin(&all.jobs[1]);
    assert_int_equal(nccl_ranks_run(4, sum_tied, &all, &killed), 0);
    for (int i = 0; i < 2; i++) {
        job_end(&all.jobs[i]);
        dp_schedule_free((struct dp_schedule *)(uintptr_t)all.jobs[i].schedule);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_ranks_over_nccl_get_the_numbers_of_a_sequential_loop),
        cmocka_unit_test(four_ranks_over_nccl_get_the_numbers_of_a_sequential_loop),
        cmocka_unit_test(tied_parameters_are_summed_on_the_devices),
    };

    why_not = nccl_ranks_init();
    cuda_job_init_reachable();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
