/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fp16.h"
#include "pipeline/state.h"
#include "pipeline_steps.h"
#include <dualpipe/memory.h>

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
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 2, .microbatches = 4, .slack = 1},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 14, .slack = 1},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 8, .microbatches = 16, .slack = 1},
    {.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 1, .microbatches = 2, .slack = 1},
    {.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 4, .microbatches = 13, .slack = 1},
    {.kind = DP_SCHEDULE_ASYNC, .ranks = 1, .microbatches = 3},
    {.kind = DP_SCHEDULE_ASYNC, .ranks = 4, .microbatches = 9},
};
enum { SHAPES = sizeof(shapes) / sizeof(*shapes) };

CASE(every_schedule_trains_like_a_sequential_loop)
{
    for (int i = 0; i < SHAPES; i++) {
        OWNED(dp_schedule) *s = case_schedule(shapes[i]);
        expect_sequential(job_make(s));
    }
}

/* Every kind on 1 to 8 ranks, gradients and losses to the last bit. */
CASE(every_number_of_ranks_trains_like_a_sequential_loop)
{
    for (int kind = DP_SCHEDULE_GPIPE; kind < DP_SCHEDULE_KINDS; kind++)
        for (int ranks = 1; ranks <= 8; ranks++) {
            if (kind == DP_SCHEDULE_DUALPIPE && ranks % 2)
                continue;
            OWNED(dp_schedule) *s = case_schedule((struct dp_schedule_spec){
                .kind = kind, .ranks = ranks, .microbatches = 2 * ranks, .mirror_reduce = true});
            struct job job = job_make(s);
            job.fixed_order = true;
            expect_sequential_by(job, run_steps);
        }
}

