/* SPDX-License-Identifier: Apache-2.0
 *
 * What stages and losses are given, and what stays theirs: inputs, output gradients, handles, save
 * areas, gradients and labels of other types.
 */
#include "pipeline_steps.h"

/* ---- what a first stage and a loss are given -------------------------------------------------- */

static int run_with_strides(struct dp_comm *comm, void *arg)
{
    ENDED_BY(job_rank_close) struct job_rank r = {0};

    CHECK(!job_rank_open(&r, arg, comm));
    for (int mb = 0; r.in_mbs && mb < r.in_mbs->count; mb++)
        for (int k = 0; k < MODEL_TENSORS; k++) {
            DLTensor *t = (DLTensor *)r.in_mbs->args[mb].items[k].tensor;
            t->strides = t->shape + t->ndim; /* dp_tensor_window's place for them */
            t->strides[0] = t->shape[1];
            t->strides[1] = 1;
        }
    for (int i = 0; i < STEPS; i++)
        CHECK(!job_rank_step(&r));
    return 0;
}

CASE(contiguous_strides_are_none)
{
    OWNED(dp_schedule) *s = case_schedule(some[0]);

    expect_sequential_by(job_make(s), run_with_strides);
}

/* Of the first stage's callbacks: what they saw. */
struct seen {
    const void *opaque;
    int absent, strided, calls;
};

static int look(void *user, const struct dp_stage_call *call, const char *what)
{
    struct seen *seen = user;

    if (call->stage)
        return call->args || call->kwargs ? -1 : 0;
    seen->opaque = call->args->items[1].opaque;
    seen->absent += !call->in[1].data;
    seen->strided += call->in[0].strides != NULL;
    seen->calls++;
    return 0;
}

static const struct dp_stage_ops looking_ops;

/* x strided, ids absent, an opaque value between them. */
static int run_odd_inputs(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    struct dp_tree leaves[8][4], args[8];
    struct dp_microbatches *odd;
    int64_t strides[] = {1, 3};
    ENDED_BY(job_rank_close) struct job_rank r = {0};

    CHECK(!job_rank_open(&r, job, comm));
    for (int mb = 0; r.in_mbs && mb < r.in_mbs->count; mb++) {
        DLTensor *x = (DLTensor *)r.in_mbs->args[mb].items[0].tensor;
        x->strides = strides;
        leaves[mb][0] = dp_tensor(x);
        leaves[mb][1] = dp_opaque(job);
        leaves[mb][2] = dp_absent();
        leaves[mb][3] = r.in_mbs->args[mb].items[2];
        args[mb] = dp_tuple(4, leaves[mb]);
    }
    if (r.in_mbs) {
        CHECK(!dp_split_given(args, r.in_mbs->count, NULL, 0, &odd));
        r.step.inputs = odd;
    }
    CHECK(!job_rank_step(&r));
    if (r.in_mbs)
        dp_microbatches_free(odd);
    return 0;
}

CASE(absent_opaque_and_strided_inputs_reach_the_first_stage)
{
    OWNED(dp_schedule) *s = case_schedule(
        (struct dp_schedule_spec){.kind = DP_SCHEDULE_1F1B, .ranks = 2, .microbatches = 4});
    ENDED_BY(job_end) struct job job = job_make(s);
    struct seen seen = {0};

    job_begin(&job);
    job.ops = &looking_ops;
    job.before = look;
    job.user = &seen;
    assert_int_equal(comm_on_threads(2, deadline_ns, run_odd_inputs, &job), 0);
    assert_ptr_equal(seen.opaque, &job);
    assert_int_equal(seen.calls, 8); /* forward and backward of 4 */
    assert_int_equal(seen.absent, 8);
    assert_int_equal(seen.strided, 8);
}

