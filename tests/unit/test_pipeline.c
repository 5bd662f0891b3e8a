/* SPDX-License-Identifier: Apache-2.0 */
#include "cmocka_all.h"

#include "comm_group.h"
#include "pipeline/state.h"
#include "pipeline_job.h"
#include <dualpipe/memory.h>

#include <stdlib.h>
#include <string.h>

enum { STEPS = 2 };
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

static void expect_sequential_by(struct job job, rank_fn run)
{
    struct job_result result;

    job_result_init(&result, &job);
    assert_int_equal(comm_on_threads(job.schedule->ranks, deadline_ns, run, &job), 0);
    assert_true(job_result_is_sequential(&job, STEPS - 1));
    job_result_fini(&result, &job);
}

static void expect_sequential(struct job job)
{
    expect_sequential_by(job, run_steps);
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

static const struct dp_schedule_spec some[] = {
    {.kind = DP_SCHEDULE_1F1B, .ranks = 2, .microbatches = 5},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 2, .microbatches = 6},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 10},
    {.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 1, .microbatches = 3},
    {.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 3, .microbatches = 6},
};
enum { SOME = sizeof(some) / sizeof(*some) };

/* Run `some`, each changed by both functions; either may be NULL. */
static void expect_some(void (*change_spec)(struct dp_schedule_spec *spec),
                        void (*change_job)(struct job *job))
{
    for (int i = 0; i < SOME; i++) {
        struct dp_schedule_spec spec = some[i];
        if (change_spec)
            change_spec(&spec);
        struct dp_schedule *s = build(spec);
        struct job job = job_make(s);
        if (change_job)
            change_job(&job);
        expect_sequential(job);
        dp_schedule_free(s);
    }
}

static void return_outputs(struct dp_schedule_spec *spec)
{
    spec->return_outputs = true;
}

static void forward_only(struct dp_schedule_spec *spec)
{
    spec->forward_only = true;
}

static void forward_and_return(struct dp_schedule_spec *spec)
{
    spec->forward_only = spec->return_outputs = true;
}

static void reduce(struct dp_schedule_spec *spec)
{
    spec->mirror_reduce = true;
}

static void cut_columns(struct job *job)
{
    job->model.batch_dim = 1;
}

static void no_split(struct job *job)
{
    job->no_split = true;
}

static void no_hook(struct job *job)
{
    job->ops = &model_ops_no_hook;
}

static void any_order(struct job *job)
{
    job->fixed_order = false;
}

static void no_loss(struct job *job)
{
    job->forward_loss = false;
}

static void big_gradients(struct job *job)
{
    job->model.width = 300; /* several pieces of a reduce */
    job->model.rows = 1;
}

static void training_can_return_outputs(void **state)
{
    (void)state;
    expect_some(return_outputs, NULL);
    expect_some(return_outputs, cut_columns);
}

static void forward_only_gives_losses_and_outputs(void **state)
{
    (void)state;
    expect_some(forward_only, NULL);
    expect_some(forward_and_return, NULL);
    expect_some(forward_and_return, no_loss);
    expect_some(forward_and_return, cut_columns);
}

static void a_batch_can_be_cut_along_another_dimension(void **state)
{
    (void)state;
    expect_some(NULL, cut_columns);
}

static void numbers_do_not_depend_on_hook_or_split(void **state)
{
    (void)state;
    expect_some(NULL, no_hook);
    expect_some(NULL, no_split);
}

static void without_fixed_order_one_stream_adds_in_the_order_of_micro_batches(void **state)
{
    (void)state;
    expect_some(NULL, any_order);
}

static void mirrors_sum_their_gradients(void **state)
{
    (void)state;
    expect_some(reduce, NULL);
    expect_some(reduce, no_split);
    expect_some(reduce, big_gradients);
}

