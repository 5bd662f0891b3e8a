/* SPDX-License-Identifier: Apache-2.0
 *
 * Stages of segments on CUDA: the pair's segments are queued in two streams, and every copy and kernel
 * of the stand-in comes late by a random time, so that one that did not wait for what it needs finds
 * something else there.
 */
#include "base/clock.h"
#include "cuda_case.h"

#include <dualpipe/segments.h>

enum { STEPS = 3 };
static const int64_t deadline_ns = 20 * DP_NS_PER_S;
static const struct fake_cuda *fake;

/* ---- a stage, its callbacks cut into segments -------------------------------------------------- */

struct cut_stage {
    const struct dp_stage_ops *ops;
    void *user;
    bool fails; /* in the second micro-batch */
    struct dp_segmented_stage stage;
};

/* Callbacks of a rank by the stream that they were given. */
struct cut_rank {
    struct cut_stage cuts[2];
    struct dp_stage stages[2];
    struct dp_segment_streams *streams;
    void *compute;
    int elsewhere;
};

static _Thread_local struct cut_rank *the_rank;

static void note_stream(const struct dp_segment_call *call)
{
    the_rank->elsewhere += call->stage->stream != the_rank->compute;
}

static int run_forward(void *user, const struct dp_segment_call *call)
{
    struct cut_stage *c = user;

    note_stream(call);
    return c->ops->forward(c->user, call->stage, call->in, call->out);
}

static int run_backward(void *user, const struct dp_segment_call *call)
{
    struct cut_stage *c = user;

    note_stream(call);
    if (c->fails && call->stage->mb == 1)
        return dp_callback_error(-EIO, "the dispatch was lost");
    return c->ops->backward(c->user, call->stage, call->gout, call->gin, DP_BACKWARD_INPUT);
}

static int run_weight(void *user, const struct dp_segment_call *call)
{
    struct cut_stage *c = user;

    note_stream(call);
    return c->ops->weight(c->user, call->stage);
}

/* Where the three run: F, I, W. */
static const enum dp_resource placings[][3] = {
    {DP_RESOURCE_COMPUTE, DP_RESOURCE_COMMUNICATION, DP_RESOURCE_COMPUTE},
    {DP_RESOURCE_COMMUNICATION, DP_RESOURCE_COMPUTE, DP_RESOURCE_COMMUNICATION},
    {DP_RESOURCE_COMMUNICATION, DP_RESOURCE_COMMUNICATION, DP_RESOURCE_COMPUTE},
};
enum { PLACINGS = sizeof(placings) / sizeof(*placings) };
static struct dp_segment forward_list[] = {{.cost_ns = 10, .run = run_forward}};
static struct dp_segment backward_list[] = {{.cost_ns = 10, .run = run_backward},
                                            {.cost_ns = 10, .weight = true, .run = run_weight}};

static void place(int i)
{
    forward_list[0].resource = placings[i][0];
    backward_list[0].resource = placings[i][1];
    backward_list[1].resource = placings[i][2];
}

static void cut_stages(void *user, int rank, struct dp_pipeline_config *config)
{
    struct cut_rank *r = the_rank;
    const bool *fails = user;

    cuda_job_edit(NULL, rank, config);
    for (int i = 0; i < 2; i++) {
        struct cut_stage *c = &r->cuts[i];
        c->ops = config->stages[i].ops;
        c->user = config->stages[i].user;
        c->fails = *fails && rank == 1;
        c->stage = (struct dp_segmented_stage){.forward = forward_list,
                                               .forward_count = 1,
                                               .backward = backward_list,
                                               .backward_count = 2,
                                               .user = c};
        r->stages[i] = config->stages[i];
        r->stages[i].ops = dp_segment_stage_ops();
        r->stages[i].user = &c->stage;
    }
    config->stages = r->stages;
}

static int open_rank(struct job_rank *r, struct cut_rank *rank, const void *job,
                     struct dp_comm *comm)
{
    *rank = (struct cut_rank){.elsewhere = 0};
    the_rank = rank;
    CHECK(!cuda_job_open(r, job, comm));
    struct dp_device_stream *compute = dp_pipeline_stream(r->pipe);
    CHECK(!dp_segment_streams_new(cuda_job_device(), compute, &rank->streams));
    rank->compute = dp_device_stream_native(compute);
    for (int i = 0; i < 2; i++)
        rank->cuts[i].stage.streams = rank->streams;
    return 0;
}