/* The model's stage, but it reads nothing that may be absent. */
static int look_forward(void *user, const struct dp_stage_call *call, const DLTensor *in,
                        DLTensor *out)
{
    const struct model_stage *s = user;

    for (int k = 0; k < MODEL_TENSORS; k++)
        memset(out[k].data, 0, (size_t)(out[k].shape[0] * out[k].shape[1] * out[k].dtype.bits / 8));
    return s->before(s->before_user, call, "forward");
}

static int look_backward(void *user, const struct dp_stage_call *call, const DLTensor *gout,
                         DLTensor *gin, enum dp_backward_mode mode)
{
    const struct model_stage *s = user;

    for (int k = 0; k < MODEL_TENSORS; k++)
        gin[k].data = NULL;
    return call->gout == gout ? s->before(s->before_user, call, "backward") : -1;
}

static const struct dp_stage_ops looking_ops = {.forward = look_forward, .backward = look_backward};

/* ---- output gradients and handles ------------------------------------------------------------- */

static _Thread_local int handles_open;

static int gout_forward(void *user, const struct dp_stage_call *call, const DLTensor *in,
                        DLTensor *out)
{
    if (*call->handle || call->gout)
        return dp_callback_error(-71, "a handle or a gradient before the forward");
    *call->handle = (void *)(uintptr_t)(1000 * call->stage + call->mb_global + 1);
    handles_open++;
    return model_ops.forward(user, call, in, out);
}

static int poison(const struct dp_stage_call *call)
{
    for (int k = 0; k < MODEL_TENSORS; k++)
        if (call->gout[k].data)
            memset(call->gout[k].data, 0xFF,
                   (size_t)(call->gout[k].shape[0] * call->gout[k].shape[1] *
                            call->gout[k].dtype.bits / 8));
    *call->handle = NULL;
    handles_open--;
    return 0;
}

static int check_handle(const struct dp_stage_call *call)
{
    if (*call->handle == (void *)(uintptr_t)(1000 * call->stage + call->mb_global + 1))
        return 0;
    return dp_callback_error(-72, "the handle is %p", *call->handle);
}

/* The input gradient once, and once more in the weight part, out of the same gout: then it is
 * overwritten. */
static int gout_backward(void *user, const struct dp_stage_call *call, const DLTensor *gout,
                         DLTensor *gin, enum dp_backward_mode mode)
{
    int err = check_handle(call);

    if (!err)
        err = model_ops.backward(user, call, gout, gin, mode);
    if (!err && mode == DP_BACKWARD_FULL)
        err = poison(call);
    return err;
}

static int gout_weight(void *user, const struct dp_stage_call *call)
{
    DLTensor nowhere[MODEL_TENSORS] = {{0}};
    int err = check_handle(call);

    memset((float *)call->save + ((struct model_stage *)user)->model->rows *
                                     model_width(((struct model_stage *)user)->model,
                                                 call->stage + 1),
           0xFF, sizeof(float)); /* what backward has saved is not used */
    if (!err)
        err = model_ops.backward(user, call, call->gout, nowhere, DP_BACKWARD_FULL);
    return err ? err : poison(call);
}

static const struct dp_stage_ops gout_ops = {
    .forward = gout_forward, .backward = gout_backward, .weight = gout_weight};

static int run_gout(struct dp_comm *comm, void *arg)
{
    handles_open = 0;
    int failed = run_steps(comm, arg);
    CHECK(handles_open == 0);
    return failed;
}

CASE(output_gradients_and_handles_stay_until_the_weight_part)
{
    for (int i = 0; i < SOME; i++) {
        OWNED(dp_schedule) *s = case_schedule(some[i]);
        struct job job = job_make(s);
        job.ops = &gout_ops;
        expect_sequential_by(job, run_gout);
    }
}

static int dropped;

static void drop(void *user, void *handle)
{
    dropped += handle != NULL;
}

static int forward_with_handle(void *user, const struct dp_stage_call *call, const DLTensor *in,
                               DLTensor *out)
{
    *call->handle = user;
    if (call->mb == 2)
        return dp_callback_error(-73, "no %s today", "luck");
    return model_ops.forward(user, call, in, out);
}

