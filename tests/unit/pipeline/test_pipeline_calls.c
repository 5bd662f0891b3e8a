/* SPDX-License-Identifier: Apache-2.0
 *
 * test_pipeline_calls.c - the ways to use one pipeline: other schedules from step to step, gradients
 * over several steps, a step in two calls, gradients in other memory, buffers that a stage hands over.
 */
#include "microbatch/internal.h"

#include "pipeline_case.h"

#include <dualpipe/checkpoint.h>
#include <dualpipe/mixer.h>
#include <dualpipe/offload.h>
#include <dualpipe/optimizer.h>

enum { ROUNDS = 2 };
static const int64_t deadline_ns = INT64_C(20000000000);

/* ---- several schedules ------------------------------------------------------------------------ */

struct jobs {
    struct job a, b; /* the pipeline is a's and takes b's schedule as well */
};

static void add_schedule(void *user, int rank, struct dp_pipeline_config *config)
{
    static _Thread_local const struct dp_schedule *also[1];

    also[0] = ((struct jobs *)user)->b.schedule;
    config->also = also;
    config->also_count = 1;
}

static void take_gradients(struct job_rank *to, struct job_rank *from, int slots)
{
    for (int i = 0; i < slots; i++)
        memcpy(to->stages[i].gw, from->stages[i].gw,
               model_grad_count(&to->job->model, to->stages[i].stage) * sizeof(float));
}

static void clear_gradients(struct job_rank *r, int slots)
{
    for (int i = 0; i < slots; i++)
        memset(r->stages[i].gw, 0,
               model_grad_count(&r->job->model, r->stages[i].stage) * sizeof(float));
}

static int run_both(struct dp_comm *comm, void *arg)
{
    struct jobs *jobs = arg;
    const struct dp_schedule *s = jobs->a.schedule;
    int slots = dp_schedule_slot_count(s, 0);
    struct job_rank a, b;

    CHECK(!job_rank_open(&a, &jobs->a, comm));
    CHECK(!job_rank_open(&b, &jobs->b, comm));
    b.step.schedule = jobs->b.schedule;
    for (int i = 0; i < ROUNDS; i++) {
        CHECK(!job_rank_step(&a));
        clear_gradients(&a, slots);
        CHECK(!dp_pipeline_step(a.pipe, &b.step));
    }
    take_gradients(&b, &a, slots);
    job_rank_store(&b);
    job_rank_close(&a);
    job_rank_close(&b);
    return 0;
}

static void expect_both(struct dp_schedule_spec first, struct dp_schedule_spec second)
{
    struct dp_schedule *a = case_schedule(first), *b = case_schedule(second);
    struct jobs jobs = {job_make(a), job_make(b)};

    job_begin(&jobs.a);
    job_begin(&jobs.b);
    jobs.a.edit = add_schedule;
    jobs.a.user = &jobs;
    assert_int_equal(comm_on_threads(a->ranks, deadline_ns, run_both, &jobs), 0);
    /* Evaluations are not counted as steps: their number is that of the next training step. */
    const uint64_t last = b->forward_only ? ROUNDS - 1 : 2 * ROUNDS - 2;
    assert_true(job_result_is_sequential(&jobs.a, last));
    assert_true(job_result_is_sequential(&jobs.b, last + 1));
    job_end(&jobs.a);
    job_end(&jobs.b);
    dp_schedule_free(a);
    dp_schedule_free(b);
}

CASE(one_pipeline_trains_evaluates_and_changes_its_micro_batches)
{
    for (int kind = DP_SCHEDULE_GPIPE; kind <= DP_SCHEDULE_DUALPIPEV; kind++) {
        struct dp_schedule_spec train = {.kind = (enum dp_schedule_kind)kind, .ranks = 2,
                                         .microbatches = 8, .mirror_reduce = true};
        struct dp_schedule_spec other = train;
        other.forward_only = other.return_outputs = true;
        other.mirror_reduce = false;
        expect_both(train, other);
        other = train;
        other.microbatches = 12;
        other.return_outputs = true;
        expect_both(train, other);
        other.microbatches = 4;
        expect_both(train, other);
    }
}

static int run_other_schedule(struct dp_comm *comm, void *arg)
{
    struct jobs *jobs = arg;
    struct job_rank a;

    CHECK(!job_rank_open(&a, &jobs->a, comm));
    if (dp_comm_rank(comm))
        a.step.schedule = jobs->b.schedule;
    int err = job_rank_step(&a);
    CHECK(err == DP_EMISMATCH || err == DP_EABORTED || err == DP_EINVAL);
    job_rank_close(&a);
    return 0;
}

