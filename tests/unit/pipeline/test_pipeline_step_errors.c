/* SPDX-License-Identifier: Apache-2.0
 *
 * test_pipeline_step_errors.c - every step that cannot be taken. Rows S1 and on of the behaviour
 * that the library promises.
 */
#include "pipeline_wrong.h"

/* ---- arguments of a step --------------------------------------------------------------------- */

/* A micro-batch's tensor, to be spoiled. */
static DLTensor *tensor_of(struct dp_microbatches *mbs, int mb, int k)
{
    return (DLTensor *)mbs->args[mb].items[k].tensor;
}

WRONG_STEP(no_inputs, r->step.inputs = NULL)
WRONG_STEP(input_missing, ((struct dp_tree *)&r->in_mbs->args[1])->count--)

static void input_beyond(struct job_rank *r)
{
    struct dp_tree *tree = (struct dp_tree *)&r->in_mbs->args[1];
    static _Thread_local struct dp_tree leaves[MODEL_TENSORS + 1];

    memcpy(leaves, tree->items, MODEL_TENSORS * sizeof(*leaves));
    leaves[MODEL_TENSORS] = leaves[0];
    tree->items = leaves;
    tree->count++;
}

static void input_of_a_spec(struct job_rank *r)
{
    static _Thread_local struct dp_tree leaf;

    leaf = dp_replicate();
    ((struct dp_tree *)&r->in_mbs->args[1])->items = &leaf;
}

WRONG_STEP(fewer_micro_batches, r->in_mbs->count--)
WRONG_STEP(input_of_other_height, tensor_of(r->in_mbs, 1, 0)->shape[0]++)
WRONG_STEP(input_of_other_width, tensor_of(r->in_mbs, 1, 0)->shape[1]++)
WRONG_STEP(input_of_other_dtype, tensor_of(r->in_mbs, 0, 1)->dtype.bits = 64)
WRONG_STEP(input_elsewhere, tensor_of(r->in_mbs, 0, 0)->device = (DLDevice){kDLCUDA, 0})
WRONG_STEP(input_without_data, tensor_of(r->in_mbs, 0, 0)->data = NULL)
WRONG_STEP(input_of_pairs, tensor_of(r->in_mbs, 0, 1)->dtype = (DLDataType){kDLBfloat, 16, 2})
WRONG_STEP(input_of_bits, tensor_of(r->in_mbs, 0, 1)->dtype = (DLDataType){kDLUInt, 1, 1})
WRONG_STEP(input_complex, tensor_of(r->in_mbs, 0, 1)->dtype = (DLDataType){kDLComplex, 64, 1})
WRONG_STEP(input_opaque, tensor_of(r->in_mbs, 0, 1)->dtype = (DLDataType){kDLOpaqueHandle, 32, 1})
WRONG_STEP(no_labels, r->step.labels = NULL)
WRONG_STEP(label_of_other_height, tensor_of(r->label_mbs, 1, 0)->shape[0]++)
WRONG_STEP(output_of_other_width, tensor_of(r->out_mbs, 1, 0)->shape[1]++)