/* Run `some`, each changed by both functions; either may be NULL. */
static void expect_some(void (*change_spec)(struct dp_schedule_spec *spec),
                        void (*change_job)(struct job *job))
{
    for (int i = 0; i < SOME; i++) {
        struct dp_schedule_spec spec = some[i];
        if (change_spec)
            change_spec(&spec);
        OWNED(dp_schedule) *s = case_schedule(spec);
        struct job job = job_make(s);
        if (change_job)
            change_job(&job);
        expect_sequential(job);
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

CASE(training_can_return_outputs)
{
    expect_some(return_outputs, NULL);
    expect_some(return_outputs, cut_columns);
}

CASE(forward_only_gives_losses_and_outputs)
{
    expect_some(forward_only, NULL);
    expect_some(forward_and_return, NULL);
    expect_some(forward_and_return, no_loss);
    expect_some(forward_and_return, cut_columns);
}

CASE(a_batch_can_be_cut_along_another_dimension)
{
    expect_some(NULL, cut_columns);
}

CASE(numbers_do_not_depend_on_hook_or_split)
{
    expect_some(NULL, no_hook);
    expect_some(NULL, no_split);
}

CASE(without_fixed_order_one_stream_adds_in_the_order_of_micro_batches)
{
    expect_some(NULL, any_order);
}

CASE(mirrors_sum_their_gradients)
{
    expect_some(reduce, NULL);
    expect_some(reduce, no_split);
    expect_some(reduce, big_gradients);
}

static void four_blocks(struct job *job)
{
    job->model.order_blocks = 4;
}

static void thirty_two_blocks(struct job *job)
{
    job->model.order_blocks = 32;
}

CASE(fixed_order_sums_any_number_of_blocks_pairwise)
{
    expect_some(reduce, four_blocks);
    expect_some(NULL, four_blocks);
    expect_some(reduce, thirty_two_blocks);
}

/* Backwards from the highest micro-batch: every weight part but one of a block has to wait. */
static void expect_reversed(const char *text, bool no_split)
{
    OWNED(dp_schedule) *s = NULL;

    if (dp_schedule_read(text, strlen(text), DP_FORMAT_TEXT, &s))
        fail_msg("%s", dp_last_error());
    struct job job = job_make(s);
    job.no_split = no_split;
    expect_sequential(job);
    job.model.order_blocks = 4;
    expect_sequential(job);
}

CASE(weight_parts_may_come_in_any_order)
{
#define FORWARDS " F0.0 F0.1 F0.2 F0.3 F0.4 F0.5 "
    static const char whole[] = "user P=2 M=6\n"
                                "rank 0:" FORWARDS "B0.5 B0.4 B0.3 B0.2 B0.1 B0.0\n"
                                "rank 1:" FORWARDS "B0.5 B0.4 B0.3 B0.2 B0.1 B0.0\n";
    static const char split[] =
        "user P=2 M=6\n"
        "rank 0:" FORWARDS "I0.5 I0.4 B0.3 I0.2 I0.1 W0.5 W0.4 W0.2 B0.0 W0.1\n"
        "rank 1:" FORWARDS "I0.5 W0.5 B0.4 B0.3 B0.2 B0.1 B0.0\n";

    for (int no_split = 0; no_split < 2; no_split++) {
        expect_reversed(whole, no_split);
        expect_reversed(split, no_split);
    }
}

/* Recomputed forwards: the arguments of each callback of a micro-batch. */
static _Thread_local int first_forwards, second_forwards;

static int watch_forward(void *user, const struct dp_stage_call *call, const DLTensor *in,
                         DLTensor *out)
{
    if (call->recomputing && call->discarded)
        return -1;
    first_forwards += call->discarded;
    second_forwards += call->recomputing;
    int err = model_ops.forward(user, call, in, out);
    if (call->discarded) /* what it saves is of no use */
        memset(call->save, 0xFF, sizeof(float));
    return err;
}

static int watch_backward(void *user, const struct dp_stage_call *call, const DLTensor *gout,
                          DLTensor *gin, enum dp_backward_mode mode)
{
    return model_ops.backward(user, call, gout, gin, mode);
}

static int watch_weight(void *user, const struct dp_stage_call *call)
{
    return model_ops.weight(user, call);
}

static bool every_second(void *user, const struct dp_slot *slot, int32_t mb)
{
    return mb % 2 < *(int *)user;
}

static int run_recomputing(struct dp_comm *comm, void *arg)
{
    first_forwards = second_forwards = 0;
    int failed = run_steps(comm, arg);
    CHECK(first_forwards == second_forwards && first_forwards > 0);
    return failed;
}

CASE(recomputed_forwards_change_no_number)
{
    static const struct dp_stage_ops ops = {
        .forward = watch_forward, .backward = watch_backward, .weight = watch_weight};

    for (int i = 0; i < SOME; i++)
        for (int share = 1; share <= 2; share++) {
            struct dp_schedule_spec spec = some[i];
            spec.mirror_reduce = true;
            spec.return_outputs = i % 2;
            OWNED(dp_schedule) *s = case_schedule(spec);
            assert_int_equal(dp_schedule_add_recomputes(s, every_second, &share), 0);
            struct job job = job_make(s);
            job.ops = &ops;
            job.model.batch_dim = share - 1;
            expect_sequential_by(job, run_recomputing);
            job.ops = &model_ops;
            expect_sequential(job);
        }
}

CASE(ranks_can_be_mapped)
{
    static const int maps[][4] = {{3, 1, 0, 2}, {1, 0, 3, 2}, {2, 3, 1, 0}};
    for (int i = 0; i < 3; i++)
        for (int kind = DP_SCHEDULE_GPIPE; kind < DP_SCHEDULE_KINDS; kind++) {
            struct dp_schedule *s =
                case_schedule((struct dp_schedule_spec){.kind = (enum dp_schedule_kind)kind,
                                                        .ranks = 4, .microbatches = 8,
                                                        .mirror_reduce = true,
                                                        .rank_map = maps[i]});
            expect_sequential(job_make(s));
            dp_schedule_free(s);
        }
}

/* ---- parameters ------------------------------------------------------------------------------- */

static int run_from_other_values(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    ENDED_BY(job_rank_close) struct job_rank r = {0};

    CHECK(!job_rank_open(&r, job, comm));
    for (int i = 0; i < dp_schedule_slot_count(job->schedule, r.rank); i++)
        CHECK(r.stages[i].w[0] < 1); /* what spoil_second_copy wrote is overwritten */
    for (int i = 0; i < STEPS; i++)
        CHECK(!job_rank_step(&r));
    return 0;
}

static void spoil_second_copy(void *user, int rank, struct dp_pipeline_config *config)
{
    for (int i = 0; i < dp_schedule_slot_count(config->schedule, rank); i++)
        if (dp_schedule_slot(config->schedule, rank, i)->stream)
            ((struct model_stage *)config->stages[i].user)->w[0] = 1e6f;
}

CASE(copies_of_a_stage_start_equal)
{
    OWNED(dp_schedule) *s = case_schedule((struct dp_schedule_spec){
        .kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 8, .mirror_reduce = true});
    struct job job = job_make(s);

    job.edit = spoil_second_copy;
    expect_sequential_by(job, run_from_other_values);
}

static _Thread_local uint16_t narrow[DP_MAX_SLOTS][MODEL_GRADS][64];
static _Thread_local DLTensor narrow_grads[DP_MAX_SLOTS][MODEL_GRADS];
static _Thread_local struct dp_parameter narrow_parameters[DP_MAX_SLOTS][MODEL_GRADS];
static _Thread_local struct dp_stage narrow_stages[DP_MAX_SLOTS];

static void make_narrow(void *user, int rank, struct dp_pipeline_config *config)
{
    uint8_t code = *(const uint8_t *)user;

    for (int i = 0; i < dp_schedule_slot_count(config->schedule, rank); i++) {
        narrow_stages[i] = config->stages[i];
        narrow_stages[i].parameters = narrow_parameters[i];
        for (int k = 0; k < MODEL_GRADS; k++) {
            narrow_parameters[i][k] = config->stages[i].parameters[k];
            narrow_grads[i][k] = *narrow_parameters[i][k].grad;
            narrow_grads[i][k].dtype = (DLDataType){code, 16, 1};
            narrow_grads[i][k].data = memset(narrow[i][k], 0, sizeof(narrow[i][k]));
            narrow_parameters[i][k].grad = &narrow_grads[i][k];
        }
    }
    config->stages = narrow_stages;
}

/* The bits of the float32 sums, rounded once. */
static int run_narrow(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    struct job_rank wide, r;
    struct job plain = *job;
    bool brain = *(const uint8_t *)job->user == kDLBfloat;

    plain.edit = NULL;
    CHECK(!job_rank_open(&wide, &plain, comm));
    CHECK(!job_rank_step(&wide));
    CHECK(!job_rank_open(&r, job, comm));
    CHECK(!dp_pipeline_step(r.pipe, &r.step));
    for (int i = 0; i < dp_schedule_slot_count(job->schedule, r.rank); i++)
        for (size_t k = 0; k < model_grad_count(&job->model, wide.stages[i].stage); k++) {
            size_t weights = (size_t)(wide.stages[i].b - wide.stages[i].w);
            uint16_t has = k < weights ? narrow[i][0][k] : narrow[i][1][k - weights];
            float sum = wide.stages[i].gw[k];
            CHECK(has == (brain ? dp_bfloat16_store(sum) : dp_float16_store(sum)));
        }
    job_rank_close(&wide);
    job_rank_close(&r);
    return 0;
}

CASE(gradients_of_two_bytes_are_summed_in_float32)
{
    static const uint8_t codes[] = {kDLBfloat, kDLFloat};

    for (int i = 0; i < SOME; i++)
        for (int c = 0; c < 2; c++) {
            struct dp_schedule_spec spec = some[i];
            spec.mirror_reduce = true;
            OWNED(dp_schedule) *s = case_schedule(spec);
            struct job job = job_make(s);
            job_begin(&job);
            job.edit = make_narrow;
            job.user = (void *)(uintptr_t)&codes[c];
            assert_int_equal(comm_on_threads(s->ranks, deadline_ns, run_narrow, &job), 0);
            job_end(&job);
        }
}

CASE(one_rank_needs_no_comm)
{
    OWNED(dp_schedule) *s = case_schedule(
        (struct dp_schedule_spec){.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 1, .microbatches = 6});
    ENDED_BY(job_end) struct job job = job_make(s);
    struct job_rank r;

    job_begin(&job);
    assert_int_equal(job_rank_open(&r, &job, NULL), 0);
    for (int i = 0; i < STEPS; i++)
        assert_int_equal(job_rank_step(&r), 0);
    assert_true(job_result_is_sequential(&job, STEPS - 1));
    job_rank_close(&r);
}

/* ---- the host's copy workers ------------------------------------------------------------------- */

static _Thread_local struct dp_device *workers;

static void use_workers(void *user, int rank, struct dp_pipeline_config *config)
{
    config->device = workers;
}

static int run_with_workers(struct dp_comm *comm, void *arg)
{
    CHECK(!dp_device_host_open(2, &workers));
    int err = run_steps(comm, arg);
    dp_device_close(workers);
    return err;
}

CASE(copy_workers_change_no_number)
{
    for (int i = 0; i < SOME; i++) {
        struct dp_schedule_spec spec = some[i];
        spec.mirror_reduce = i % 2;
        OWNED(dp_schedule) *s = case_schedule(spec);
        struct job job = job_make(s);
        job.edit = use_workers;
        job.model.batch_dim = i % 2;
        job.model.rows = 1;
        job.model.width = 200; /* gradients of a size that is not copied at once */
        expect_sequential_by(job, run_with_workers);
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

CASE(two_pipelines_take_turns_on_one_comm)
{
    struct dp_schedule_spec spec = {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 8};
    OWNED(dp_schedule) *training = case_schedule(spec);
    spec.forward_only = spec.return_outputs = true;
    OWNED(dp_schedule) *evaluation = case_schedule(spec);
    struct job jobs[2] = {job_make(training), job_make(evaluation)};
    struct two_jobs two = {{&jobs[0], &jobs[1]}};

    for (int i = 0; i < 2; i++) {
        job_begin(&jobs[i]);
    }
    assert_int_equal(comm_on_threads(4, deadline_ns, run_by_turns, &two), 0);
    for (int i = 0; i < 2; i++) {
        assert_true(job_result_is_sequential(&jobs[i], STEPS - 1));
        job_end(&jobs[i]);
    }
}

/* ---- what is not bit-equal --------------------------------------------------------------------- */

static int run_misrouted(struct dp_comm *comm, void *arg)
{
    ENDED_BY(job_rank_close) struct job_rank r = {0};

    CHECK(!job_rank_open(&r, arg, comm));
    for (int64_t i = 0; r.step.labels && i < r.label.shapes[0][0] * r.label.shapes[0][1]; i++)
        ((float *)r.label.data[0])[i] = ((float *)r.label.data[0])[i / 2];
    CHECK(!job_rank_step(&r));
    return 0;
}

CASE(labels_of_other_micro_batches_change_the_loss)
{
    OWNED(dp_schedule) *s = case_schedule(
        (struct dp_schedule_spec){.kind = DP_SCHEDULE_DUALPIPE, .ranks = 2, .microbatches = 4});
    ENDED_BY(job_end) struct job job = job_make(s);

    job_begin(&job);
    assert_int_equal(comm_on_threads(2, deadline_ns, run_misrouted, &job), 0);
    printf("expected to differ: ");
    assert_false(job_result_is_sequential(&job, 0));
}

static int run_scaled(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    double scales[64];
    ENDED_BY(job_rank_close) struct job_rank r = {0};

    CHECK(!job_rank_open(&r, job, comm));
    for (int i = 0; i < job->schedule->mb_per_stream; i++)
        scales[i] = 0.25;
    if (r.step.labels)
        r.step.loss_scales = scales;
    CHECK(!job_rank_step(&r));
    for (int i = 0; i < dp_schedule_slot_count(job->schedule, r.rank); i++)
        for (size_t k = 0; k < model_grad_count(&job->model, r.stages[i].stage); k++)
            r.stages[i].gw[k] *= 4;
    for (int i = 0; i < dp_schedule_slot_count(job->schedule, r.rank); i++)
        memcpy(job->result->grads[job->schedule->first_slot[r.rank] + (size_t)i], r.stages[i].gw,
               model_grad_count(&job->model, r.stages[i].stage) * sizeof(float));
    return 0;
}

CASE(each_micro_batch_can_have_its_own_scale)
{
    OWNED(dp_schedule) *s = case_schedule(
        (struct dp_schedule_spec){.kind = DP_SCHEDULE_DUALPIPE, .ranks = 2, .microbatches = 4});
    ENDED_BY(job_end) struct job job = job_make(s);

    job_begin(&job);
    assert_int_equal(comm_on_threads(2, deadline_ns, run_scaled, &job), 0);
    assert_true(job_result_is_sequential(&job, 0)); /* powers of two scale without rounding */
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int run_shared(struct dp_comm *comm, void *arg)
{
    ENDED_BY(job_rank_close) struct job_rank r = {0};

    CHECK(!job_rank_open(&r, arg, comm));
    CHECK((r.pipe->memory_kind == DP_MEMORY_SHARED) == (dp_comm_shared_bytes(comm) > 0));
    CHECK(!!dp_comm_shared_bytes(comm) == !strcmp(dp_comm_name(comm), "shm") ||
          !strcmp(dp_comm_name(comm), "auto"));
    for (int i = 0; i < STEPS; i++)
        CHECK(!job_rank_step(&r));
    return 0;
}

CASE(long_messages_lie_in_memory_that_ranks_share)
{
    OWNED(dp_schedule) *s = case_schedule(
        (struct dp_schedule_spec){.kind = DP_SCHEDULE_1F1B, .ranks = 2, .microbatches = 3});

    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++) {
        struct job job = job_make(s);
        int killed = 0;
        job.model.rows = 20000;
        job_begin(&job);
        assert_int_equal(kind->run(kind, 2, deadline_ns, run_shared, &job, &killed), 0);
        assert_true(job_result_is_sequential(&job, STEPS - 1));
        job_end(&job);
    }
}

/* No more pieces of shared memory are to be had, on one of the ranks. */
static int run_without_room(struct dp_comm *comm, void *arg)
{
    char *pieces[DP_SHARED_MAX];
    struct job_rank r;

    for (int i = 0; i < DP_SHARED_MAX && !dp_comm_rank(comm); i++)
        CHECK(!dp_shared_alloc(1, -1, (void **)&pieces[i]));
    CHECK(!job_rank_open(&r, arg, comm));
    CHECK((r.pipe->memory_kind == DP_MEMORY_SHARED) ==
          (dp_comm_shared_bytes(comm) > 0 && dp_comm_rank(comm)));
    for (int i = 0; i < STEPS; i++)
        CHECK(!job_rank_step(&r));
    job_rank_close(&r);
    for (int i = 0; i < DP_SHARED_MAX && !dp_comm_rank(comm); i++)
        CHECK(!dp_shared_free(pieces[i]));
    return 0;
}

CASE(memory_that_cannot_be_shared_does_as_well)
{
    OWNED(dp_schedule) *s = case_schedule(
        (struct dp_schedule_spec){.kind = DP_SCHEDULE_1F1B, .ranks = 2, .microbatches = 3});
    const struct comm_kind *kind = comm_kinds;
    ENDED_BY(job_end) struct job job = job_make(s);
    int killed = 0;

    while (strcmp(kind->name, "shm"))
        kind++;
    job.model.rows = 20000;
    job_begin(&job);
    assert_int_equal(kind->run(kind, 2, deadline_ns, run_without_room, &job, &killed), 0);
    assert_true(job_result_is_sequential(&job, STEPS - 1));
}