CASE(a_failed_callback_is_reported_and_handles_are_dropped)
{
    static const struct dp_stage_ops ops = {.forward = forward_with_handle, .drop = drop};
    OWNED(dp_schedule) *s = case_schedule((struct dp_schedule_spec){
        .kind = DP_SCHEDULE_GPIPE, .ranks = 1, .microbatches = 4, .forward_only = true});
    ENDED_BY(job_end) struct job job = job_make(s);
    struct job_rank r;

    job_begin(&job);
    job.ops = &ops;
    assert_int_equal(job_rank_open(&r, &job, NULL), 0);
    dropped = 0;
    assert_int_equal(job_rank_step(&r), DP_ECALLBACK);
    assert_int_equal(r.step.callback_error, -73);
    assert_non_null(strstr(dp_last_error(), "failed with -73"));
    assert_non_null(strstr(dp_last_error(), "no luck today"));
    assert_int_equal(dropped, 3);
    job_rank_close(&r);
}

/* ---- save areas ------------------------------------------------------------------------------- */

static void save_of(void *user, int32_t mb_global, struct dp_save_bytes *bytes)
{
    bytes->input = 64;
    bytes->weight = 8 + (size_t)mb_global % 3 * 1000;
}

static int save_forward(void *user, const struct dp_stage_call *call, const DLTensor *in,
                        DLTensor *out)
{
    memset(call->save_input, call->mb_global + 1, 64);
    return call->save_weight && !call->training
               ? -1
               : model_ops.forward(user, call, in, out);
}

static bool is_filled(const unsigned char *area, int value, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (area[i] != (unsigned char)value)
            return false;
    return true;
}

static size_t weight_bytes(const struct dp_stage_call *call)
{
    struct dp_save_bytes bytes = {0};

    save_of(NULL, call->mb_global, &bytes);
    return bytes.weight;
}

static int save_backward(void *user, const struct dp_stage_call *call, const DLTensor *gout,
                         DLTensor *gin, enum dp_backward_mode mode)
{
    if (!is_filled(call->save_input, call->mb_global + 1, 64))
        return dp_callback_error(-74, "the first save area was overwritten");
    memset(call->save_weight, call->mb_global + 100, weight_bytes(call));
    return model_ops.backward(user, call, gout, gin, mode);
}

static int save_weight(void *user, const struct dp_stage_call *call)
{
    if (!is_filled(call->save_weight, call->mb_global + 100, weight_bytes(call)))
        return dp_callback_error(-75, "the second save area was overwritten");
    return model_ops.weight(user, call);
}

static void set_save_of(void *user, int rank, struct dp_pipeline_config *config)
{
    static _Thread_local struct dp_stage stages[DP_MAX_SLOTS];

    for (int i = 0; i < dp_schedule_slot_count(config->schedule, rank); i++) {
        stages[i] = config->stages[i];
        stages[i].save_of = save_of;
    }
    config->stages = stages;
}

CASE(save_areas_have_lifetimes_and_sizes_of_their_own)
{
    static const struct dp_stage_ops ops = {
        .forward = save_forward, .backward = save_backward, .weight = save_weight};

    for (int i = 0; i < SOME; i++) {
        OWNED(dp_schedule) *s = case_schedule(some[i]);
        struct job job = job_make(s);
        job.ops = &ops;
        job.edit = set_save_of;
        expect_sequential(job);
    }
}

/* ---- a model of its own: gradients in float64, one loss, no labels ------------------------------ */

enum { DOUBLES = 40 };

static int count_forward(void *user, const struct dp_stage_call *call, const DLTensor *in,
                         DLTensor *out)
{
    memcpy(out[0].data, in[0].data, sizeof(float));
    return 0;
}