static void close_rank(struct job_rank *r, struct cut_rank *rank)
{
    job_rank_close(r);
    dp_segment_streams_free(rank->streams);
    cuda_job_leave();
}

/* ---- cases ------------------------------------------------------------------------------------- */

static int train(struct dp_comm *comm, void *arg)
{
    struct cut_rank rank;
    struct job_rank r;

    CHECK(!open_rank(&r, &rank, arg, comm));
    for (int i = 0; i < STEPS; i++)
        CHECK(!cuda_job_step(&r));
    CHECK(rank.elsewhere > 0);
    close_rank(&r, &rank);
    return 0;
}

static struct job make_job(const struct dp_schedule *s, bool *fails)
{
    struct job job = job_make(s);

    job.ops = &cuda_job_ops;
    job.edit = cut_stages;
    job.user = fails;
    return job;
}

static void segments_in_two_streams_change_no_number(void **state)
{
    (void)state;
    bool fails = false;

    for (int kind = DP_SCHEDULE_DUALPIPE; kind <= DP_SCHEDULE_DUALPIPEV; kind++)
        for (int i = 0; i < 2 * PLACINGS; i++) {
            struct dp_schedule *s = case_schedule(
                (struct dp_schedule_spec){.kind = kind, .ranks = 4, .microbatches = 10});
            struct job job = make_job(s, &fails);
            place(i % PLACINGS);
            fake->shake((uint64_t)i, 80);
            case_run(&job, deadline_ns, train, STEPS - 1);
            dp_schedule_free(s);
        }
}

/* The streams are joined, so that the next step is right. */
static int fail_then_train(struct dp_comm *comm, void *arg)
{
    struct cut_rank rank;
    struct job_rank r;

    CHECK(!open_rank(&r, &rank, arg, comm));
    const int err = cuda_job_step(&r);
    CHECK(err == (dp_comm_rank(comm) == 1 ? DP_ECALLBACK : DP_EABORTED));
    CHECK(!dp_comm_reset(comm));
    CHECK(!dp_comm_barrier(comm));
    for (int i = 0; i < 2; i++)
        rank.cuts[i].fails = false;
    CHECK(!cuda_job_step(&r));
    close_rank(&r, &rank);
    return 0;
}

static void after_a_segment_that_failed_the_step_can_be_repeated(void **state)
{
    (void)state;
    bool fails = true;

    for (int i = 0; i < PLACINGS; i++) {
        struct dp_schedule *s = case_schedule((struct dp_schedule_spec){
            .kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 10});
        struct job job = make_job(s, &fails);
        place(i);
        fake->shake((uint64_t)i, 80);
        case_run(&job, deadline_ns, fail_then_train, 0);
        dp_schedule_free(s);
    }
}

static void streams_of_the_host_are_refused(void **state)
{
    struct dp_segment_streams *streams;
    struct dp_device_stream *stream;
    struct dp_device *dev;

    (void)state;
    assert_int_equal(dp_device_host_open(1, &dev), 0);
    assert_int_equal(dp_device_stream_new(dev, DP_PRIORITY_NORMAL, &stream), 0);
    assert_int_equal(dp_segment_streams_new(dev, stream, &streams), DP_EUNSUPPORTED);
    assert_non_null(strstr(dp_last_error(), "expected a CUDA device"));
    assert_int_equal(dp_segment_streams_new(dev, NULL, &streams), DP_EINVAL);
    dp_segment_streams_free(NULL);
    dp_device_stream_free(stream);
    dp_device_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(segments_in_two_streams_change_no_number, cuda_case_clean_up),
        cmocka_unit_test_teardown(after_a_segment_that_failed_the_step_can_be_repeated,
                                  cuda_case_clean_up),
        cmocka_unit_test(streams_of_the_host_are_refused),
    };

    fake = cuda_job_init();
    if (!fake)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