static const struct wrong wrong_arguments[] = {
    {"S5 no inputs", 0, NULL, no_inputs, DP_EINVAL, "inputs: NULL, expected 2 micro-batches of 3"},
    {"S5 no input", 0, NULL, input_missing, DP_EINVAL,
     "inputs: micro-batch 1 has 2 tensors, expected 3"},
    {"S5 an input more", 0, NULL, input_beyond, DP_EINVAL,
     "inputs: micro-batch 1 has 4 tensors, expected 3"},
    {"S5 a spec", 0, NULL, input_of_a_spec, DP_EINVAL, "inputs: a leaf of a spec"},
    {"S6 micro-batches", 1, NULL, fewer_micro_batches, DP_EINVAL,
     "inputs: 1 micro-batches, expected the stream's 2"},
    {"S6 extent", 1, NULL, input_of_other_height, DP_EMISMATCH,
     "input 0 of micro-batch 1: shape [4, 4], expected [3, 4]"},
    {"S7 width", 1, NULL, input_of_other_width, DP_EMISMATCH, "shape [3, 5], expected [3, 4]"},
    {"S7 dtype", 1, NULL, input_of_other_dtype, DP_EMISMATCH, "dtype int64, expected int32"},
    {"S7 dtype", 1, NULL, input_of_pairs, DP_EMISMATCH, "dtype bfloat16x2, expected"},
    {"S7 dtype", 1, NULL, input_of_bits, DP_EMISMATCH, "dtype uint1, expected"},
    {"S7 dtype", 1, NULL, input_complex, DP_EMISMATCH, "dtype complex64, expected"},
    {"S7 dtype", 1, NULL, input_opaque, DP_EMISMATCH, "dtype handle32, expected"},
    {"device", 1, NULL, input_elsewhere, DP_EINVAL, "on device 2:0"},
    {"data", 1, NULL, input_without_data, DP_EINVAL, "no data"},
    {"S5 no labels", 0, NULL, no_labels, DP_EINVAL, "labels: NULL"},
    {"S6 label", 0, NULL, label_of_other_height, DP_EMISMATCH,
     "label 0 of micro-batch 1: shape [4, 4]"},
};

static const struct wrong wrong_outputs[] = {
    {"S7 outputs", 0, NULL, output_of_other_width, DP_EMISMATCH,
     "output 0 of micro-batch 1: shape"},
};

/* Rank 0 of 1F1B holds the first stage, rank 1 the last. */
WRONG_STEP(inputs_unwanted, r->step.inputs = r->label_mbs)
WRONG_STEP(labels_unwanted, r->step.labels = r->in_mbs)
WRONG_STEP(outputs_unwanted, r->step.outputs = r->in_mbs)
WRONG_STEP(losses_unwanted, r->step.losses = r->job->result->losses)
WRONG_STEP(scales_unwanted, r->step.loss_scales = r->job->result->losses)

static const struct wrong unwanted_arguments[] = {
    {"inputs", 1, NULL, inputs_unwanted, DP_EINVAL, "it holds no first stage"},
    {"labels", 0, NULL, labels_unwanted, DP_EINVAL, "labels: given"},
    {"outputs", 0, NULL, outputs_unwanted, DP_EINVAL, "it holds no last stage"},
    {"losses", 0, NULL, losses_unwanted, DP_EINVAL, "losses: given"},
    {"loss_scales", 0, NULL, scales_unwanted, DP_EINVAL, "loss_scales: given"},
};

CASE(a_bad_argument_of_a_step_is_named_on_all_ranks)
{
    expect_all_wrong(wrong_arguments, COUNT(wrong_arguments), training);
    expect_all_wrong(wrong_outputs, COUNT(wrong_outputs), inference);
    expect_all_wrong(unwanted_arguments, COUNT(unwanted_arguments), one_stream);
}

WRONG_STEP(other_step, dp_pipeline_seek(r->pipe, 5))
WRONG_STEP(accumulates, r->step.accumulate = true)

static void gives_extents(struct job_rank *r)
{
    static const int64_t none[4][DP_MAX_EXTENTS];

    r->step.extents = none;
}

static void have_an_extent(int rank, struct dp_pipeline_config *config)
{
    config->max_extents[1] = 3;
}

static void give_other_extents(struct job_rank *r)
{
    static const int64_t extents[2][4][DP_MAX_EXTENTS] = {{[2][1] = 3}, {[2][1] = 2}};

    r->step.extents = extents[r->rank];
}

static struct dp_schedule *another;

static void have_another_schedule(int rank, struct dp_pipeline_config *config)
{
    config->also = (const struct dp_schedule *const *)&another;
    config->also_count = 1;
}

static void rank_1_takes_it(struct job_rank *r)
{
    if (r->rank == 1)
        r->step.schedule = another;
}