static void ranks_can_be_mapped(void **state)
{
    (void)state;
    static const int maps[][4] = {{3, 1, 0, 2}, {1, 0, 3, 2}, {2, 3, 1, 0}};
    for (int i = 0; i < 3; i++)
        for (int kind = DP_SCHEDULE_GPIPE; kind <= DP_SCHEDULE_DUALPIPEV; kind++) {
            struct dp_schedule *s = build((struct dp_schedule_spec){
                .kind = (enum dp_schedule_kind)kind, .ranks = 4, .microbatches = 8,
                .mirror_reduce = true, .rank_map = maps[i]});
            expect_sequential(job_make(s));
            dp_schedule_free(s);
        }
}

static int run_with_strides(struct dp_comm *comm, void *arg)
{
    struct job_rank r;
    int64_t strides[MODEL_TENSORS][2];

    CHECK(!job_rank_open(&r, arg, comm));
    for (int k = 0; r.step.inputs && k < MODEL_TENSORS; k++) {
        strides[k][0] = r.in.shapes[k][1];
        strides[k][1] = 1;
        r.in.tensors[k].strides = strides[k];
    }
    for (int i = 0; i < STEPS; i++)
        CHECK(!job_rank_step(&r));
    job_rank_close(&r);
    return 0;
}

static void contiguous_strides_are_none(void **state)
{
    (void)state;
    struct dp_schedule *s = build(some[0]);

    expect_sequential_by(job_make(s), run_with_strides);
    dp_schedule_free(s);
}

/* ---- a model of its own: gradients in float64, one loss, no labels ------------------------------ */

enum { DOUBLES = 40 };

static int count_forward(void *user, const struct dp_stage_call *call, const DLTensor *in,
                         DLTensor *out)
{
    (void)user;
    (void)call;
    memcpy(out[0].data, in[0].data, sizeof(float));
    return 0;
}

/* Each micro-batch adds its number, counted from 1, to every gradient. */
static int count_weight(void *user, const struct dp_stage_call *call)
{
    double *sums = call->grads[0]->data;
    (void)user;
    for (int i = 0; i < DOUBLES; i++)
        sums[i] += call->mb_global + 1;
    return 0;
}

static int count_backward(void *user, const struct dp_stage_call *call, const DLTensor *gout,
                          DLTensor *gin, enum dp_backward_mode mode)
{
    (void)gout;
    gin[0].data = NULL;
    return mode == DP_BACKWARD_FULL ? count_weight(user, call) : 0;
}

static int count_loss(void *user, const struct dp_stage_call *call, const DLTensor *out,
                      const DLTensor *label, double *values, int32_t max, int32_t *count)
{
    (void)user;
    (void)call;
    values[0] = (double)*(const float *)out[0].data;
    *count = label ? 0 : max;
    return 0;
}

static int count_loss_backward(void *user, const struct dp_stage_call *call, const DLTensor *out,
                               const DLTensor *label, double scale, DLTensor *gout)
{
    (void)user;
    (void)call;
    (void)out;
    (void)label;
    *(float *)gout[0].data = (float)scale;
    return 0;
}

