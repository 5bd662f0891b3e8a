/* SPDX-License-Identifier: Apache-2.0
 *
 * The same numbers on a device whose memory the CPU cannot touch: CUDA on the stand-in driver,
 * where the model's "kernels" are functions in a stream, touching device memory on the host crashes
 * otherwise, and every copy and kernel comes late by a random time. It proves the order of copies,
 * kernels and messages, not a real GPU.
 */
#include "base/clock.h"
#include "unit/device/cuda_case.h"

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
    OWNED(dp_schedule) *s = case_schedule(spec);
    struct job job = job_make(s);

    job.ops = &cuda_job_ops;
    job.edit = cuda_job_edit;
    job.model.batch_dim = batch_dim;
    job.no_split = no_split;
    case_run(&job, deadline_ns, train_on_cuda, STEPS - 1);
}

CASE_BETWEEN(memory_the_cpu_cannot_touch_changes_no_number, NULL, cuda_case_clean_up)
{
    for (int i = 0; i < SHAPES; i++)
        on_cuda(shapes[i], 0, false);
}

CASE_BETWEEN(a_device_that_is_late_at_random_changes_no_number, NULL, cuda_case_clean_up)
{
    for (int i = 0; i < SHAPES; i++) {
        fake->shake((uint64_t)i, 80);
        on_cuda(shapes[i], i % 2, i % 3 == 2);
    }
}

/* ---- the caller's stream ---------------------------------------------------------------------- */

static _Thread_local struct dp_device_stream *callers;

static void compute_in_the_callers(void *user, int rank, struct dp_pipeline_config *config)
{
    cuda_job_edit(user, rank, config);
    config->stream = callers;
}

static int train_in_the_callers(struct dp_comm *comm, void *arg)
{
    struct dp_device *dev;
    struct dp_device_stream *native;
    struct job_rank r;
    int count;

    CHECK(!dp_device_cuda_count(&count));
    CHECK(!dp_device_cuda_open(dp_comm_rank(comm) % count, &dev)); /* as cuda_job_open */
    CHECK(!dp_device_stream_new(dev, DP_PRIORITY_NORMAL, &native));
    CHECK(!dp_device_stream_wrap(dev, dp_device_stream_native(native), &callers));
    cuda_job_use_device(dev);
    CHECK(!cuda_job_open(&r, arg, comm));
    CHECK(dp_pipeline_stream(r.pipe) == callers);
    for (int i = 0; i < STEPS; i++)
        CHECK(!cuda_job_step(&r));
    cuda_job_close(&r);
    cuda_job_use_device(NULL);
    dp_device_stream_free(callers);
    dp_device_stream_free(native); /* which is still there */
    dp_device_close(dev);
    return 0;
}

CASE_BETWEEN(stages_compute_in_a_stream_of_the_callers, NULL, cuda_case_clean_up)
{
    for (int i = 0; i < SHAPES; i++) {
        OWNED(dp_schedule) *s = case_schedule(shapes[i]);
        struct job job = job_make(s);

        fake->shake((uint64_t)i, 80);
        job.ops = &cuda_job_ops;
        job.edit = compute_in_the_callers;
        case_run(&job, deadline_ns, train_in_the_callers, STEPS - 1);
    }
}

CASE_BETWEEN(a_stream_of_another_device_is_refused, NULL, cuda_case_clean_up)
{
    const struct dp_border borders[2] = {{0}};
    OWNED(dp_schedule) *s = case_schedule((struct dp_schedule_spec){
        .kind = DP_SCHEDULE_1F1B, .ranks = 1, .microbatches = 1, .forward_only = true});
    const struct dp_stage stage = {.ops = &cuda_job_ops};
    struct dp_pipeline_config config = {.schedule = s, .stages = &stage, .borders = borders,
                                        .opaque_ends = true};
    struct dp_device *devices[2];
    struct dp_pipeline *pipe;

    for (int i = 0; i < 2; i++)
        assert_int_equal(dp_device_cuda_open(0, &devices[i]), 0);
    assert_int_equal(dp_device_stream_new(devices[1], DP_PRIORITY_NORMAL, &config.stream), 0);
    config.device = devices[0];
    assert_int_equal(dp_pipeline_new(&config, &pipe), DP_EINVAL);
    assert_string_equal(dp_last_error(), "stream: of another device, expected one of the pipeline's");
    config.device = NULL; /* the host has no use for one */
    assert_int_equal(dp_pipeline_new(&config, &pipe), 0);
    assert_true(dp_pipeline_stream(pipe) != config.stream);
    dp_pipeline_free(pipe);
    dp_device_stream_free(config.stream);
    for (int i = 0; i < 2; i++)
        dp_device_close(devices[i]);
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

CASE_BETWEEN(a_step_that_failed_leaves_nothing_behind, NULL, cuda_case_clean_up)
{
    OWNED(dp_schedule) *s = case_schedule((struct dp_schedule_spec){
        .kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 8, .mirror_reduce = true});

    for (int n = 1; n <= 12; n += 2) {
        struct job job = job_make(s);
        job.ops = &cuda_job_ops;
        job.edit = cuda_job_edit;
        job.user = &n;
        fake->shake((uint64_t)n, 200);
        case_run(&job, deadline_ns, fail_then_train, 0);
    }
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

CASE_BETWEEN(a_device_that_breaks_ends_the_step_on_every_rank, NULL, cuda_case_clean_up)
{
    OWNED(dp_schedule) *s = case_schedule(
        (struct dp_schedule_spec){.kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 8});
    ENDED_BY(job_end) struct job job = job_make(s);

    job.ops = &cuda_job_ops;
    job.edit = cuda_job_edit;
    job_begin(&job);
    assert_int_equal(comm_on_threads(4, deadline_ns, train_until_broken, &job), 0);
    assert_false(fake->armed());
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

CASE_BETWEEN(a_device_without_room_fails_the_pipeline_on_every_rank, NULL, cuda_case_clean_up)
{
    OWNED(dp_schedule) *s = case_schedule(
        (struct dp_schedule_spec){.kind = DP_SCHEDULE_1F1B, .ranks = 2, .microbatches = 4});
    struct job job = job_make(s);

    job.ops = &cuda_job_ops;
    job.edit = use_up_memory_of_rank_1;
    case_run_apart(&job, deadline_ns, open_without_memory);
}

int main(void)
{
    fake = cuda_job_init();
    if (!fake)
        return 1;
    return run_cases(NULL, NULL);
}