CASE(ranks_that_take_different_schedules_notice)
{
    struct dp_schedule_spec spec = {.kind = DP_SCHEDULE_1F1B, .ranks = 2, .microbatches = 4};
    struct dp_schedule *a = case_schedule(spec), *b;

    spec.return_outputs = true;
    b = case_schedule(spec);
    struct jobs jobs = {job_make(a), job_make(b)};
    job_begin(&jobs.a);
    jobs.a.edit = add_schedule;
    jobs.a.user = &jobs;
    log_nothing();
    assert_int_equal(comm_on_threads(2, deadline_ns, run_other_schedule, &jobs), 0);
    dp_log_set(NULL, NULL, DP_LOG_DEFAULT);
    job_end(&jobs.a);
    dp_schedule_free(a);
    dp_schedule_free(b);
}

/* ---- gradients over several steps ------------------------------------------------------------- */

static int run_accumulating(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    ENDED_BY(job_rank_close) struct job_rank r = {0};

    CHECK(!job_rank_open(&r, job, comm));
    clear_gradients(&r, dp_schedule_slot_count(job->schedule, 0));
    for (int i = 0; i < 3; i++) {
        r.step.accumulate = i < 2;
        CHECK(!dp_pipeline_step(r.pipe, &r.step));
    }
    job_rank_store(&r);
    return 0;
}

static void expect_accumulated(const struct job *job)
{
    const struct dp_schedule *s = job->schedule;
    struct model_result want;

    model_result_init(&want, &job->model);
    for (uint64_t step = 0; step < 3; step++)
        model_run_sequential(&job->model, step, true, &want);
    for (size_t i = 0; i < (size_t)s->ranks * (size_t)dp_schedule_slot_count(s, 0); i++)
        for (size_t k = 0; k < model_grad_count(&job->model, s->slots[i].stage); k++) {
            float sum = want.first[s->slots[i].stage][k] + want.second[s->slots[i].stage][k];
            assert_memory_equal(&job->result->grads[i][k], &sum, sizeof(sum));
        }
    model_result_fini(&want, &job->model);
}

CASE(steps_can_accumulate_before_gradients_are_summed)
{
    for (int kind = DP_SCHEDULE_GPIPE; kind <= DP_SCHEDULE_DUALPIPEV; kind++) {
        OWNED(dp_schedule) *s = case_schedule((struct dp_schedule_spec){
            .kind = (enum dp_schedule_kind)kind, .ranks = 2, .microbatches = 6,
            .mirror_reduce = true});
        struct job job = job_make(s);
        job_begin(&job);
        assert_int_equal(comm_on_threads(2, deadline_ns, run_accumulating, &job), 0);
        expect_accumulated(&job);
        job_end(&job);
    }
}

/* ---- a step in two calls ---------------------------------------------------------------------- */

static void no_loss(void *user, int rank, struct dp_pipeline_config *config)
{
    config->loss = NULL;
    config->labels = NULL;
    config->own_gradients = true;
}

static void tensors_of(const struct dp_microbatches *mbs, int mb, int count, DLTensor *out)
{
    for (int k = 0; k < count; k++)
        if (mbs->args[mb].items[k].kind == DP_TREE_TENSOR)
            out[k] = *mbs->args[mb].items[k].tensor;
}

/* What a caller does with the outputs. */
static void make_gradients(struct job_rank *r, struct dp_microbatches *grads)
{
    void *model = (void *)(uintptr_t)&r->job->model;
    DLTensor out[MODEL_TENSORS], gout[MODEL_TENSORS], label[1];
    int32_t count;

    for (int mb = 0; mb < grads->count; mb++) {
        tensors_of(r->out_mbs, mb, MODEL_TENSORS, out);
        tensors_of(grads, mb, MODEL_TENSORS, gout);
        tensors_of(r->label_mbs, mb, 1, label);
        model_loss.loss(model, NULL, out, label, r->job->result->losses + mb * MODEL_LOSSES,
                        MODEL_LOSSES, &count);
        model_loss.loss_backward(model, NULL, out, label, 1, gout);
        ((struct dp_tree *)grads->args[mb].items)[1] = dp_absent(); /* the ids have none */
    }
}

static int run_in_two(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    OWNED(dp_microbatches) *grads = NULL;
    struct model_batch batch = {0};
    ENDED_BY(job_rank_close) struct job_rank r = {0};

    CHECK(!job_rank_open(&r, job, comm));
    r.step.labels = NULL;
    r.step.losses = NULL;
    if (r.out_mbs) {
        model_batch_init(&batch, &job->model, job->schedule->stages, 0,
                         job->schedule->mb_per_stream);
        grads = model_batch_split(&batch, &job->model, job->schedule->mb_per_stream);
    }
    for (int i = 0; i < ROUNDS; i++) {
        clear_gradients(&r, 1);
        CHECK(!dp_pipeline_forward(r.pipe, &r.step));
        CHECK(dp_pipeline_forward(r.pipe, &r.step) == DP_ESTATE);
        if (grads)
            make_gradients(&r, grads);
        r.step.output_grads = grads;
        CHECK(!dp_pipeline_backward(r.pipe, &r.step));
    }
    job_rank_store(&r);
    model_batch_fini(&batch);
    return 0;
}