static int run_counting(struct dp_comm *comm, void *arg)
{
    static const struct dp_stage_ops ops = {count_forward, count_backward, count_weight, NULL};
    static const struct dp_loss_ops loss = {count_loss, count_loss_backward};
    const struct dp_schedule *s = arg;
    double sums[2][DOUBLES] = {{0}}, losses[8];
    float batch[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    int64_t shape[1] = {s->mb_per_stream}, grad_shape[1] = {DOUBLES};
    struct dp_border borders[8];
    DLTensor grads[2], input = {.data = batch, .device = {kDLCPU, 0}, .ndim = 1,
                                .dtype = {kDLFloat, 32, 1}, .shape = shape};
    DLTensor *lists[2] = {&grads[0], &grads[1]}, *inputs = &input;
    struct dp_stage stages[2];
    struct dp_pipeline *pipe;

    for (int i = 0; i <= s->stages; i++)
        borders[i] = (struct dp_border){1, {{.dtype = {kDLFloat, 32, 1}, .ndim = 1, .shape = {1}}}};
    for (int i = 0; i < 2; i++) {
        grads[i] = (DLTensor){.data = sums[i], .device = {kDLCPU, 0}, .ndim = 1,
                              .dtype = {kDLFloat, 64, 1}, .shape = grad_shape};
        stages[i] = (struct dp_stage){.ops = &ops, .grad_count = 1, .grads = &lists[i]};
    }
    CHECK(!dp_pipeline_new(&(struct dp_pipeline_config){.schedule = s, .comm = comm,
                                                        .stages = stages, .borders = borders,
                                                        .loss = &loss, .fixed_order = true},
                           &pipe));
    bool ends_here = s->kind == DP_SCHEDULE_DUALPIPE || comm->rank == 0;
    struct dp_step step = {.inputs = ends_here ? (const DLTensor *const *)&inputs : NULL,
                           .losses = ends_here ? losses : NULL};
    CHECK(!dp_pipeline_step(pipe, &step));
    CHECK(step.loss_values == ends_here);
    CHECK(!ends_here || losses[s->mb_per_stream - 1] == (double)s->mb_per_stream);
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < DOUBLES; k++)
            CHECK(sums[i][k] == s->microbatches * (s->microbatches + 1) / 2);
    dp_pipeline_free(pipe);
    return 0;
}

static void gradients_can_be_doubles_and_labels_absent(void **state)
{
    (void)state;
    static const enum dp_schedule_kind kinds[] = {DP_SCHEDULE_DUALPIPE, DP_SCHEDULE_DUALPIPEV};

    for (int i = 0; i < 2; i++) {
        struct dp_schedule *s = build((struct dp_schedule_spec){
            .kind = kinds[i], .ranks = 2, .microbatches = 6, .mirror_reduce = true});
        assert_int_equal(comm_on_threads(2, deadline_ns, run_counting, s), 0);
        dp_schedule_free(s);
    }
}

static void one_rank_needs_no_comm(void **state)
{
    (void)state;
    struct dp_schedule *s = build(
        (struct dp_schedule_spec){.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 1, .microbatches = 6});
    struct job job = job_make(s);
    struct job_result result;
    struct job_rank r;

    job_result_init(&result, &job);
    assert_int_equal(job_rank_open(&r, &job, NULL), 0);
    for (int i = 0; i < STEPS; i++)
        assert_int_equal(job_rank_step(&r), 0);
    assert_true(job_result_is_sequential(&job, STEPS - 1));
    job_rank_close(&r);
    job_result_fini(&result, &job);
    dp_schedule_free(s);
}

/* ---- the host's copy workers ------------------------------------------------------------------- */

static _Thread_local struct dp_device *workers;

static void use_workers(void *user, int rank, struct dp_pipeline_config *config)
{
    (void)user;
    (void)rank;
    config->device = workers;
}

static int run_with_workers(struct dp_comm *comm, void *arg)
{
    CHECK(!dp_device_host_open(2, &workers));
    int err = run_steps(comm, arg);
    dp_device_close(workers);
    return err;
}

static void copy_workers_change_no_number(void **state)
{
    (void)state;
    for (int i = 0; i < SOME; i++) {
        struct dp_schedule_spec spec = some[i];
        spec.mirror_reduce = i % 2;
        struct dp_schedule *s = build(spec);
        struct job job = job_make(s);
        job.edit = use_workers;
        job.model.batch_dim = i % 2;
        job.model.rows = 1;
        job.model.width = 200; /* gradients of a size that is not copied at once */
        expect_sequential_by(job, run_with_workers);
        dp_schedule_free(s);
    }
}

/* ---- two pipelines on one comm --------------------------------------------------------------- */

struct two_jobs {
    struct job *job[2];
};

static int run_by_turns(struct dp_comm *comm, void *arg)
{
    const struct two_jobs *two = arg;
    struct job_rank r[2];

    for (int i = 0; i < 2; i++)
        CHECK(!job_rank_open(&r[i], two->job[i], comm));
    for (int i = 0; i < 2 * STEPS; i++)
        CHECK(!job_rank_step(&r[i % 2]));
    for (int i = 0; i < 2; i++)
        job_rank_close(&r[i]);
    return 0;
}

