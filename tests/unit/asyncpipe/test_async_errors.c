/* SPDX-License-Identifier: Apache-2.0
 *
 * test_async_errors.c - AsyncPipe's error table, a case for each row: A1 to A16 (partition.h,
 * schedule.h, pipeline.h). What is plain data is refused alike on every rank that asks; where one
 * rank is at fault the others learn its sentence. A3 and A9 are legal here, which is tried too.
 */
#include "unit/pipeline/pipeline_wrong.h"

#include <dualpipe/partition.h>

static const struct dp_schedule_spec async = {
    .kind = DP_SCHEDULE_ASYNC, .ranks = RANKS, .microbatches = 4};

static struct dp_partition *cut(struct dp_partition_spec spec)
{
    struct dp_partition *p = NULL;

    if (dp_partition_new(&spec, &p))
        fail_msg("%s", dp_last_error());
    return p;
}

static void expect_bad_partition(struct dp_partition_spec spec, const char *sentence)
{
    struct dp_partition *p;

    expect_error(dp_partition_new(&spec, &p), DP_EINVAL, sentence);
}

/* ---- A1 to A6: what is plain data ------------------------------------------------------------ */

CASE(a1_fewer_micro_batches_than_one)
{
    struct dp_schedule_spec spec = async;
    struct dp_schedule *s;
    int64_t sizes[1];
    int32_t made;

    spec.microbatches = 0;
    expect_error(dp_schedule_new(&spec, &s), DP_EINVAL, "microbatches: 0, expected 1 to");
    spec.microbatches = -1;
    expect_error(dp_schedule_new(&spec, &s), DP_EINVAL, "microbatches: -1, expected 1 to");
    assert_int_equal(dp_cut_sizes(DP_CUT_CHUNK, 4, 0, sizes, &made), DP_EINVAL);
}

CASE(a2_a_mode_of_recomputation_that_is_none)
{
    enum dp_recompute mode;

    expect_error(dp_recompute_parse("sometimes", &mode), DP_EINVAL, "sometimes");
}

CASE(a3_the_same_layer_twice_is_legal)
{
    static const int32_t layers[] = {0, 1, 0}, balance[] = {1, 1};

    OWNED(dp_partition) *p = cut((struct dp_partition_spec){
        .layers = layers, .layer_count = 3, .balance = balance, .stages = 2});
    assert_int_equal(p->invocation_count, 3);
}

CASE(a4_a_balance_of_other_layers_than_there_are)
{
    static const int32_t layers[] = {0, 1, 0}, balance[] = {2, 1};

    expect_bad_partition(
        (struct dp_partition_spec){
            .layers = layers, .layer_count = 3, .balance = balance, .stages = 2},
        "expected the 2 that are in the list (A4)");
}

CASE(a5_a_stage_without_layers)
{
    static const int32_t balance[] = {2, 0}, less[] = {3, -1};

    expect_bad_partition(
        (struct dp_partition_spec){.layer_count = 2, .balance = balance, .stages = 2},
        "balance[1]: 0, expected at least 1 (A5)");
    expect_bad_partition((struct dp_partition_spec){.layer_count = 2, .balance = less, .stages = 2},
                         "balance[1]: -1, expected at least 1 (A5)");
}

CASE(a6_fewer_ranks_than_stages)
{
    static const int32_t balance[] = {1, 1};
    struct dp_partition_spec of = {.layer_count = 2, .balance = balance, .stages = 2, .ranks = 1};
    struct dp_schedule_spec spec = async;
    struct dp_schedule *s;

    expect_bad_partition(of, "(A6)");
    of.ranks = 2;
    OWNED(dp_partition) *p = cut(of);
    spec.partition = p;
    spec.ranks = 1;
    expect_error(dp_schedule_new(&spec, &s), DP_EINVAL, "(A6)");
}

/* ---- A7: ranks beyond the stages ------------------------------------------------------------- */

enum { MORE_RANKS = 4 };

static void by_messages(void *user, int rank, struct dp_pipeline_config *config)
{
    config->execution = *(enum dp_execution *)user;
}