CASE(a_step_can_be_taken_in_two_calls_with_the_callers_gradients)
{
    OWNED(dp_schedule) *s = case_schedule((struct dp_schedule_spec){
        .kind = DP_SCHEDULE_GPIPE, .ranks = 3, .microbatches = 5, .return_outputs = true});
    ENDED_BY(job_end) struct job job = job_make(s);

    job_begin(&job);
    job.edit = no_loss;
    assert_int_equal(comm_on_threads(3, deadline_ns, run_in_two, &job), 0);
    assert_true(job_result_is_sequential(&job, ROUNDS - 1));
}

/* A stage with two outputs, whose gradients are kept. */
static float seen[2][2]; /* [micro-batch][output] */

static int two_forward(void *user, const struct dp_stage_call *call, const DLTensor *in, DLTensor *out)
{
    for (int k = 0; k < 2; k++)
        memcpy((char *)out[k].data + out[k].byte_offset, (char *)in[k].data + in[k].byte_offset,
               sizeof(float));
    return 0;
}

static int two_backward(void *user, const struct dp_stage_call *call, const DLTensor *gout,
                        DLTensor *gin, enum dp_backward_mode mode)
{
    for (int k = 0; k < 2; k++)
        memcpy(&seen[call->mb][k], (char *)gout[k].data + gout[k].byte_offset, sizeof(float));
    return 0;
}

static struct dp_microbatches *split_two(float *first, float *second)
{
    static int64_t rows = 2;
    static DLTensor tensors[2];
    struct dp_tree leaves[2];
    float *data[] = {first, second};
    struct dp_microbatches *out;

    for (int k = 0; k < 2; k++) {
        tensors[k] = (DLTensor){.data = data[k], .device = {kDLCPU, 0}, .ndim = 1,
                                .dtype = {kDLFloat, 32, 1}, .shape = &rows};
        leaves[k] = data[k] ? dp_tensor(&tensors[k]) : dp_absent();
    }
    struct dp_tree all = dp_tuple(2, leaves);
    assert_int_equal(dp_split(&all, NULL, &(struct dp_split_options){.count = 2}, &out), 0);
    return out;
}

/* Also where the buffer has had a gradient in the step before. */
CASE(an_absent_gradient_of_an_output_is_zero)
{
    static const struct dp_stage_ops ops = {.forward = two_forward, .backward = two_backward};
    static const struct dp_border two = {
        2, {{{kDLFloat, 32, 1}, .ndim = 1, .shape = {1}}, {{kDLFloat, 32, 1}, .ndim = 1, .shape = {1}}}};
    const struct dp_border borders[] = {two, two};
    OWNED(dp_schedule) *s = case_schedule((struct dp_schedule_spec){
        .kind = DP_SCHEDULE_GPIPE, .ranks = 1, .microbatches = 2, .return_outputs = true});
    struct dp_pipeline *pipe;
    float x[2][2] = {{1, 2}, {3, 4}}, y[2][2], grads[2][2] = {{10, 20}, {30, 40}};

    assert_int_equal(dp_pipeline_new(&(struct dp_pipeline_config){.schedule = s,
                                                                  .stages = &(struct dp_stage){.ops = &ops},
                                                                  .borders = borders,
                                                                  .own_gradients = true},
                                     &pipe), 0);
    for (int absent = -1; absent < 2; absent++) {
        struct dp_step step = {.inputs = split_two(x[0], x[1]), .outputs = split_two(y[0], y[1]),
                               .output_grads = split_two(absent == 0 ? NULL : grads[0],
                                                         absent == 1 ? NULL : grads[1])};
        assert_int_equal(dp_pipeline_forward(pipe, &step), 0);
        assert_int_equal(dp_pipeline_backward(pipe, &step), 0);
        for (int k = 0; k < 2; k++)
            for (int mb = 0; mb < 2; mb++)
                assert_true(seen[mb][k] == (k == absent ? 0 : grads[k][mb]));
        dp_microbatches_free((struct dp_microbatches *)(uintptr_t)step.inputs);
        dp_microbatches_free((struct dp_microbatches *)(uintptr_t)step.outputs);
        dp_microbatches_free((struct dp_microbatches *)(uintptr_t)step.output_grads);
    }
    dp_pipeline_free(pipe);
}

