/* SPDX-License-Identifier: Apache-2.0
 *
 * Pipelines on a device whose memory no wire can reach: messages go through pinned memory, by
 * copies that take place late.
 */
#include "fake_device.h"
#include "pipeline/state.h"
#include "pipeline_case.h"

static const int64_t deadline_ns = INT64_C(20000000000);
static _Thread_local struct dp_device *device;

static void set_device(void *user, int rank, struct dp_pipeline_config *config)
{
    config->device = device;
}

static int run_steps(struct dp_comm *comm, void *arg)
{
    struct job_rank r;

    CHECK(!fake_device_open(&device));
    CHECK(!job_rank_open(&r, arg, comm));
    for (int i = 0; i < 2; i++)
        CHECK(!job_rank_step(&r));
    job_rank_close(&r);
    CHECK(fake_device_copies(device) > 0);
    dp_device_close(device);
    return 0;
}

static void expect_sequential(struct dp_schedule_spec spec, int batch_dim)
{
    OWNED(dp_schedule) *s = case_schedule(spec);
    ENDED_BY(job_end) struct job job = job_make(s);
    job.edit = set_device;
    job.model.batch_dim = batch_dim;
    job_begin(&job);
    assert_int_equal(comm_on_threads(s->ranks, deadline_ns, run_steps, &job), 0);
    assert_true(job_result_is_sequential(&job, 1));
    assert_true(job.result->memory[0].total_bytes > 2 * job.result->memory[0].activations_bytes);
}

CASE(messages_through_pinned_memory_change_no_bit)
{
    model_sync = fake_device_sync;
    for (int kind = DP_SCHEDULE_GPIPE; kind <= DP_SCHEDULE_DUALPIPEV; kind++)
        for (int variant = 0; variant < 8; variant++)
            expect_sequential((struct dp_schedule_spec){.kind = (enum dp_schedule_kind)kind,
                                                        .ranks = 4, .microbatches = 10,
                                                        .forward_only = variant & 1,
                                                        .return_outputs = variant & 2,
                                                        .mirror_reduce = true},
                              variant & 4 ? 1 : 0);
}

/* ---- copies that do not end ------------------------------------------------------------------ */

static int count_down(void *user)
{
    return --*(int *)user ? 0 : -4;
}

/* Rank 0 waits for gradients while the copies of what it sends do not end; where it is alone, at the
 * end of the step. Its poll function ends the wait. */
static int interrupt_step(struct dp_comm *comm, void *arg)
{
    const bool waits = !dp_comm_rank(comm);
    struct dp_abort why;
    struct job_rank r;
    int left = 3;

    CHECK(!fake_device_open(&device));
    CHECK(!job_rank_open(&r, arg, comm));
    if (waits) {
        dp_comm_set_poll(comm, count_down, &left);
        fake_device_hold(device, true);
    }
    int err = job_rank_step(&r);
    CHECK(err == (waits ? -4 : DP_EABORTED));
    CHECK(!waits || !left);
    CHECK(dp_comm_aborted(comm, &why) && why.rank == 0 && why.error == -4);
    CHECK_SAYS("interrupted");
    fake_device_hold(device, false);
    job_rank_close(&r);
    dp_device_close(device);
    return 0;
}

static void expect_end(int ranks, rank_fn fn)
{
    OWNED(dp_schedule) *s = NULL;

    model_sync = fake_device_sync;
    assert_int_equal(dp_schedule_new(&(struct dp_schedule_spec){.kind = DP_SCHEDULE_1F1B,
                                                                .ranks = ranks,
                                                                .microbatches = 4}, &s), 0);
    struct job job = job_make(s);
    job.edit = set_device;
    case_run_apart(&job, deadline_ns, fn);
}

/* The same without a poll function: rank 0's deadline, which is shorter, ends the wait. */
RANKS_CASE(copies_that_do_not_end_are_waited_for_until_the_deadline, expect_end(2, part))
{
    const bool waits = !dp_comm_rank(comm);
    struct job_rank r;

    CHECK(!fake_device_open(&device));
    CHECK(!job_rank_open(&r, arg, comm));
    if (waits)
        r.pipe->deadline_ns = deadline_ns / 100;
    fake_device_hold(device, waits);
    CHECK(job_rank_step(&r) == (waits ? DP_ETIMEDOUT : DP_EABORTED));
    CHECK_SAYS("a copy out of device memory did not end within 0.2 s");
    fake_device_hold(device, false);
    job_rank_close(&r);
    dp_device_close(device);
    return 0;
}

CASE(a_poll_function_ends_a_wait_for_copies)
{
    expect_end(2, interrupt_step);
    expect_end(1, interrupt_step);
}