/* Every rank says the sentence. */
static const struct wrong different_steps[] = {
    {"S8 step", 1, NULL, other_step, DP_EMISMATCH, "rank 1 has 5, rank 0 has 0", DP_EMISMATCH},
    {"accumulate", 1, NULL, accumulates, DP_EMISMATCH,
     "accumulate of the step: rank 1 has 1, rank 0 has 0", DP_EMISMATCH},
    {"extents", 1, NULL, gives_extents, DP_EMISMATCH,
     "extents of the step: rank 1 has some, rank 0 has NULL", DP_EMISMATCH},
    {"values of extents", EVERYWHERE, have_an_extent, give_other_extents, DP_EMISMATCH,
     "extents[2][1] of the step: rank 1 has 2, rank 0 has 3", DP_EMISMATCH},
    {"schedule", EVERYWHERE, have_another_schedule, rank_1_takes_it, DP_EMISMATCH,
     "schedule of the step: rank 1 has number 1, rank 0 has 0", DP_EMISMATCH},
};

CASE(ranks_that_do_different_steps_notice)
{
    assert_int_equal(dp_schedule_new(&training, &another), 0);
    expect_all_wrong(different_steps, COUNT(different_steps), training);
    dp_schedule_free(another);
}

/* ---- steps that do not belong together --------------------------------------------------- */

/* Rank 1 takes the two pipelines in another order. */
static int run_crosswise(struct dp_comm *comm, void *arg)
{
    struct job *jobs = arg;
    struct job_rank r[2];

    for (int i = 0; i < 2; i++)
        CHECK(!job_rank_open(&r[i], &jobs[i], comm));
    CHECK(job_rank_step(&r[dp_comm_rank(comm)]) == DP_EMISMATCH);
    CHECK_SAYS("rank 1 does a step of another pipeline than rank 0");
    for (int i = 0; i < 2; i++) /* the comm is as good as before */
        CHECK(!job_rank_step(&r[i]));
    for (int i = 0; i < 2; i++)
        job_rank_close(&r[i]);
    return 0;
}

CASE(ranks_that_take_pipelines_in_another_order_notice)
{
    OWNED(dp_schedule) *s = case_schedule(training);
    struct job jobs[2] = {job_make(s), job_make(s)};
    jobs[1].model.seed++;
    job_begin(&jobs[0]);
    jobs[1].result = jobs[0].result;
    assert_int_equal(comm_on_threads(RANKS, WRONG_DEADLINE_NS, run_crosswise, jobs), 0);
    job_end(&jobs[0]);
}

/* Without the agreement before each step, the first message notices. */
static void unchecked(int rank, struct dp_pipeline_config *config)
{
    config->unchecked = true;
}

static int run_unchecked(struct dp_comm *comm, void *arg)
{
    ENDED_BY(job_rank_close) struct job_rank r = {0};

    CHECK(!job_rank_open(&r, arg, comm));
    CHECK(!job_rank_step(&r));
    if (dp_comm_rank(comm) == 1)
        dp_pipeline_seek(r.pipe, 7);
    int err = job_rank_step(&r);
    CHECK(err == DP_EMISMATCH || err == DP_EABORTED);
    CHECK(!dp_comm_reset(comm));
    dp_pipeline_seek(r.pipe, 7);
    CHECK(!job_rank_step(&r));
    return 0;
}

CASE(unchecked_steps_notice_a_message_of_another_step)
{
    const struct wrong wrong = {.rank = EVERYWHERE, .config = unchecked};
    OWNED(dp_schedule) *s = case_schedule(training);
    ENDED_BY(job_end) struct job job = job_make(s);
    job_begin(&job);
    job.edit = edit_config;
    job.user = (void *)(uintptr_t)&wrong;
    assert_int_equal(comm_on_threads(RANKS, WRONG_DEADLINE_NS, run_unchecked, &job), 0);
    assert_true(job_result_is_sequential(&job, 7));
}

RUN_QUIET_CASES(NULL, NULL)
