/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fp16.h"
#include "pipeline/state.h"
#include "pipeline_case.h"
#include <dualpipe/memory.h>

#include <stdlib.h>
#include <string.h>

enum { STEPS = 2 };
static const int64_t deadline_ns = INT64_C(20000000000);

static int run_steps(struct dp_comm *comm, void *arg)
{
    return case_train(comm, arg, STEPS);
}

static void expect_sequential_by(struct job job, rank_fn run)
{
    case_run(&job, deadline_ns, run, STEPS - 1);
}

static void expect_sequential(struct job job)
{
    expect_sequential_by(job, run_steps);
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
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 2, .microbatches = 4, .slack = 1},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 14, .slack = 1},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 8, .microbatches = 16, .slack = 1},
    {.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 1, .microbatches = 2, .slack = 1},
    {.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 4, .microbatches = 13, .slack = 1},
    {.kind = DP_SCHEDULE_ASYNC, .ranks = 1, .microbatches = 3},
    {.kind = DP_SCHEDULE_ASYNC, .ranks = 4, .microbatches = 9},
};
enum { SHAPES = sizeof(shapes) / sizeof(*shapes) };

static void every_schedule_trains_like_a_sequential_loop(void **state)
{
    (void)state;
    for (int i = 0; i < SHAPES; i++) {
        struct dp_schedule *s = case_schedule(shapes[i]);
        expect_sequential(job_make(s));
        dp_schedule_free(s);
    }
}

/* Every kind on 1 to 8 ranks, gradients and losses to the last bit. */
static void every_number_of_ranks_trains_like_a_sequential_loop(void **state)
{
    (void)state;
    for (int kind = DP_SCHEDULE_GPIPE; kind < DP_SCHEDULE_KINDS; kind++)
        for (int ranks = 1; ranks <= 8; ranks++) {
            if (kind == DP_SCHEDULE_DUALPIPE && ranks % 2)
                continue;
            struct dp_schedule *s = case_schedule((struct dp_schedule_spec){
                .kind = kind, .ranks = ranks, .microbatches = 2 * ranks, .mirror_reduce = true});
            struct job job = job_make(s);
            job.fixed_order = true;
            expect_sequential_by(job, run_steps);
            dp_schedule_free(s);
        }
}

static const struct dp_schedule_spec some[] = {
    {.kind = DP_SCHEDULE_1F1B, .ranks = 2, .microbatches = 5},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 2, .microbatches = 6},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 10},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 12, .slack = 1},
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
        struct dp_schedule *s = case_schedule(spec);
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

static void four_blocks(struct job *job)
{
    job->model.order_blocks = 4;
}

static void thirty_two_blocks(struct job *job)
{
    job->model.order_blocks = 32;
}

static void fixed_order_sums_any_number_of_blocks_pairwise(void **state)
{
    (void)state;
    expect_some(reduce, four_blocks);
    expect_some(NULL, four_blocks);
    expect_some(reduce, thirty_two_blocks);
}

/* Backwards from the highest micro-batch: every weight part but one of a block has to wait. */
static void expect_reversed(const char *text, bool no_split)
{
    struct dp_schedule *s;

    if (dp_schedule_read(text, strlen(text), DP_FORMAT_TEXT, &s))
        fail_msg("%s", dp_last_error());
    struct job job = job_make(s);
    job.no_split = no_split;
    expect_sequential(job);
    job.model.order_blocks = 4;
    expect_sequential(job);
    dp_schedule_free(s);
}

static void weight_parts_may_come_in_any_order(void **state)
{
    (void)state;
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
    (void)slot;
    return mb % 2 < *(int *)user;
}

static int run_recomputing(struct dp_comm *comm, void *arg)
{
    first_forwards = second_forwards = 0;
    int failed = run_steps(comm, arg);
    CHECK(first_forwards == second_forwards && first_forwards > 0);
    return failed;
}

static void recomputed_forwards_change_no_number(void **state)
{
    (void)state;
    static const struct dp_stage_ops ops = {watch_forward, watch_backward, watch_weight, NULL, NULL};

    for (int i = 0; i < SOME; i++)
        for (int share = 1; share <= 2; share++) {
            struct dp_schedule_spec spec = some[i];
            spec.mirror_reduce = true;
            spec.return_outputs = i % 2;
            struct dp_schedule *s = case_schedule(spec);
            assert_int_equal(dp_schedule_add_recomputes(s, every_second, &share), 0);
            struct job job = job_make(s);
            job.ops = &ops;
            job.model.batch_dim = share - 1;
            expect_sequential_by(job, run_recomputing);
            job.ops = &model_ops;
            expect_sequential(job);
            dp_schedule_free(s);
        }
}

