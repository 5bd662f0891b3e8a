/* SPDX-License-Identifier: Apache-2.0
 *
 * The same numbers on a device whose memory the CPU cannot touch: CUDA on the stand-in driver,
 * where the model's "kernels" are functions in a stream, touching device memory on the host crashes
 * otherwise, and every copy and kernel comes late by a random time. It proves the order of copies,
 * kernels and messages, not a real GPU.
 */
#include "base/clock.h"
#include "cuda_case.h"

enum { STEPS = 2 };
static const int64_t deadline_ns = 20 * DP_NS_PER_S;
static const struct fake_cuda *fake;

/* ---- the same numbers ------------------------------------------------------------------------ */

static int train_on_cuda(struct dp_comm *comm, void *arg)
{
    struct job_rank r;

    CHECK(!cuda_job_open(&r, arg, comm));
    for (int i = 0; i < STEPS; i++)
        CHECK(!cuda_job_step(&r));
    cuda_job_close(&r);
    return 0;
}

static const struct dp_schedule_spec shapes[] = {
    {.kind = DP_SCHEDULE_GPIPE, .ranks = 2, .microbatches = 4},
    {.kind = DP_SCHEDULE_1F1B, .ranks = 3, .microbatches = 7},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 2, .microbatches = 6, .mirror_reduce = true},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 10, .return_outputs = true},
    {.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 1, .microbatches = 3},
    {.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 3, .microbatches = 7, .return_outputs = true},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 8, .forward_only = true},
};
enum { SHAPES = sizeof(shapes) / sizeof(*shapes) };

static void on_cuda(struct dp_schedule_spec spec, int batch_dim, bool no_split)
{
    struct dp_schedule *s = case_schedule(spec);
    struct job job = job_make(s);

    job.ops = &cuda_job_ops;
    job.edit = cuda_job_edit;
    job.model.batch_dim = batch_dim;
    job.no_split = no_split;
    case_run(&job, deadline_ns, train_on_cuda, STEPS - 1);
    dp_schedule_free(s);
}

static void memory_the_cpu_cannot_touch_changes_no_number(void **state)
{
    (void)state;
    for (int i = 0; i < SHAPES; i++)
        on_cuda(shapes[i], 0, false);
}

static void a_device_that_is_late_at_random_changes_no_number(void **state)
{
    (void)state;
    for (int i = 0; i < SHAPES; i++) {
        fake->shake((uint64_t)i, 80);
        on_cuda(shapes[i], i % 2, i % 3 == 2);
    }
}

/* ---- failures -------------------------------------------------------------------------------- */

static int fail_then_train(struct dp_comm *comm, void *arg)
{
    struct job_rank r;

    CHECK(!cuda_job_open(&r, arg, comm));
    CHECK(!cuda_case_fail_then_train(&r, comm, fake));
    cuda_job_close(&r);
    return 0;
}

static void a_step_that_failed_leaves_nothing_behind(void **state)
{
    (void)state;
    struct dp_schedule *s = case_schedule((struct dp_schedule_spec){
        .kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 8, .mirror_reduce = true});

    for (int n = 1; n <= 12; n += 2) {
        struct job job = job_make(s);
        job.ops = &cuda_job_ops;
        job.edit = cuda_job_edit;
        job.user = &n;
        fake->shake((uint64_t)n, 200);
        case_run(&job, deadline_ns, fail_then_train, 0);
    }
    dp_schedule_free(s);
}

/* The device of ranks 0 and 2 breaks in the middle of a step. */
static int train_until_broken(struct dp_comm *comm, void *arg)
{
    struct job_rank r;
    int err = 0;

    CHECK(!cuda_job_open(&r, arg, comm));
    CHECK(!dp_comm_barrier(comm));
    if (dp_comm_rank(comm) == 0)
        fake->fail_work(60, CUDA_ERROR_LAUNCH_FAILED);
    for (int i = 0; i < 100 && !err; i++)
        err = dp_pipeline_step(r.pipe, &r.step);
    CHECK(err == DP_EIO || err == DP_ECALLBACK || err == DP_EABORTED);
    CHECK(!dp_comm_reset(comm)); /* all are here ... */
    fake->reset();               /* ... and the device can free again */
    cuda_job_close(&r);
    return 0;
}

static void a_device_that_breaks_ends_the_step_on_every_rank(void **state)
{
    (void)state;
    struct dp_schedule *s = case_schedule(
        (struct dp_schedule_spec){.kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 8});
    struct job job = job_make(s);
    struct job_result result;

    job.ops = &cuda_job_ops;
    job.edit = cuda_job_edit;
    job_result_init(&result, &job);
    assert_int_equal(comm_on_threads(4, deadline_ns, train_until_broken, &job), 0);
    assert_false(fake->armed());
    job_result_fini(&result, &job);
    dp_schedule_free(s);
}

static void use_up_memory_of_rank_1(void *user, int rank, struct dp_pipeline_config *config)
{
    cuda_job_edit(user, rank, config);
    if (rank == 1)
        cuda_job_take_memory(FAKE_CUDA_MEMORY_BYTES - 4096);
}

static int open_without_memory(struct dp_comm *comm, void *arg)
{
    struct job_rank r;
    int err;

    err = cuda_job_open(&r, arg, comm);
    CHECK(err == (dp_comm_rank(comm) == 1 ? DP_ENOMEM : DP_EABORTED));
    CHECK_SAYS("no device memory for a buffer of");
    cuda_job_close(&r);
    return 0;
}

static void a_device_without_room_fails_the_pipeline_on_every_rank(void **state)
{
    (void)state;
    struct dp_schedule *s = case_schedule(
        (struct dp_schedule_spec){.kind = DP_SCHEDULE_1F1B, .ranks = 2, .microbatches = 4});
    struct job job = job_make(s);
    struct job_result result;

    job.ops = &cuda_job_ops;
    job.edit = use_up_memory_of_rank_1;
    job_result_init(&result, &job);
    assert_int_equal(comm_on_threads(2, deadline_ns, open_without_memory, &job), 0);
    job_result_fini(&result, &job);
    dp_schedule_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(memory_the_cpu_cannot_touch_changes_no_number,
                                  cuda_case_clean_up),
        cmocka_unit_test_teardown(a_device_that_is_late_at_random_changes_no_number,
                                  cuda_case_clean_up),
        cmocka_unit_test_teardown(a_step_that_failed_leaves_nothing_behind, cuda_case_clean_up),
        cmocka_unit_test_teardown(a_device_that_breaks_ends_the_step_on_every_rank,
                                  cuda_case_clean_up),
        cmocka_unit_test_teardown(a_device_without_room_fails_the_pipeline_on_every_rank,
                                  cuda_case_clean_up),
    };

    fake = cuda_job_init();
    if (!fake)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