static void two_pipelines_take_turns_on_one_comm(void **state)
{
    (void)state;
    struct dp_schedule_spec spec = {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 8};
    struct dp_schedule *training = build(spec);
    spec.forward_only = spec.return_outputs = true;
    struct dp_schedule *evaluation = build(spec);
    struct job jobs[2] = {job_make(training), job_make(evaluation)};
    struct two_jobs two = {{&jobs[0], &jobs[1]}};
    struct job_result results[2];

    for (int i = 0; i < 2; i++) {
        job_result_init(&results[i], &jobs[i]);
    }
    assert_int_equal(comm_on_threads(4, deadline_ns, run_by_turns, &two), 0);
    for (int i = 0; i < 2; i++) {
        assert_true(job_result_is_sequential(&jobs[i], STEPS - 1));
        job_result_fini(&results[i], &jobs[i]);
    }
    dp_schedule_free(training);
    dp_schedule_free(evaluation);
}

/* ---- what is not bit-equal --------------------------------------------------------------------- */

static int run_misrouted(struct dp_comm *comm, void *arg)
{
    struct job_rank r;

    CHECK(!job_rank_open(&r, arg, comm));
    for (int64_t i = 0; r.step.label && i < r.label.shapes[0][0] * r.label.shapes[0][1]; i++)
        ((float *)r.label.data[0])[i] = ((float *)r.label.data[0])[i / 2];
    CHECK(!job_rank_step(&r));
    job_rank_close(&r);
    return 0;
}

static void labels_of_other_micro_batches_change_the_loss(void **state)
{
    (void)state;
    struct dp_schedule *s = build(
        (struct dp_schedule_spec){.kind = DP_SCHEDULE_DUALPIPE, .ranks = 2, .microbatches = 4});
    struct job job = job_make(s);
    struct job_result result;

    job_result_init(&result, &job);
    assert_int_equal(comm_on_threads(2, deadline_ns, run_misrouted, &job), 0);
    printf("expected to differ: ");
    assert_false(job_result_is_sequential(&job, 0));
    job_result_fini(&result, &job);
    dp_schedule_free(s);
}

static int run_scaled(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    double scales[64];
    struct job_rank r;

    CHECK(!job_rank_open(&r, job, comm));
    for (int i = 0; i < job->schedule->mb_per_stream; i++)
        scales[i] = 0.25;
    if (r.step.label)
        r.step.loss_scales = scales;
    CHECK(!job_rank_step(&r));
    for (int i = 0; i < job->schedule->slots_per_rank; i++)
        for (size_t k = 0; k < model_grad_count(&job->model, r.stages[i].stage); k++)
            r.stages[i].gw[k] *= 4;
    for (int i = 0; i < job->schedule->slots_per_rank; i++)
        memcpy(job->result->grads[r.rank * job->schedule->slots_per_rank + i], r.stages[i].gw,
               model_grad_count(&job->model, r.stages[i].stage) * sizeof(float));
    job_rank_close(&r);
    return 0;
}