/* ---- ends of the model ------------------------------------------------------------------------ */

/* Only ranks with a first stage know its inputs, only those with a last one its outputs and labels. */
static void forget_other_ends(void *user, int rank, struct dp_pipeline_config *config)
{
    const struct dp_schedule *s = config->schedule;
    struct dp_border *borders = (struct dp_border *)(uintptr_t)config->borders;
    bool first = false, last = false;

    for (int i = 0; i < dp_schedule_slot_count(s, rank); i++) {
        first |= dp_schedule_slot(s, rank, i)->stage == 0;
        last |= dp_slot_is_last(dp_schedule_slot(s, rank, i));
    }
    if (!first)
        borders[0] = (struct dp_border){0};
    if (last)
        return;
    borders[s->stages] = (struct dp_border){0};
    config->labels = NULL;
    config->loss = NULL;
}

static int run_one_step(struct dp_comm *comm, void *arg)
{
    ENDED_BY(job_rank_close) struct job_rank r = {0};

    CHECK(!job_rank_open(&r, arg, comm));
    CHECK(!job_rank_step(&r));
    return 0;
}

CASE(a_rank_need_not_declare_ends_that_it_does_not_hold)
{
    static const enum dp_schedule_kind kinds[] = {DP_SCHEDULE_1F1B, DP_SCHEDULE_DUALPIPE,
                                                  DP_SCHEDULE_DUALPIPEV};

    for (int i = 0; i < 3; i++) {
        OWNED(dp_schedule) *s = case_schedule((struct dp_schedule_spec){
            .kind = kinds[i], .ranks = 4, .microbatches = 8, .mirror_reduce = true});
        struct job job = job_make(s);

        job_begin(&job);
        job.edit = forget_other_ends;
        assert_int_equal(comm_on_threads(4, deadline_ns, run_one_step, &job), 0);
        assert_true(job_result_is_sequential(&job, 0));
        job_end(&job);
    }
}

/* ---- gradients in other memory ---------------------------------------------------------------- */

static int run_bound(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    int slots = dp_schedule_slot_count(job->schedule, 0);
    struct dp_parameter parameters[2][MODEL_GRADS];
    DLTensor grads[2][MODEL_GRADS];
    float memory[2][MODEL_GRADS][64] = {{{0}}};
    ENDED_BY(job_rank_close) struct job_rank r = {0};

    CHECK(!job_rank_open(&r, job, comm));
    CHECK(!job_rank_step(&r));
    clear_gradients(&r, slots);
    for (int i = 0; i < slots; i++) {
        for (int k = 0; k < MODEL_GRADS; k++) {
            parameters[i][k] = r.stages[i].parameters[k];
            grads[i][k] = *parameters[i][k].grad;
            grads[i][k].data = memory[i][k];
            parameters[i][k].grad = &grads[i][k];
        }
        CHECK(!dp_pipeline_bind(r.pipe, i, parameters[i]));
    }
    CHECK(!dp_pipeline_step(r.pipe, &r.step));
    for (int i = 0; i < slots; i++) {
        size_t weights = (size_t)(r.stages[i].b - r.stages[i].w);
        CHECK(r.stages[i].gw[0] == 0);
        memcpy(r.stages[i].gw, memory[i][0], weights * sizeof(float));
        memcpy(r.stages[i].gb, memory[i][1],
               (model_grad_count(&job->model, r.stages[i].stage) - weights) * sizeof(float));
    }
    struct dp_parameter others[MODEL_GRADS] = {parameters[0][0], parameters[0][1]};
    others[1].name = "another";
    CHECK(dp_pipeline_bind(r.pipe, 0, others) == DP_EMISMATCH);
    job_rank_store(&r);
    return 0;
}

CASE(gradients_can_be_bound_again_between_steps)
{
    OWNED(dp_schedule) *s = case_schedule((struct dp_schedule_spec){
        .kind = DP_SCHEDULE_DUALPIPE, .ranks = 2, .microbatches = 4, .mirror_reduce = true});
    ENDED_BY(job_end) struct job job = job_make(s);

    job_begin(&job);
    log_nothing();
    assert_int_equal(comm_on_threads(2, deadline_ns, run_bound, &job), 0);
    dp_log_set(NULL, NULL, DP_LOG_DEFAULT);
    assert_true(job_result_is_sequential(&job, 1));
}

/* ---- gradients that stay with the stage ------------------------------------------------------- */

/* Sums of the gradients that calls add to at the moment, until others come or they are to be read. */
static _Thread_local struct {
    const DLTensor *home[MODEL_GRADS]; /* [0] NULL: none */
    DLTensor here[MODEL_GRADS];
    float sums[MODEL_GRADS][64];
} kept;