/* They hold no stage and are given no input, and take part in whatever is collective. */
static int run_some_unused(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    ENDED_BY(job_rank_close) struct job_rank r = {0};
    int ranks[MORE_RANKS];

    CHECK(!job_rank_open(&r, job, comm));
    CHECK(dp_schedule_slot_count(job->schedule, r.rank) == (r.rank < RANKS ? 1 : 0));
    CHECK(r.rank < RANKS || (!r.step.inputs && !r.step.labels && !r.step.losses));
    for (int step = 0; step < 2; step++) {
        CHECK(!job_rank_step(&r));
        CHECK(!dp_comm_allgather(comm, &r.rank, ranks, sizeof(r.rank)));
        for (int i = 0; i < MORE_RANKS; i++)
            CHECK(ranks[i] == i);
    }
    return 0;
}

CASE(a7_ranks_beyond_the_stages_are_unused_and_take_part)
{
    static const int32_t balance[] = {1, 1};

    struct dp_partition *p =
        cut((struct dp_partition_spec){.layer_count = 2, .balance = balance, .stages = RANKS});
    struct dp_schedule_spec spec = async;
    spec.ranks = MORE_RANKS;
    spec.partition = p;
    OWNED(dp_schedule) *s = case_schedule(spec);
    for (enum dp_execution how = DP_EXECUTE_LIST; how < DP_EXECUTIONS; how++) {
        struct job job = job_make(s);
        job_begin(&job);
        job.edit = by_messages;
        job.user = &how;
        assert_int_equal(comm_on_threads(MORE_RANKS, WRONG_DEADLINE_NS, run_some_unused, &job), 0);
        assert_true(job_result_is_sequential(&job, 1));
        job_end(&job);
    }
    dp_partition_free(p);
}

/* ---- A8 to A13: pipelines and steps ---------------------------------------------------------- */

CASE(a8_an_entry_that_is_no_layer)
{
    static const int32_t layers[] = {0, -7}, balance[] = {1, 1};

    expect_bad_partition(
        (struct dp_partition_spec){
            .layers = layers, .layer_count = 2, .balance = balance, .stages = 2},
        "layers[1]: -7, expected a layer, at least 0 (A8)");
}

static void no_callbacks(int rank, struct dp_pipeline_config *config)
{
    static _Thread_local struct dp_stage stage;

    stage = config->stages[0];
    stage.ops = NULL;
    config->stages = &stage;
}

CASE(a8_a_stage_that_cannot_be_called)
{
    static const struct wrong one = {"A8 on one rank", 1,          no_callbacks, NULL, DP_EINVAL,
                                     "no callbacks"};
    static const struct wrong all = {"A8 on all ranks", EVERYWHERE, no_callbacks, NULL, DP_EINVAL,
                                     "no callbacks",    0};

    expect_wrong(&one, async);
    expect_wrong(&all, async);
}

/* A list of its own stages is all that a rank needs: the others' need not exist there. */
static void other_stages_are_not_there(int rank, struct dp_pipeline_config *config)
{
    static _Thread_local struct dp_stage own;

    own = config->stages[0];
    config->stages = &own;
}

CASE(a9_a_stage_is_made_only_where_it_lives)
{
    static const struct wrong nothing = {"A9", EVERYWHERE, other_stages_are_not_there, NULL, 0,
                                         NULL, 0};

    expect_wrong(&nothing, async);
}

CASE(a10_a_transport_that_is_none)
{
    struct dp_comm *comm;

    expect_error(
        dp_comm_open(&(struct dp_comm_config){.rank = 0, .size = 2, .transport = "rpc"}, &comm),
        DP_EINVAL, "transport 'rpc': expected auto, shm, tcp or mpi");
}

static void input_of_a_spec(struct job_rank *r)
{
    static _Thread_local struct dp_tree leaf;

    leaf = dp_replicate();
    ((struct dp_tree *)&r->in_mbs->args[1])->items = &leaf;
}

static void input_missing(struct job_rank *r)
{
    ((struct dp_tree *)&r->in_mbs->args[1])->count--;
}