static void each_micro_batch_can_have_its_own_scale(void **state)
{
    (void)state;
    struct dp_schedule *s = build(
        (struct dp_schedule_spec){.kind = DP_SCHEDULE_DUALPIPE, .ranks = 2, .microbatches = 4});
    struct job job = job_make(s);
    struct job_result result;

    job_result_init(&result, &job);
    assert_int_equal(comm_on_threads(2, deadline_ns, run_scaled, &job), 0);
    assert_true(job_result_is_sequential(&job, 0)); /* powers of two scale without rounding */
    job_result_fini(&result, &job);
    dp_schedule_free(s);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int run_shared(struct dp_comm *comm, void *arg)
{
    struct job_rank r;

    CHECK(!job_rank_open(&r, arg, comm));
    CHECK((r.pipe->memory_kind == DP_MEMORY_SHARED) == (comm->shared_bytes > 0));
    CHECK(!!comm->shared_bytes == !strcmp(comm->ops->name, "shm") ||
          !strcmp(comm->ops->name, "auto"));
    for (int i = 0; i < STEPS; i++)
        CHECK(!job_rank_step(&r));
    job_rank_close(&r);
    return 0;
}

static void long_messages_lie_in_memory_that_ranks_share(void **state)
{
    (void)state;
    struct dp_schedule *s = build(
        (struct dp_schedule_spec){.kind = DP_SCHEDULE_1F1B, .ranks = 2, .microbatches = 3});

    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++) {
        struct job job = job_make(s);
        struct job_result result;
        int killed = 0;
        job.model.rows = 20000;
        job_result_init(&result, &job);
        assert_int_equal(kind->run(kind, 2, deadline_ns, run_shared, &job, &killed), 0);
        assert_true(job_result_is_sequential(&job, STEPS - 1));
        job_result_fini(&result, &job);
    }
    dp_schedule_free(s);
}

/* No more pieces of shared memory are to be had, on one of the ranks. */
static int run_without_room(struct dp_comm *comm, void *arg)
{
    char *pieces[DP_SHARED_MAX];
    struct job_rank r;

    for (int i = 0; i < DP_SHARED_MAX && !comm->rank; i++)
        CHECK(!dp_shared_alloc(1, -1, (void **)&pieces[i]));
    CHECK(!job_rank_open(&r, arg, comm));
    CHECK((r.pipe->memory_kind == DP_MEMORY_SHARED) == (comm->shared_bytes > 0 && comm->rank));
    for (int i = 0; i < STEPS; i++)
        CHECK(!job_rank_step(&r));
    job_rank_close(&r);
    for (int i = 0; i < DP_SHARED_MAX && !comm->rank; i++)
        CHECK(!dp_shared_free(pieces[i]));
    return 0;
}

static void memory_that_cannot_be_shared_does_as_well(void **state)
{
    (void)state;
    struct dp_schedule *s = build(
        (struct dp_schedule_spec){.kind = DP_SCHEDULE_1F1B, .ranks = 2, .microbatches = 3});
    const struct comm_kind *kind = comm_kinds;
    struct job job = job_make(s);
    struct job_result result;
    int killed = 0;

    while (strcmp(kind->name, "shm"))
        kind++;
    job.model.rows = 20000;
    job_result_init(&result, &job);
    assert_int_equal(kind->run(kind, 2, deadline_ns, run_without_room, &job, &killed), 0);
    assert_true(job_result_is_sequential(&job, STEPS - 1));
    job_result_fini(&result, &job);
    dp_schedule_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_schedule_trains_like_a_sequential_loop),
        cmocka_unit_test(training_can_return_outputs),
        cmocka_unit_test(forward_only_gives_losses_and_outputs),
        cmocka_unit_test(a_batch_can_be_cut_along_another_dimension),
        cmocka_unit_test(numbers_do_not_depend_on_hook_or_split),
        cmocka_unit_test(without_fixed_order_one_stream_adds_in_the_order_of_micro_batches),
        cmocka_unit_test(mirrors_sum_their_gradients),
        cmocka_unit_test(ranks_can_be_mapped),
        cmocka_unit_test(contiguous_strides_are_none),
        cmocka_unit_test(gradients_can_be_doubles_and_labels_absent),
        cmocka_unit_test(one_rank_needs_no_comm),
        cmocka_unit_test(copy_workers_change_no_number),
        cmocka_unit_test(two_pipelines_take_turns_on_one_comm),
        cmocka_unit_test(labels_of_other_micro_batches_change_the_loss),
        cmocka_unit_test(each_micro_batch_can_have_its_own_scale),
        cmocka_unit_test(long_messages_lie_in_memory_that_ranks_share),
        cmocka_unit_test(memory_that_cannot_be_shared_does_as_well),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