static size_t bytes_of(const DLTensor *t)
{
    return (size_t)(t->shape[0] * (t->ndim == 2 ? t->shape[1] : 1)) * sizeof(float);
}

static int settle_kept(void *user)
{
    for (int k = 0; k < MODEL_GRADS && kept.home[0]; k++)
        memcpy(kept.home[k]->data, kept.sums[k], bytes_of(kept.home[k]));
    kept.home[0] = NULL;
    return 0;
}

static int cannot_settle(void *user)
{
    return dp_callback_error(-7, "no way down");
}

static struct dp_stage_call keep(const struct dp_stage_call *call)
{
    static _Thread_local DLTensor *grads[MODEL_GRADS];
    struct dp_stage_call there = *call;

    if (kept.home[0] != call->grads[0]) {
        settle_kept(NULL);
        for (int k = 0; k < MODEL_GRADS; k++) {
            kept.home[k] = call->grads[k];
            kept.here[k] = *call->grads[k];
            kept.here[k].data = kept.sums[k];
            memcpy(kept.sums[k], kept.home[k]->data, bytes_of(kept.home[k]));
            grads[k] = &kept.here[k];
        }
    }
    there.grads = grads;
    return there;
}

static int keeping_forward(void *user, const struct dp_stage_call *call, const DLTensor *in,
                           DLTensor *out)
{
    return model_ops.forward(user, call, in, out);
}

static int keeping_backward(void *user, const struct dp_stage_call *call, const DLTensor *gout,
                            DLTensor *gin, enum dp_backward_mode mode)
{
    const struct dp_stage_call there = keep(call);

    return model_ops.backward(user, &there, gout, gin, mode);
}

static int keeping_weight(void *user, const struct dp_stage_call *call)
{
    const struct dp_stage_call there = keep(call);

    return model_ops.weight(user, &there);
}

static int run_not_settled(struct dp_comm *comm, void *arg)
{
    struct dp_abort why;
    ENDED_BY(job_rank_close) struct job_rank r = {0};

    CHECK(!job_rank_open(&r, arg, comm));
    const int err = job_rank_step(&r);
    CHECK(err == DP_ECALLBACK || err == DP_EABORTED);
    CHECK(dp_comm_aborted(comm, &why) && strstr(why.text, "settle failed with -7"));
    CHECK(strstr(why.text, "no way down"));
    return 0;
}

CASE(gradients_kept_by_a_stage_are_settled_before_they_are_read)
{
    struct dp_stage_ops ops = {.forward = keeping_forward, .backward = keeping_backward,
                               .weight = keeping_weight, .settle = settle_kept};

    for (int i = 0; i < 2 * (DP_SCHEDULE_DUALPIPEV - DP_SCHEDULE_GPIPE + 1); i++) {
        struct dp_schedule *s =
            case_schedule((struct dp_schedule_spec){.kind = DP_SCHEDULE_GPIPE + (enum dp_schedule_kind)(i / 2),
                                            .ranks = 2, .microbatches = 8, .mirror_reduce = true});
        struct job job = job_make(s);

        job.ops = &ops;
        job.fixed_order = i % 2;
        job.tolerance = i % 2 ? 0 : 1e-5F;
        job_begin(&job);
        assert_int_equal(comm_on_threads(2, deadline_ns, run_one_step, &job), 0);
        assert_true(job_result_is_sequential(&job, 0));
        if (i == 0) {
            ops.settle = cannot_settle;
            log_nothing();
            assert_int_equal(comm_on_threads(2, deadline_ns, run_not_settled, &job), 0);
            dp_log_set(NULL, NULL, DP_LOG_DEFAULT);
            ops.settle = settle_kept;
        }
        job_end(&job);
        dp_schedule_free(s);
    }
}

/* ---- a stage's own buffers -------------------------------------------------------------------- */

enum { MB = 6, MOST_STAGES = 8, OWN_RANKS = 3 };

struct own {
    float out[MOST_STAGES][MB], gin[MOST_STAGES][MB], sum;
};

static int own_forward(void *user, const struct dp_stage_call *call, const DLTensor *in,
                       DLTensor *out)
{
    struct own *own = user;

    own->out[call->stage][call->mb] = *(const float *)in->data + 1;
    out->data = &own->out[call->stage][call->mb];
    return 0;
}

static int own_backward(void *user, const struct dp_stage_call *call, const DLTensor *gout,
                        DLTensor *gin, enum dp_backward_mode mode)
{
    struct own *own = user;

    own->sum += *(const float *)gout->data;
    own->gin[call->stage][call->mb] = 2 * *(const float *)gout->data;
    if (gin->data)
        gin->data = &own->gin[call->stage][call->mb];
    return 0;
}