CASE(a11_an_input_that_is_no_tensor)
{
    static const struct wrong wrong[] = {
        {"A11 a spec", 0, NULL, input_of_a_spec, DP_EINVAL, "a leaf of a spec, expected values"},
        {"A11 a tensor less", 0, NULL, input_missing, DP_EINVAL, "has 2 tensors, expected 3"},
    };

    expect_all_wrong(wrong, COUNT(wrong), async);
}

/* What a stage puts out instead of the tensor that was asked for. */
static int forward_of_other_dtype(void *user, const struct dp_stage_call *call, const DLTensor *in,
                                  DLTensor *out)
{
    int err = model_ops.forward(user, call, in, out);

    out[0].dtype = (DLDataType){kDLOpaqueHandle, 64, 1};
    return err;
}

static int forward_of_nothing(void *user, const struct dp_stage_call *call, const DLTensor *in,
                              DLTensor *out)
{
    int err = model_ops.forward(user, call, in, out);

    out[0].data = NULL;
    return err;
}

static void forward_instead(struct dp_pipeline_config *config,
                            int (*forward)(void *, const struct dp_stage_call *, const DLTensor *,
                                           DLTensor *))
{
    static _Thread_local struct dp_stage_ops ops;
    static _Thread_local struct dp_stage stage;

    stage = config->stages[0];
    ops = *stage.ops;
    ops.forward = forward;
    stage.ops = &ops;
    config->stages = &stage;
}

static void puts_out_a_handle(int rank, struct dp_pipeline_config *config)
{
    if (rank == 0)
        forward_instead(config, forward_of_other_dtype);
}

static void puts_out_nothing(int rank, struct dp_pipeline_config *config)
{
    if (rank == 0)
        forward_instead(config, forward_of_nothing);
}

static void as_it_is(struct job_rank *r)
{
}

/* A tensor of another shape or type than declared is row S7, DP_EMISMATCH. */
CASE(a12_an_output_that_is_no_tensor)
{
    static const struct wrong wrong[] = {
        {"A12 a handle", 0, puts_out_a_handle, as_it_is, DP_EINVAL,
         "the stage left tensor 0 of its output as no tensor (handle64), expected float32"},
        {"A12 nothing", 0, puts_out_nothing, as_it_is, DP_EINVAL,
         "the stage left tensor 0 of its output as no tensor (no data), expected float32"},
    };

    expect_all_wrong(wrong, COUNT(wrong), async);
}

static void no_comm(int rank, struct dp_pipeline_config *config)
{
    config->comm = NULL;
}

CASE(a13_no_group)
{
    static const struct wrong wrong = {
        "A13", EVERYWHERE, no_comm, NULL, DP_ESTATE, "comm: NULL, expected one of 2 ranks", 0};

    expect_wrong(&wrong, async);
}

/* ---- A14 to A16 ------------------------------------------------------------------------------ */

static int run_backward_alone(struct dp_comm *comm, void *arg)
{
    ENDED_BY(job_rank_close) struct job_rank r = {0};

    CHECK(!job_rank_open(&r, arg, comm));
    CHECK(dp_pipeline_backward(r.pipe, &r.step) == DP_ESTATE);
    CHECK(strstr(dp_last_error(), "expected the step of dp_pipeline_forward"));
    CHECK(!job_rank_step(&r)); /* nothing was sent */
    CHECK(dp_pipeline_backward(r.pipe, &r.step) == DP_ESTATE);
    return 0;
}

CASE(a14_a_backward_of_no_forward)
{
    OWNED(dp_schedule) *s = case_schedule(async);
    struct job job = job_make(s);

    case_run_apart(&job, WRONG_DEADLINE_NS, run_backward_alone);
}

CASE(a15_a_layer_that_a_stage_has_not)
{
    static const int32_t balance[] = {2, 1};
    int32_t at;

    struct dp_partition *p =
        cut((struct dp_partition_spec){.layer_count = 3, .balance = balance, .stages = 2});
    expect_error(dp_partition_layer(p, 0, 2, &at), DP_EINVAL, "expected -2 to 1 (A15)");
    expect_error(dp_partition_layer(p, 1, -2, &at), DP_EINVAL, "expected -1 to 0 (A15)");
    dp_partition_free(p);
}