/* Each micro-batch adds its number, counted from 1, to every gradient. */
static int count_weight(void *user, const struct dp_stage_call *call)
{
    double *sums = call->grads[0]->data;
    for (int i = 0; i < DOUBLES; i++)
        sums[i] += call->mb_global + 1;
    return 0;
}

static int count_backward(void *user, const struct dp_stage_call *call, const DLTensor *gout,
                          DLTensor *gin, enum dp_backward_mode mode)
{
    gin[0].data = NULL;
    return mode == DP_BACKWARD_FULL ? count_weight(user, call) : 0;
}

static int count_loss(void *user, const struct dp_stage_call *call, const DLTensor *out,
                      const DLTensor *label, double *values, int32_t max, int32_t *count)
{
    values[0] = (double)*(const float *)out[0].data;
    *count = label ? 0 : max;
    return 0;
}

static int count_loss_backward(void *user, const struct dp_stage_call *call, const DLTensor *out,
                               const DLTensor *label, double scale, DLTensor *gout)
{
    *(float *)gout[0].data = (float)scale;
    return 0;
}

static int run_counting(struct dp_comm *comm, void *arg)
{
    static const struct dp_stage_ops ops = {
        .forward = count_forward, .backward = count_backward, .weight = count_weight};
    static const struct dp_loss_ops loss = {count_loss, count_loss_backward};
    const struct dp_schedule *s = arg;
    double sums[2][DOUBLES] = {{0}}, losses[8];
    float batch[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    int64_t shape[1] = {s->mb_per_stream}, grad_shape[1] = {DOUBLES};
    struct dp_border borders[8];
    DLTensor grads[2], input = {.data = batch, .device = {kDLCPU, 0}, .ndim = 1,
                                .dtype = {kDLFloat, 32, 1}, .shape = shape};
    struct dp_tree args = dp_tuple(1, (struct dp_tree[]){dp_tensor(&input)});
    OWNED(dp_microbatches) *inputs = NULL;
    struct dp_parameter parameters[2];
    struct dp_stage stages[2];
    struct dp_pipeline *pipe;

    for (int i = 0; i <= s->stages; i++)
        borders[i] = (struct dp_border){1, {{.dtype = {kDLFloat, 32, 1}, .ndim = 1, .shape = {1}}}};
    for (int i = 0; i < 2; i++) {
        grads[i] = (DLTensor){.data = sums[i], .device = {kDLCPU, 0}, .ndim = 1,
                              .dtype = {kDLFloat, 64, 1}, .shape = grad_shape};
        parameters[i] = (struct dp_parameter){.name = "sums", .value = &grads[i],
                                              .grad = &grads[i]};
        stages[i] = (struct dp_stage){.ops = &ops, .parameter_count = 1,
                                      .parameters = &parameters[i]};
    }
    CHECK(!dp_pipeline_new(&(struct dp_pipeline_config){.schedule = s, .comm = comm,
                                                        .stages = stages, .borders = borders,
                                                        .loss = &loss, .fixed_order = true},
                           &pipe));
    bool ends_here = s->kind == DP_SCHEDULE_DUALPIPE || dp_comm_rank(comm) == 0;
    CHECK(!dp_split(&args, NULL, &(struct dp_split_options){.count = s->mb_per_stream}, &inputs));
    struct dp_step step = {.inputs = ends_here ? inputs : NULL,
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

CASE(gradients_can_be_doubles_and_labels_absent)
{
    static const enum dp_schedule_kind kinds[] = {DP_SCHEDULE_DUALPIPE, DP_SCHEDULE_DUALPIPEV};

    for (int i = 0; i < 2; i++) {
        OWNED(dp_schedule) *s = case_schedule((struct dp_schedule_spec){
            .kind = kinds[i], .ranks = 2, .microbatches = 6, .mirror_reduce = true});
        assert_int_equal(comm_on_threads(2, deadline_ns, run_counting, s), 0);
    }
}