static void ranks_can_be_mapped(void **state)
{
    (void)state;
    static const int maps[][4] = {{3, 1, 0, 2}, {1, 0, 3, 2}, {2, 3, 1, 0}};
    for (int i = 0; i < 3; i++)
        for (int kind = DP_SCHEDULE_GPIPE; kind < DP_SCHEDULE_KINDS; kind++) {
            struct dp_schedule *s =
                case_schedule((struct dp_schedule_spec){.kind = (enum dp_schedule_kind)kind,
                                                        .ranks = 4,
                                                        .microbatches = 8,
                                                        .mirror_reduce = true,
                                                        .rank_map = maps[i]});
            expect_sequential(job_make(s));
            dp_schedule_free(s);
        }
}

/* ---- what a first stage and a loss are given -------------------------------------------------- */

static int run_with_strides(struct dp_comm *comm, void *arg)
{
    struct job_rank r;

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
    job_rank_close(&r);
    return 0;
}

static void contiguous_strides_are_none(void **state)
{
    (void)state;
    struct dp_schedule *s = case_schedule(some[0]);

    expect_sequential_by(job_make(s), run_with_strides);
    dp_schedule_free(s);
}

/* Of the first stage's callbacks: what they saw. */
struct seen {
    const void *opaque;
    int absent, strided, calls;
};

static int look(void *user, const struct dp_stage_call *call, const char *what)
{
    struct seen *seen = user;

    (void)what;
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
    struct job_rank r;

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
    job_rank_close(&r);
    return 0;
}

static void absent_opaque_and_strided_inputs_reach_the_first_stage(void **state)
{
    (void)state;
    struct dp_schedule *s = case_schedule(
        (struct dp_schedule_spec){.kind = DP_SCHEDULE_1F1B, .ranks = 2, .microbatches = 4});
    struct job job = job_make(s);
    struct job_result result;
    struct seen seen = {0};

    job_result_init(&result, &job);
    job.ops = &looking_ops;
    job.before = look;
    job.user = &seen;
    assert_int_equal(comm_on_threads(2, deadline_ns, run_odd_inputs, &job), 0);
    assert_ptr_equal(seen.opaque, &job);
    assert_int_equal(seen.calls, 8); /* forward and backward of 4 */
    assert_int_equal(seen.absent, 8);
    assert_int_equal(seen.strided, 8);
    job_result_fini(&result, &job);
    dp_schedule_free(s);
}

/* The model's stage, but it reads nothing that may be absent. */
static int look_forward(void *user, const struct dp_stage_call *call, const DLTensor *in,
                        DLTensor *out)
{
    const struct model_stage *s = user;

    (void)in;
    for (int k = 0; k < MODEL_TENSORS; k++)
        memset(out[k].data, 0, (size_t)(out[k].shape[0] * out[k].shape[1] * out[k].dtype.bits / 8));
    return s->before(s->before_user, call, "forward");
}

static int look_backward(void *user, const struct dp_stage_call *call, const DLTensor *gout,
                         DLTensor *gin, enum dp_backward_mode mode)
{
    const struct model_stage *s = user;

    (void)mode;
    for (int k = 0; k < MODEL_TENSORS; k++)
        gin[k].data = NULL;
    return call->gout == gout ? s->before(s->before_user, call, "backward") : -1;
}

static const struct dp_stage_ops looking_ops = {look_forward, look_backward, NULL, NULL, NULL};

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

static const struct dp_stage_ops gout_ops = {gout_forward, gout_backward, gout_weight, NULL, NULL};

static int run_gout(struct dp_comm *comm, void *arg)
{
    handles_open = 0;
    int failed = run_steps(comm, arg);
    CHECK(handles_open == 0);
    return failed;
}

static void output_gradients_and_handles_stay_until_the_weight_part(void **state)
{
    (void)state;
    for (int i = 0; i < SOME; i++) {
        struct dp_schedule *s = case_schedule(some[i]);
        struct job job = job_make(s);
        job.ops = &gout_ops;
        expect_sequential_by(job, run_gout);
        dp_schedule_free(s);
    }
}

static int dropped;