/* Shapes and types are declared once, so a message has a header of one size however many tensors of
 * however many dimensions it brings: the most that there can be. */
static int pass_on(void *user, const struct dp_stage_call *call, const DLTensor *in, DLTensor *out)
{
    for (int k = 0; k < DP_MAX_TENSORS; k++)
        memcpy(out[k].data, in[k].data, 3 * sizeof(float));
    return 0;
}

struct widest {
    float in[DP_MAX_TENSORS][3], out[DP_MAX_TENSORS][3];
    int64_t shape[DP_MAX_DIMS];
    DLTensor tensors[2][DP_MAX_TENSORS];
    struct dp_tree leaves[2][DP_MAX_TENSORS], args[2];
    struct dp_microbatches mbs[2];
};

static void widest_init(struct widest *w)
{
    for (int d = 0; d < DP_MAX_DIMS; d++)
        w->shape[d] = d + 1 == DP_MAX_DIMS ? 3 : 1;
    for (int k = 0; k < DP_MAX_TENSORS; k++) {
        for (int i = 0; i < 3; i++)
            w->in[k][i] = (float)(10 * k + i);
        w->tensors[0][k] =
            (DLTensor){w->in[k], {kDLCPU, 0}, DP_MAX_DIMS, {kDLFloat, 32, 1}, w->shape, NULL, 0};
        w->tensors[1][k] = w->tensors[0][k];
        w->tensors[1][k].data = w->out[k];
        for (int i = 0; i < 2; i++)
            w->leaves[i][k] = dp_tensor(&w->tensors[i][k]);
    }
    for (int i = 0; i < 2; i++) {
        w->args[i] = dp_tuple(DP_MAX_TENSORS, w->leaves[i]);
        w->mbs[i] = (struct dp_microbatches){.count = 1, .args = &w->args[i]};
    }
}

static int run_widest(struct dp_comm *comm, void *arg)
{
    static const struct dp_stage_ops ops = {.forward = pass_on};
    const struct dp_schedule *s = arg;
    const struct dp_stage stage = {.ops = &ops};
    struct dp_border borders[RANKS + 1] = {{.count = DP_MAX_TENSORS}};
    struct widest *w = calloc(1, sizeof(*w));
    struct dp_pipeline *pipe;
    struct dp_step step = {0};
    const bool first = dp_comm_rank(comm) == 0;

    CHECK(w);
    widest_init(w);
    for (int k = 0; k < DP_MAX_TENSORS; k++) {
        borders[0].tensors[k] =
            (struct dp_tensor_spec){.dtype = {kDLFloat, 32, 1}, .ndim = DP_MAX_DIMS};
        memcpy(borders[0].tensors[k].shape, w->shape, sizeof(w->shape));
    }
    borders[1] = borders[2] = borders[0];
    CHECK(!dp_pipeline_new(&(struct dp_pipeline_config){.schedule = s, .comm = comm,
                                                        .stages = &stage, .borders = borders,
                                                        .execution = DP_EXECUTE_MESSAGES},
                           &pipe));
    step.inputs = first ? &w->mbs[0] : NULL;
    step.outputs = first ? NULL : &w->mbs[1];
    CHECK(!dp_pipeline_step(pipe, &step));
    CHECK(first || !memcmp(w->in, w->out, sizeof(w->in)));
    dp_pipeline_free(pipe);
    free(w);
    return 0;
}

CASE(a16_a_header_has_one_size)
{
    struct dp_schedule_spec spec = async;

    spec.microbatches = 1;
    spec.forward_only = spec.return_outputs = true;
    OWNED(dp_schedule) *s = case_schedule(spec);
    assert_int_equal(comm_on_threads(RANKS, WRONG_DEADLINE_NS, run_widest, s), 0);
}

RUN_QUIET_CASES(NULL, NULL)