static int own_loss(void *user, const struct dp_stage_call *call, const DLTensor *out,
                    const DLTensor *labels, double *values, int32_t max, int32_t *count)
{
    values[0] = *(const float *)out->data;
    *count = 1;
    return 0;
}

static int own_loss_backward(void *user, const struct dp_stage_call *call, const DLTensor *out,
                             const DLTensor *labels, double scale, DLTensor *gout)
{
    *(float *)gout->data = (float)scale;
    return 0;
}

static int run_own(struct dp_comm *comm, void *arg)
{
    static const struct dp_stage_ops ops = {.forward = own_forward, .backward = own_backward};
    static const struct dp_loss_ops loss = {own_loss, own_loss_backward};
    const struct dp_schedule *s = arg;
    float batch[MB] = {10, 20, 30, 40, 50, 60};
    int64_t shape[] = {MB};
    const DLTensor input = {batch, {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, shape, NULL, 0};
    struct dp_tree args = dp_tuple(1, (struct dp_tree[]){dp_tensor(&input)});
    struct dp_border borders[MOST_STAGES + 1];
    struct own own = {.sum = 0};
    struct dp_stage stages[2] = {{.ops = &ops, .user = &own, .no_split = true},
                                 {.ops = &ops, .user = &own, .no_split = true}};
    OWNED(dp_microbatches) *inputs = NULL;
    struct dp_pipeline *pipe;
    double losses[MB];
    int rank = dp_comm_rank(comm);
    bool v = s->kind == DP_SCHEDULE_DUALPIPEV;

    for (int i = 0; i <= s->stages; i++)
        borders[i] = (struct dp_border){
            1, {{.dtype = {kDLFloat, 32, 1}, .ndim = 1, .shape = {1}}}};
    CHECK(!dp_split(&args, NULL, &(struct dp_split_options){.count = MB}, &inputs));
    CHECK(!dp_pipeline_new(&(struct dp_pipeline_config){.schedule = s, .comm = comm,
                                                        .stages = stages, .borders = borders,
                                                        .loss = &loss}, &pipe));
    bool last = v ? rank == 0 : rank == s->ranks - 1;
    struct dp_step step = {.inputs = rank == 0 ? inputs : NULL, .losses = last ? losses : NULL};
    CHECK(!dp_pipeline_step(pipe, &step));
    for (int mb = 0; last && mb < MB; mb++)
        CHECK(losses[mb] == 10 * (mb + 1) + s->stages);
    float want = 0;
    for (int i = 0; i < dp_schedule_slot_count(s, rank); i++)
        want += MB * (float)(1 << (s->stages - 1 - dp_schedule_slot(s, rank, i)->stage));
    CHECK(own.sum == want);
    dp_pipeline_free(pipe);
    return 0;
}

CASE(a_stage_can_hand_over_buffers_of_its_own)
{
    static const enum dp_schedule_kind kinds[] = {DP_SCHEDULE_1F1B, DP_SCHEDULE_DUALPIPEV};

    for (int i = 0; i < 2; i++) {
        OWNED(dp_schedule) *s = case_schedule((struct dp_schedule_spec){
            .kind = kinds[i], .ranks = OWN_RANKS, .microbatches = MB});
        assert_int_equal(comm_on_threads(OWN_RANKS, deadline_ns, run_own, s), 0);
    }
}

/* ---- uneven micro-batches ---------------------------------------------------------------------- */

enum { ROWS = 7, WIDTH = 3, UNEVEN_MB = 4, UNEVEN_RANKS = 2 };

struct uneven {
    const struct dp_schedule *schedule;
    int64_t sizes[UNEVEN_MB];
};

/* Twice its input; the weight is what a row adds. */
static int rows_forward(void *user, const struct dp_stage_call *call, const DLTensor *in,
                        DLTensor *out)
{
    if (in->shape[0] != out->shape[0] || in->shape[1] != WIDTH)
        return dp_callback_error(-1, "%d rows in, %d out", (int)in->shape[0], (int)out->shape[0]);
    for (int64_t i = 0; i < in->shape[0] * WIDTH; i++)
        ((float *)out->data)[i] = 2 * ((const float *)in->data)[i];
    return 0;
}

static int rows_backward(void *user, const struct dp_stage_call *call, const DLTensor *gout,
                         DLTensor *gin, enum dp_backward_mode mode)
{
    if (call->in->shape[0] != gout->shape[0])
        return dp_callback_error(-2, "%d rows back", (int)gout->shape[0]);
    for (int64_t i = 0; i < gout->shape[0] * WIDTH; i++) {
        *(double *)user += (double)((const float *)gout->data)[i];
        if (gin->data)
            ((float *)gin->data)[i] = ((const float *)gout->data)[i];
    }
    return 0;
}

static int rows_loss(void *user, const struct dp_stage_call *call, const DLTensor *out,
                     const DLTensor *labels, double *values, int32_t max, int32_t *count)
{
    values[0] = 0;
    for (int64_t i = 0; i < out->shape[0] * WIDTH; i++)
        values[0] += (double)((const float *)out->data)[i] * ((const float *)labels->data)[i];
    *count = 1;
    return labels->shape[0] == out->shape[0] ? 0 : -3;
}

static int rows_loss_backward(void *user, const struct dp_stage_call *call, const DLTensor *out,
                              const DLTensor *labels, double scale, DLTensor *gout)
{
    for (int64_t i = 0; i < gout->shape[0] * WIDTH; i++)
        ((float *)gout->data)[i] = ((const float *)labels->data)[i];
    return 0;
}

static const struct dp_stage_ops rows_ops = {.forward = rows_forward, .backward = rows_backward};
static const struct dp_loss_ops rows_loss_ops = {rows_loss, rows_loss_backward};

/* Views of the batch's rows, divided by the sizes. */
static struct dp_microbatches *cut(const DLTensor *batch, const int64_t *sizes, int64_t (*dims)[4],
                                   DLTensor *views, struct dp_tree *leaves, struct dp_tree *args)
{
    struct dp_microbatches *mbs = NULL;
    int64_t at = 0;

    for (int mb = 0; mb < UNEVEN_MB; at += sizes[mb++]) {
        dp_tensor_window(batch, 0, at, sizes[mb], dims[mb], &views[mb]);
        leaves[mb] = dp_tensor(&views[mb]);
        args[mb] = dp_tuple(1, &leaves[mb]);
    }
    dp_split_given(args, UNEVEN_MB, NULL, 0, &mbs);
    return mbs;
}

static int run_uneven(struct dp_comm *comm, void *arg)
{
    const struct uneven *u = arg;
    const struct dp_schedule *s = u->schedule;
    int rank = dp_comm_rank(comm), slots = dp_schedule_slot_count(s, rank);
    float in[ROWS * WIDTH], label[ROWS * WIDTH], out[ROWS * WIDTH];
    int64_t shape[] = {ROWS, WIDTH}, dims[3][UNEVEN_MB][4], extents[UNEVEN_MB][DP_MAX_EXTENTS] = {{0}};
    DLTensor batch = {in, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, NULL, 0}, views[3][UNEVEN_MB];
    DLTensor wanted = batch, labels = batch;
    struct dp_tree leaves[3][UNEVEN_MB], args[3][UNEVEN_MB];
    struct dp_border border = {1, {{{kDLFloat, 32, 1}, 2, {2, WIDTH}, false, {1}}}}, borders[8];
    struct dp_stage stages[2];
    double sums[2] = {0}, losses[UNEVEN_MB], total = 0, label_sum = 0;
    struct dp_pipeline *pipe;

    for (int i = 0; i < ROWS * WIDTH; i++) {
        in[i] = (float)(i + 1);
        label[i] = (float)(i % 5);
        total += (double)in[i] * label[i] * (1 << s->stages);
        label_sum += label[i];
    }
    wanted.data = out;
    labels.data = label;
    for (int i = 0; i <= s->stages; i++)
        borders[i] = border;
    for (int i = 0; i < 2; i++)
        stages[i] = (struct dp_stage){.ops = &rows_ops, .user = &sums[i], .no_split = true};
    for (int mb = 0; mb < UNEVEN_MB; mb++)
        extents[mb][0] = u->sizes[mb];
    struct dp_microbatches *mbs[3] = {
        cut(&batch, u->sizes, dims[0], views[0], leaves[0], args[0]),
        cut(&labels, u->sizes, dims[1], views[1], leaves[1], args[1]),
        cut(&wanted, u->sizes, dims[2], views[2], leaves[2], args[2])};
    CHECK(!dp_pipeline_new(&(struct dp_pipeline_config){.schedule = s, .comm = comm,
                                                        .stages = stages, .borders = borders,
                                                        .labels = &border, .max_extents = {2},
                                                        .loss = &rows_loss_ops}, &pipe));
    bool last = s->kind == DP_SCHEDULE_DUALPIPEV ? rank == 0 : rank == s->ranks - 1;
    struct dp_step step = {.inputs = rank == 0 ? mbs[0] : NULL, .labels = last ? mbs[1] : NULL,
                           .outputs = last ? mbs[2] : NULL, .losses = last ? losses : NULL,
                           .extents = (const int64_t (*)[DP_MAX_EXTENTS])extents};
    CHECK(!dp_pipeline_step(pipe, &step));
    for (int mb = 0; last && mb < UNEVEN_MB; mb++)
        total -= losses[mb];
    CHECK(!last || total == 0);
    for (int i = 0; last && i < ROWS * WIDTH; i++)
        CHECK(out[i] == in[i] * (float)(1 << s->stages));
    for (int i = 0; i < slots; i++)
        CHECK(sums[i] == label_sum);
    dp_comm_barrier(comm); /* which a rank that is ahead may end */
    extents[0][0] = 3;
    CHECK(dp_pipeline_step(pipe, &step) < 0); /* more than declared */
    dp_pipeline_free(pipe);
    for (int i = 0; i < 3; i++)
        dp_microbatches_free(mbs[i]);
    return 0;
}

CASE(micro_batches_may_be_uneven_by_either_rule)
{
    static const enum dp_schedule_kind kinds[] = {DP_SCHEDULE_GPIPE, DP_SCHEDULE_1F1B,
                                                  DP_SCHEDULE_DUALPIPEV};
    int32_t made;

    log_nothing();
    for (int i = 0; i < 6; i++) {
        struct uneven u = {.schedule = case_schedule((struct dp_schedule_spec){
                               .kind = kinds[i / 2], .ranks = UNEVEN_RANKS,
                               .microbatches = UNEVEN_MB})};
        if (i % 2) /* 2 2 2 1 */
            assert_int_equal(dp_cut_sizes(DP_CUT_TENSOR_SPLIT, ROWS, UNEVEN_MB, u.sizes, &made), 0);
        else
            assert_int_equal(dp_cut_sizes(DP_CUT_CHUNK, ROWS - 1, UNEVEN_MB - 1, u.sizes + 1, &made), 0);
        if (!(i % 2))
            u.sizes[0] = 1; /* 1 2 2 2 */
        assert_int_equal(comm_on_threads(UNEVEN_RANKS, deadline_ns, run_uneven, &u), 0);
        dp_schedule_free((struct dp_schedule *)(uintptr_t)u.schedule);
    }
    dp_log_set(NULL, NULL, DP_LOG_DEFAULT);
}

/* ---- structs ---------------------------------------------------------------------------------- */

#define SIZED(s) {#s, sizeof(struct s)}

CASE(structs_of_another_release_are_refused_by_name)
{
    static const struct {
        const char *name;
        size_t size;
    } passed[] = {SIZED(dp_step),         SIZED(dp_stage),         SIZED(dp_abort),
                  SIZED(dp_request),      SIZED(dp_loader),        SIZED(dp_optimizer_config),
                  SIZED(dp_parameter),    SIZED(dp_schedule_spec), SIZED(dp_checkpoint_tensor)};
    char sentence[80];

    assert_int_equal(DP_CHECK_STRUCT(dp_stage_ops), 0);
    assert_int_equal(dp_check_struct("dp_pipeline_config", 4096), 0); /* one that grows */
    log_nothing();
    for (size_t i = 0; i < sizeof(passed) / sizeof(passed[0]); i++) {
        const size_t other = passed[i].size + 8;
        assert_int_equal(dp_check_struct(passed[i].name, passed[i].size), 0);
        assert_int_equal(dp_check_struct(passed[i].name, other), DP_EMISMATCH);
        snprintf(sentence, sizeof(sentence), "struct %s: %zu bytes, expected %zu", passed[i].name,
                 other, passed[i].size);
        assert_non_null(strstr(dp_last_error(), sentence));
    }
    assert_int_equal(dp_check_struct("dp_stride", 8), DP_EINVAL);
    assert_int_equal(dp_check_struct(NULL, 8), DP_EINVAL);
    dp_log_set(NULL, NULL, DP_LOG_DEFAULT);
}

CASE(random_keys_are_distinct_over_the_whole_range)
{
    static const struct {
        uint64_t step;
        uint32_t where, mb;
    } places[] = {{0, 0, 0},       {1, 0, 0},        {0, 1, 0},        {0, 0, 1},
                  {0, 0, 1 << 16}, {0, 1 << 16, 0},  {1ull << 32, 0, 0}, {1ull << 63, 0, 0},
                  {0, 0, 1u << 31}, {0, 1u << 31, 0}, {0, 1, 1 << 16},  {1, 0, 1 << 16}};
    enum { N = sizeof(places) / sizeof(places[0]) };
    struct dp_random_key keys[N];

    for (int i = 0; i < N; i++) {
        keys[i] = dp_random_key(7, places[i].step, places[i].where, places[i].mb);
        for (int j = 0; j < i; j++)
            assert_memory_not_equal(&keys[i], &keys[j], sizeof(keys[i]));
    }
    assert_true(keys[0].key == 7); /* what was drawn before the range grew stays */
}