static void drop(void *user, void *handle)
{
    (void)user;
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

static void a_failed_callback_is_reported_and_handles_are_dropped(void **state)
{
    (void)state;
    static const struct dp_stage_ops ops = {.forward = forward_with_handle, .drop = drop};
    struct dp_schedule *s = case_schedule((struct dp_schedule_spec){
        .kind = DP_SCHEDULE_GPIPE, .ranks = 1, .microbatches = 4, .forward_only = true});
    struct job job = job_make(s);
    struct job_result result;
    struct job_rank r;

    job_result_init(&result, &job);
    job.ops = &ops;
    assert_int_equal(job_rank_open(&r, &job, NULL), 0);
    dropped = 0;
    assert_int_equal(job_rank_step(&r), DP_ECALLBACK);
    assert_int_equal(r.step.callback_error, -73);
    assert_non_null(strstr(dp_last_error(), "failed with -73"));
    assert_non_null(strstr(dp_last_error(), "no luck today"));
    assert_int_equal(dropped, 3);
    job_rank_close(&r);
    job_result_fini(&result, &job);
    dp_schedule_free(s);
}

/* ---- save areas ------------------------------------------------------------------------------- */

static void save_of(void *user, int32_t mb_global, struct dp_save_bytes *bytes)
{
    (void)user;
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

    (void)user;
    (void)rank;
    for (int i = 0; i < dp_schedule_slot_count(config->schedule, rank); i++) {
        stages[i] = config->stages[i];
        stages[i].save_of = save_of;
    }
    config->stages = stages;
}

static void save_areas_have_lifetimes_and_sizes_of_their_own(void **state)
{
    (void)state;
    static const struct dp_stage_ops ops = {save_forward, save_backward, save_weight, NULL, NULL};

    for (int i = 0; i < SOME; i++) {
        struct dp_schedule *s = case_schedule(some[i]);
        struct job job = job_make(s);
        job.ops = &ops;
        job.edit = set_save_of;
        expect_sequential(job);
        dp_schedule_free(s);
    }
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
    static const struct dp_stage_ops ops = {count_forward, count_backward, count_weight, NULL,
                                            NULL};
    static const struct dp_loss_ops loss = {count_loss, count_loss_backward};
    const struct dp_schedule *s = arg;
    double sums[2][DOUBLES] = {{0}}, losses[8];
    float batch[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    int64_t shape[1] = {s->mb_per_stream}, grad_shape[1] = {DOUBLES};
    struct dp_border borders[8];
    DLTensor grads[2], input = {.data = batch, .device = {kDLCPU, 0}, .ndim = 1,
                                .dtype = {kDLFloat, 32, 1}, .shape = shape};
    struct dp_tree args = dp_tuple(1, (struct dp_tree[]){dp_tensor(&input)});
    struct dp_microbatches *inputs;
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
    dp_microbatches_free(inputs);
    dp_pipeline_free(pipe);
    return 0;
}

static void gradients_can_be_doubles_and_labels_absent(void **state)
{
    (void)state;
    static const enum dp_schedule_kind kinds[] = {DP_SCHEDULE_DUALPIPE, DP_SCHEDULE_DUALPIPEV};

    for (int i = 0; i < 2; i++) {
        struct dp_schedule *s = case_schedule((struct dp_schedule_spec){
            .kind = kinds[i], .ranks = 2, .microbatches = 6, .mirror_reduce = true});
        assert_int_equal(comm_on_threads(2, deadline_ns, run_counting, s), 0);
        dp_schedule_free(s);
    }
}

/* ---- parameters ------------------------------------------------------------------------------- */

static int run_from_other_values(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    struct job_rank r;

    CHECK(!job_rank_open(&r, job, comm));
    for (int i = 0; i < dp_schedule_slot_count(job->schedule, r.rank); i++)
        CHECK(r.stages[i].w[0] < 1); /* what spoil_second_copy wrote is overwritten */
    for (int i = 0; i < STEPS; i++)
        CHECK(!job_rank_step(&r));
    job_rank_close(&r);
    return 0;
}

static void spoil_second_copy(void *user, int rank, struct dp_pipeline_config *config)
{
    (void)user;
    for (int i = 0; i < dp_schedule_slot_count(config->schedule, rank); i++)
        if (dp_schedule_slot(config->schedule, rank, i)->stream)
            ((struct model_stage *)config->stages[i].user)->w[0] = 1e6f;
}

static void copies_of_a_stage_start_equal(void **state)
{
    (void)state;
    struct dp_schedule *s = case_schedule((struct dp_schedule_spec){
        .kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 8, .mirror_reduce = true});
    struct job job = job_make(s);

    job.edit = spoil_second_copy;
    expect_sequential_by(job, run_from_other_values);
    dp_schedule_free(s);
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

static void gradients_of_two_bytes_are_summed_in_float32(void **state)
{
    (void)state;
    static const uint8_t codes[] = {kDLBfloat, kDLFloat};

    for (int i = 0; i < SOME; i++)
        for (int c = 0; c < 2; c++) {
            struct dp_schedule_spec spec = some[i];
            spec.mirror_reduce = true;
            struct dp_schedule *s = case_schedule(spec);
            struct job job = job_make(s);
            struct job_result result;
            job_result_init(&result, &job);
            job.edit = make_narrow;
            job.user = (void *)(uintptr_t)&codes[c];
            assert_int_equal(comm_on_threads(s->ranks, deadline_ns, run_narrow, &job), 0);
            job_result_fini(&result, &job);
            dp_schedule_free(s);
        }
}

static void one_rank_needs_no_comm(void **state)
{
    (void)state;
    struct dp_schedule *s = case_schedule(
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
        struct dp_schedule *s = case_schedule(spec);
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
    struct dp_schedule *training = case_schedule(spec);
    spec.forward_only = spec.return_outputs = true;
    struct dp_schedule *evaluation = case_schedule(spec);
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
    for (int64_t i = 0; r.step.labels && i < r.label.shapes[0][0] * r.label.shapes[0][1]; i++)
        ((float *)r.label.data[0])[i] = ((float *)r.label.data[0])[i / 2];
    CHECK(!job_rank_step(&r));
    job_rank_close(&r);
    return 0;
}

static void labels_of_other_micro_batches_change_the_loss(void **state)
{
    (void)state;
    struct dp_schedule *s = case_schedule(
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
    if (r.step.labels)
        r.step.loss_scales = scales;
    CHECK(!job_rank_step(&r));
    for (int i = 0; i < dp_schedule_slot_count(job->schedule, r.rank); i++)
        for (size_t k = 0; k < model_grad_count(&job->model, r.stages[i].stage); k++)
            r.stages[i].gw[k] *= 4;
    for (int i = 0; i < dp_schedule_slot_count(job->schedule, r.rank); i++)
        memcpy(job->result->grads[job->schedule->first_slot[r.rank] + (size_t)i], r.stages[i].gw,
               model_grad_count(&job->model, r.stages[i].stage) * sizeof(float));
    job_rank_close(&r);
    return 0;
}

static void each_micro_batch_can_have_its_own_scale(void **state)
{
    (void)state;
    struct dp_schedule *s = case_schedule(
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
    CHECK((r.pipe->memory_kind == DP_MEMORY_SHARED) == (dp_comm_shared_bytes(comm) > 0));
    CHECK(!!dp_comm_shared_bytes(comm) == !strcmp(dp_comm_name(comm), "shm") ||
          !strcmp(dp_comm_name(comm), "auto"));
    for (int i = 0; i < STEPS; i++)
        CHECK(!job_rank_step(&r));
    job_rank_close(&r);
    return 0;
}

static void long_messages_lie_in_memory_that_ranks_share(void **state)
{
    (void)state;
    struct dp_schedule *s = case_schedule(
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

static void memory_that_cannot_be_shared_does_as_well(void **state)
{
    (void)state;
    struct dp_schedule *s = case_schedule(
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
        cmocka_unit_test(every_number_of_ranks_trains_like_a_sequential_loop),
        cmocka_unit_test(training_can_return_outputs),
        cmocka_unit_test(forward_only_gives_losses_and_outputs),
        cmocka_unit_test(a_batch_can_be_cut_along_another_dimension),
        cmocka_unit_test(numbers_do_not_depend_on_hook_or_split),
        cmocka_unit_test(without_fixed_order_one_stream_adds_in_the_order_of_micro_batches),
        cmocka_unit_test(mirrors_sum_their_gradients),
        cmocka_unit_test(fixed_order_sums_any_number_of_blocks_pairwise),
        cmocka_unit_test(weight_parts_may_come_in_any_order),
        cmocka_unit_test(recomputed_forwards_change_no_number),
        cmocka_unit_test(ranks_can_be_mapped),
        cmocka_unit_test(contiguous_strides_are_none),
        cmocka_unit_test(absent_opaque_and_strided_inputs_reach_the_first_stage),
        cmocka_unit_test(output_gradients_and_handles_stay_until_the_weight_part),
        cmocka_unit_test(a_failed_callback_is_reported_and_handles_are_dropped),
        cmocka_unit_test(save_areas_have_lifetimes_and_sizes_of_their_own),
        cmocka_unit_test(gradients_can_be_doubles_and_labels_absent),
        cmocka_unit_test(copies_of_a_stage_start_equal),
        cmocka_unit_test(gradients_of_two_bytes_are_summed_in_float32),
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
