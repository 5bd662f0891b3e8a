/* SPDX-License-Identifier: Apache-2.0
 *
 * test_batch_step.c - steps of whole batches: what microbatch.h does to arguments and results, done
 * inside a step, under every schedule and on every communicator.
 *
 *      border s:  x float32 [rows, 2], extent 1      stage s:  y = w x,  w = s + 2
 *      loss:      sum of (y - label)^2 / 2, and the number of rows
 */
#include "pipeline_case.h"


#include <dualpipe/batch_step.h>
#include <dualpipe/partition.h>

#define DEADLINE_NS INT64_C(20000000000)

enum { COLUMNS = 2, MAX_STAGES = 8, MAX_ROWS = 64 };

/* ---- the model -------------------------------------------------------------------------------- */

struct times {
    float w, gw;
    int64_t one;
    DLTensor value, grad;
    struct dp_parameter parameter;
    int64_t kwargs_sample[MAX_ROWS], context_sample[MAX_ROWS]; /* by mb_global: see sample_of */
};

static int64_t count_of(const DLTensor *t)
{
    return t->shape[0] * COLUMNS;
}

/* Of a mask of attention in a dict: its first sample, checked by its tables; -1: there is none. */
static int64_t sample_of(const struct dp_tree *dict)
{
    if (!dict || !dict->count || dict->items[0].kind != DP_TREE_BLOCK_MASK)
        return -1;
    const struct dp_block_mask *m = dict->items[0].block_mask;
    const int32_t *table = m->kv_num_blocks->data;
    const bool right = m->kv_num_blocks->shape[0] == 3 && *table == m->first_sample &&
                       dp_block_mask_looks_at(m, 1, 0, 0, m->first_sample + 1) &&
                       !dp_block_mask_looks_at(m, 1, 0, 0, m->first_sample);
    return right ? m->first_sample : -2;
}

static int forward(void *user, const struct dp_stage_call *call, const DLTensor *in, DLTensor *out)
{
    struct times *t = user;

    for (int64_t i = 0; i < count_of(in); i++)
        ((float *)out->data)[i] = t->w * ((const float *)in->data)[i];
    t->kwargs_sample[call->mb_global] = sample_of(call->kwargs);
    t->context_sample[call->mb_global] = sample_of(call->context);
    return 0;
}

static int weight(void *user, const struct dp_stage_call *call)
{
    const float *x = call->in->data, *g = call->gout->data;

    for (int64_t i = 0; i < count_of(call->in); i++)
        *(float *)call->grads[0]->data += x[i] * g[i];
    return 0;
}

static int backward(void *user, const struct dp_stage_call *call, const DLTensor *gout,
                    DLTensor *gin, enum dp_backward_mode mode)
{
    const struct times *t = user;

    for (int64_t i = 0; i < count_of(gout) && gin->data; i++)
        ((float *)gin->data)[i] = t->w * ((const float *)gout->data)[i];
    return mode == DP_BACKWARD_FULL ? weight(user, call) : 0;
}

static int loss(void *user, const struct dp_stage_call *call, const DLTensor *out,
                const DLTensor *labels, double *values, int32_t max, int32_t *count)
{
    values[0] = 0;
    for (int64_t i = 0; i < count_of(out); i++) {
        const double d = (double)((const float *)out->data)[i] -
                         (double)((const float *)labels->data)[i];
        values[0] += d * d / 2;
    }
    values[1] = (double)out->shape[0];
    *count = 2;
    return 0;
}

static int loss_backward(void *user, const struct dp_stage_call *call, const DLTensor *out,
                         const DLTensor *labels, double scale, DLTensor *gout)
{
    for (int64_t i = 0; i < count_of(out); i++)
        ((float *)gout->data)[i] = (float)scale * (((const float *)out->data)[i] -
                                                   ((const float *)labels->data)[i]);
    return 0;
}

static const struct dp_stage_ops ops = {.forward = forward, .backward = backward, .weight = weight};
static const struct dp_loss_ops loss_ops = {loss, loss_backward};
static const DLDataType float32 = {kDLFloat, 32, 1};

/* ---- a rank ----------------------------------------------------------------------------------- */

/* What all ranks do; a test fills in what it wants. */
struct trial {
    struct dp_schedule_spec spec;
    const struct dp_schedule *schedule, *also;
    enum dp_execution execution;
    int rows;          /* of a stream's batch */
    int most;          /* rows of a micro-batch, as declared; 0: all are equal */
    bool own_gradients;
    bool no_rows;      /* batch.rows stays 0 */
    void (*edit)(struct dp_batch_step *batch, int rank);
    int error, elsewhere; /* of rank 0, of the others */
    const char *sentence; /* part of rank 0's */
    /* What came out, on a rank with a last stage. */
    int (*check)(struct dp_comm *comm, const struct trial *trial, struct dp_tree *outputs,
                 struct dp_tree *losses);
};

struct rank {
    struct times times[DP_MAX_SLOTS];
    struct dp_stage stages[DP_MAX_SLOTS];
    struct dp_border borders[MAX_STAGES + 1], labels;
    struct dp_pipeline *pipe;
    bool first, last;
    float x[2 * MAX_ROWS], y[2 * MAX_ROWS]; /* a batch, and its labels */
    int64_t shape[2];
    DLTensor tensors[2];
    struct dp_tree leaves[2], args, label_args;
    struct dp_batch_step batch;
    struct dp_tree *outputs, *losses;
};

static float input_of(int i)
{
    return (float)(i % 7 - 3);
}

/* All stages together. */
static float product(const struct trial *trial)
{
    float w = 1;

    for (int s = 0; s < trial->schedule->stages; s++)
        w *= (float)(s + 2);
    return w;
}

static void make_border(const struct trial *trial, struct dp_border *border)
{
    const int mbs = trial->schedule->mb_per_stream;
    struct dp_tensor_spec *spec = &border->tensors[0];

    *border = (struct dp_border){.count = 1};
    *spec = (struct dp_tensor_spec){.dtype = float32, .ndim = 2, .extent = {1}};
    spec->shape[0] = trial->most ? trial->most : trial->rows / mbs;
    spec->shape[1] = COLUMNS;
}

static void make_stage(struct rank *r, int slot, int stage)
{
    struct times *t = &r->times[slot];

    t->w = (float)(stage + 2);
    t->one = 1;
    t->value = (DLTensor){&t->w, {kDLCPU, 0}, 1, float32, &t->one, NULL, 0};
    t->grad = t->value;
    t->grad.data = &t->gw;
    t->parameter = (struct dp_parameter){.name = stage % 2 ? "odd" : "even",
                                         .value = &t->value, .grad = &t->grad};
    r->stages[slot] = (struct dp_stage){
        .ops = &ops, .user = t, .parameter_count = 1, .parameters = &t->parameter};
}

static void make_batch(const struct trial *trial, struct rank *r)
{
    r->shape[0] = trial->rows;
    r->shape[1] = COLUMNS;
    for (int i = 0; i < COLUMNS * trial->rows; i++) {
        r->x[i] = input_of(i);
        r->y[i] = 1;
    }
    for (int i = 0; i < 2; i++) {
        r->tensors[i] =
            (DLTensor){i ? r->y : r->x, {kDLCPU, 0}, 2, float32, r->shape, NULL, 0};
        r->leaves[i] = dp_tensor(&r->tensors[i]);
    }
    r->args = dp_tuple(1, &r->leaves[0]);
    r->label_args = dp_tuple(1, &r->leaves[1]);
    r->batch = (struct dp_batch_step){
        .args = r->first ? &r->args : NULL,
        .labels = r->last && !trial->own_gradients ? &r->label_args : NULL,
        .rows = trial->no_rows ? 0 : trial->rows, .outputs = r->last ? &r->outputs : NULL,
        .losses = r->last && !trial->own_gradients ? &r->losses : NULL,
    };
}

static int rank_open(struct rank *r, const struct trial *trial, struct dp_comm *comm)
{
    const struct dp_schedule *s = trial->schedule;
    const int rank = comm ? dp_comm_rank(comm) : 0;

    for (int i = 0; i <= s->stages; i++)
        make_border(trial, &r->borders[i]);
    r->labels = r->borders[0];
    for (int slot = 0; slot < dp_schedule_slot_count(s, rank); slot++) {
        const struct dp_slot *at = dp_schedule_slot(s, rank, slot);
        make_stage(r, slot, at->stage);
        r->first |= dp_slot_is_first(at);
        r->last |= dp_slot_is_last(at);
    }
    make_batch(trial, r);
    const struct dp_pipeline_config config = {
        .schedule = s, .also = &trial->also, .also_count = trial->also != NULL, .comm = comm,
        .stages = r->stages, .borders = r->borders,
        .labels = trial->own_gradients ? NULL : &r->labels,
        .max_extents = {r->borders[0].tensors[0].shape[0]},
        .loss = trial->own_gradients ? NULL : &loss_ops, .max_loss_values = 2,
        .own_gradients = trial->own_gradients, .execution = trial->execution,
    };
    return dp_pipeline_new(&config, &r->pipe);
}

static void rank_close(struct rank *r)
{
    dp_tree_free(r->outputs);
    dp_tree_free(r->losses);
    dp_pipeline_free(r->pipe);
    free(r);
}

static int run_trial(struct dp_comm *comm, void *arg)
{
    const struct trial *trial = arg;
    struct rank *r = calloc(1, sizeof(*r));

    CHECK(r);
    int err = rank_open(r, trial, comm);
    if (err == DP_EABORTED && trial->error) { /* another rank has gone ahead and failed */
        rank_close(r);
        return 0;
    }
    CHECK(!err);
    if (trial->edit)
        trial->edit(&r->batch, dp_comm_rank(comm));
    err = dp_pipeline_step_batch(r->pipe, &r->batch);
    CHECK(err == (dp_comm_rank(comm) ? trial->elsewhere : trial->error));
    if (trial->sentence && !dp_comm_rank(comm))
        CHECK_SAYS(trial->sentence);
    CHECK(err ? !r->outputs && !r->losses : !r->last || (r->outputs && r->losses));
    if (!err && r->last)
        CHECK(!trial->check(comm, trial, r->outputs, r->losses));
    CHECK(!r->batch.held);
    rank_close(r);
    return 0;
}

static void run_on(const struct comm_kind *kind, struct trial *trial)
{
    OWNED(dp_schedule) *s = NULL;
    int killed, failed;

    if (dp_schedule_new(&trial->spec, &s))
        fail_msg("%s", dp_last_error());
    trial->schedule = s;
    failed = kind ? kind->run(kind, s->ranks, DEADLINE_NS, run_trial, trial, &killed)
                  : comm_on_threads(s->ranks, DEADLINE_NS, run_trial, trial);
    assert_int_equal(failed, 0);
}

/* ---- results ---------------------------------------------------------------------------------- */

static int check_outputs(struct dp_comm *comm, const struct trial *trial,
                         const struct dp_tree *outputs)
{
    CHECK(outputs->kind == DP_TREE_TENSOR && outputs->tensor->ndim == 2);
    CHECK(outputs->tensor->shape[0] == trial->rows && outputs->tensor->shape[1] == COLUMNS);
    for (int i = 0; i < COLUMNS * trial->rows; i++)
        CHECK(((const float *)outputs->tensor->data)[i] == product(trial) * input_of(i));
    return 0;
}

/* Stacked, a row for each micro-batch: rows add up to the batch's, losses to that of the batch. */
static int check_stacked(struct dp_comm *comm, const struct trial *trial, struct dp_tree *outputs,
                         struct dp_tree *losses)
{
    double rows = 0, sum = 0, wanted = 0;

    CHECK(!check_outputs(comm, trial, outputs));
    CHECK(losses->kind == DP_TREE_TENSOR && losses->tensor->ndim == 2);
    CHECK(losses->tensor->shape[0] == trial->schedule->mb_per_stream);
    for (int mb = 0; mb < trial->schedule->mb_per_stream; mb++) {
        sum += ((const double *)losses->tensor->data)[2 * mb];
        rows += ((const double *)losses->tensor->data)[2 * mb + 1];
    }
    for (int i = 0; i < COLUMNS * trial->rows; i++)
        wanted += ((double)(product(trial) * input_of(i)) - 1) *
                  ((double)(product(trial) * input_of(i)) - 1) / 2;
    CHECK(rows == trial->rows && sum == wanted);
    return 0;
}

static const struct trial shapes[] = {
    {.spec = {.kind = DP_SCHEDULE_1F1B, .ranks = 2, .microbatches = 4}},
    {.spec = {.kind = DP_SCHEDULE_GPIPE, .ranks = 2, .microbatches = 4}},
    {.spec = {.kind = DP_SCHEDULE_ZB1P, .ranks = 2, .microbatches = 4}},
    {.spec = {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 2, .microbatches = 8}},
    {.spec = {.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 2, .microbatches = 4}},
    {.spec = {.kind = DP_SCHEDULE_ASYNC, .ranks = 3, .microbatches = 4}},
    {.spec = {.kind = DP_SCHEDULE_ASYNC, .ranks = 3, .microbatches = 4},
     .execution = DP_EXECUTE_MESSAGES},
};

CASE(every_schedule_takes_a_whole_batch)
{
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (int uneven = 0; uneven < 2; uneven++) {
            struct trial trial = shapes[i];
            trial.rows = uneven ? 10 : 12;
            trial.most = 3;
            trial.check = check_stacked;
            run_on(NULL, &trial);
        }
}

CASE(every_communicator_takes_a_whole_batch)
{
    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++) {
        struct trial trial = shapes[0];
        trial.rows = 10;
        trial.most = 3;
        trial.check = check_stacked;
        run_on(kind, &trial);
    }
}

/* ---- specs of results ------------------------------------------------------------------------- */

static void sum_outputs_and_reduce_losses(struct dp_batch_step *batch, int rank)
{
    static const char *const names[] = {"loss", "rows"};
    static _Thread_local struct dp_tree items[2], sum, by_name;

    items[0] = dp_reduce(dp_reducer_mean());
    items[1] = dp_reduce(dp_reducer_sum());
    sum = dp_reduce(dp_reducer_sum());
    by_name = dp_dict(2, names, items);
    batch->merge.spec = &sum;
    batch->loss_merge.spec = &by_name;
}

static int check_reduced(struct dp_comm *comm, const struct trial *trial, struct dp_tree *outputs,
                         struct dp_tree *losses)
{
    const int per_mb = COLUMNS * trial->rows / trial->schedule->mb_per_stream;

    CHECK(outputs->kind == DP_TREE_TENSOR && outputs->tensor->shape[0] * COLUMNS == per_mb);
    for (int i = 0; i < per_mb; i++) {
        float sum = 0;
        for (int mb = 0; mb < trial->schedule->mb_per_stream; mb++)
            sum += product(trial) * input_of(mb * per_mb + i);
        CHECK(((const float *)outputs->tensor->data)[i] == sum);
    }
    CHECK(losses->kind == DP_TREE_DICT && !strcmp(losses->names[1], "rows"));
    CHECK(losses->items[0].tensor->ndim == 0 && *(double *)losses->items[1].tensor->data == 12);
    return 0;
}

CASE(outputs_and_losses_can_be_reduced)
{
    struct trial trial = shapes[0];
    trial.rows = 12;
    trial.edit = sum_outputs_and_reduce_losses;
    trial.check = check_reduced;
    run_on(NULL, &trial);
}

static void one_output_for_all(struct dp_batch_step *batch, int rank)
{
    static const struct dp_tree replicate = {.kind = DP_TREE_REPLICATE};

    batch->merge.spec = &replicate;
    if (rank == 0)
        memset(batch->args->items[0].tensor->data, 0, 12 * COLUMNS * sizeof(float));
}

static int check_replicated(struct dp_comm *comm, const struct trial *trial,
                            struct dp_tree *outputs, struct dp_tree *losses)
{
    CHECK(outputs->kind == DP_TREE_TENSOR && outputs->tensor->shape[0] == 3);
    for (int i = 0; i < 3 * COLUMNS; i++)
        CHECK(((const float *)outputs->tensor->data)[i] == 0);
    return 0;
}

CASE(equal_outputs_can_be_one_that_outlives_the_step)
{
    struct trial trial = shapes[0];
    trial.rows = 12;
    trial.edit = one_output_for_all;
    trial.check = check_replicated;
    run_on(NULL, &trial);
}

/* ---- masks for debugging --------------------------------------------------------------------- */

static void split_by_masks(struct dp_batch_step *batch, int rank)
{
    batch->split.mask = batch->label_split.mask = batch->merge.mask = true;
}

static int check_masked(struct dp_comm *comm, const struct trial *trial, struct dp_tree *outputs,
                        struct dp_tree *losses)
{
    return check_outputs(comm, trial, outputs);
}

CASE(masked_micro_batches_give_the_outputs_of_cut_ones)
{
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        struct trial trial = shapes[i];
        trial.rows = trial.most = 10;
        trial.edit = split_by_masks;
        trial.check = check_masked;
        run_on(NULL, &trial);
    }
}

/* ---- fewer rows than micro-batches ------------------------------------------------------------- */

static void may_shrink(struct dp_batch_step *batch, int rank)
{
    batch->split.shrink = batch->label_split.shrink = DP_SHRINK_MIN;
}

static int check_three(struct dp_comm *comm, const struct trial *trial, struct dp_tree *outputs,
                       struct dp_tree *losses)
{
    CHECK(losses->tensor->shape[0] == 3);
    return check_outputs(comm, trial, outputs);
}

CASE(fewer_rows_take_the_schedule_of_fewer_micro_batches)
{
    struct dp_schedule_spec fewer = shapes[0].spec;
    OWNED(dp_schedule) *also = NULL;

    fewer.microbatches = 3;
    assert_int_equal(dp_schedule_new(&fewer, &also), 0);
    struct trial trial = shapes[0];
    trial.also = also;
    trial.rows = 3;
    trial.most = 1;
    trial.edit = may_shrink;
    trial.check = check_three;
    run_on(NULL, &trial);
    trial.edit = NULL;
    trial.error = trial.elsewhere = DP_EINVAL; /* the last stage's labels are as few */
    trial.sentence = "3 rows along dimension 0 for 4 micro-batches, expected at least 4";
    run_on(NULL, &trial);
}

/* ---- by the chunk rule ------------------------------------------------------------------------- */

static void by_chunks(struct dp_batch_step *batch, int rank)
{
    batch->split.rule = DP_CUT_CHUNK;
}

static void masks_by_chunks(struct dp_batch_step *batch, int rank)
{
    split_by_masks(batch, rank);
    by_chunks(batch, rank);
}

/* 5 rows are 2, 2 and 1 of 4 micro-batches, 7 are 2, 2, 2 and 1. */
CASE(rows_are_cut_as_async_pipe_cuts_them)
{
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        struct trial trial = shapes[i];
        struct dp_schedule_spec fewer = trial.spec;
        OWNED(dp_schedule) *also = NULL;
        fewer.microbatches = trial.spec.microbatches / 4 * 3;
        if (trial.spec.kind == DP_SCHEDULE_DUALPIPEV) /* takes twice as many as ranks */
            continue;
        if (dp_schedule_new(&fewer, &also))
            fail_msg("%s", dp_last_error());
        trial.also = also;
        trial.rows = 5;
        trial.most = 2;
        trial.edit = by_chunks;
        trial.check = check_three;
        run_on(NULL, &trial);
        trial.most = 5;
        trial.edit = masks_by_chunks;
        run_on(NULL, &trial);
        trial.also = NULL;
        trial.rows = 7;
        trial.most = 2;
        trial.edit = by_chunks;
        trial.check = check_stacked;
        run_on(NULL, &trial);
        trial.rows = 5;
        trial.error = trial.elsewhere = DP_EINVAL;
        trial.sentence = "rows: 5 make 3 of 4 micro-batches, expected all, or a schedule of 3";
        run_on(NULL, &trial);
    }
}

/* ---- masks of attention, and what stages are told beside their inputs ------------------------ */

static bool same_parity(void *user, int64_t sample, int64_t head, int64_t q, int64_t k)
{
    return (sample + q + k) % 2 == 0;
}

static int run_with_masks(struct dp_comm *comm, void *arg)
{
    const struct trial *trial = arg;
    static const char *const names[] = {"mask"};
    int32_t blocks[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    int64_t shape[] = {12, 1, 1}, index_shape[] = {12, 1, 1, 1};
    const DLTensor table = {blocks, {kDLCPU, 0}, 3, {kDLInt, 32, 1}, shape, NULL, 0};
    DLTensor indices = table;
    indices.ndim = 4;
    indices.shape = index_shape;
    const struct dp_block_mask mask = {
        .kv_num_blocks = &table, .kv_indices = &indices, .looks_at = same_parity};
    const struct dp_tree leaf = dp_block_mask(&mask), kwargs = dp_dict(1, names, &leaf);
    struct rank *r = calloc(1, sizeof(*r));

    CHECK(r && !rank_open(r, trial, comm));
    r->batch.context = &kwargs;
    if (r->first)
        r->batch.kwargs = &kwargs;
    CHECK(!dp_pipeline_step_batch(r->pipe, &r->batch));
    for (int mb = 0; mb < 4; mb++) {
        CHECK(r->times[0].kwargs_sample[mb] == (r->first ? 3 * mb : -1));
        CHECK(r->times[0].context_sample[mb] == 3 * mb);
    }
    rank_close(r);
    return 0;
}

CASE(masks_of_attention_reach_every_stage)
{
    OWNED(dp_schedule) *s = case_schedule(shapes[0].spec);
    struct trial trial = {.schedule = s, .rows = 12};
    assert_int_equal(comm_on_threads(2, DEADLINE_NS, run_with_masks, &trial), 0);
}

/* ---- two calls ------------------------------------------------------------------------------- */

static int run_in_two_calls(struct dp_comm *comm, void *arg)
{
    const struct trial *trial = arg;
    struct rank *r = calloc(1, sizeof(*r));
    float ones[COLUMNS * MAX_ROWS];
    DLTensor grads;

    CHECK(r && !rank_open(r, trial, comm));
    CHECK(dp_pipeline_backward_batch(r->pipe, &r->batch) == DP_ESTATE);
    CHECK(!dp_pipeline_forward_batch(r->pipe, &r->batch));
    CHECK(dp_pipeline_forward_batch(r->pipe, &r->batch) == DP_ESTATE);
    CHECK(!r->last || !check_outputs(comm, trial, r->outputs));
    for (int i = 0; i < COLUMNS * trial->rows; i++)
        ones[i] = 1;
    grads = r->tensors[0];
    grads.data = ones;
    const struct dp_tree leaf = dp_tensor(&grads), list = dp_tuple(1, &leaf);
    r->batch.output_grads = r->last ? &list : NULL;
    CHECK(!dp_pipeline_backward_batch(r->pipe, &r->batch));
    CHECK(dp_pipeline_backward_batch(r->pipe, &r->batch) == DP_ESTATE);
    float sum = 0; /* the derivative of the sum of outputs by w of this rank's stage */
    for (int i = 0; i < COLUMNS * trial->rows; i++)
        sum += product(trial) / r->times[0].w * input_of(i);
    CHECK(r->times[0].gw == sum);
    rank_close(r);
    return 0;
}

CASE(outputs_are_given_and_gradients_taken_in_two_calls)
{
    OWNED(dp_schedule) *s = case_schedule(shapes[1].spec);
    struct trial trial = {.schedule = s, .rows = 10, .most = 3, .own_gradients = true};
    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++) {
        int killed;
        assert_int_equal(kind->run(kind, 2, DEADLINE_NS, run_in_two_calls, &trial, &killed), 0);
    }
}

/* ---- ranks beyond the stages ------------------------------------------------------------------- */

static int run_some_unused(struct dp_comm *comm, void *arg)
{
    const struct trial *trial = arg;
    struct rank *r = calloc(1, sizeof(*r));
    const bool unused = dp_comm_rank(comm) == 2;

    CHECK(r && !rank_open(r, trial, comm));
    if (unused) {
        r->batch.args = &r->args;
        r->batch.outputs = &r->outputs;
    }
    CHECK(!dp_pipeline_step_batch(r->pipe, &r->batch));
    CHECK(r->batch.unused == unused);
    CHECK(!unused || (r->outputs->kind == DP_TREE_TUPLE && r->outputs->count == 1 &&
                      r->outputs->items[0].tensor == &r->tensors[0]));
    CHECK(!r->last || !check_outputs(comm, trial, r->outputs));
    CHECK(!dp_comm_barrier(comm));
    rank_close(r);
    return 0;
}

CASE(ranks_beyond_the_stages_return_their_input)
{
    static const int32_t balance[] = {1, 1};
    const struct dp_partition_spec layers = {.layer_count = 2, .balance = balance, .stages = 2};
    struct dp_schedule_spec spec = {.kind = DP_SCHEDULE_ASYNC, .ranks = 3, .microbatches = 4};
    OWNED(dp_partition) *p = NULL;
    OWNED(dp_schedule) *s = NULL;

    assert_int_equal(dp_partition_new(&layers, &p), 0);
    spec.partition = p;
    assert_int_equal(dp_schedule_new(&spec, &s), 0);
    for (enum dp_execution how = DP_EXECUTE_LIST; how < DP_EXECUTIONS; how++) {
        struct trial trial = {.schedule = s, .rows = 10, .most = 3, .execution = how};
        assert_int_equal(comm_on_threads(3, DEADLINE_NS, run_some_unused, &trial), 0);
    }
}

/* ---- what is wrong: rows of the table of errors ---------------------------------------------- */

static _Thread_local struct dp_tree wrong_items[3], wrong_tree, wrong_spec_items[3], wrong_spec;
static _Thread_local DLTensor wrong_tensor;
static _Thread_local int64_t wrong_shape[2];

static void e1_more_values_than_specs(struct dp_batch_step *batch, int rank)
{
    wrong_spec_items[0] = wrong_spec_items[1] = dp_chunk(0);
    wrong_spec = dp_tuple(2, wrong_spec_items);
    if (rank == 0)
        batch->split.args_spec = &wrong_spec;
}

static void e2_a_name_without_spec(struct dp_batch_step *batch, int rank)
{
    static const char *const has[] = {"x"}, *const lacks[] = {"y"};

    wrong_tree = dp_dict(1, has, batch->args ? batch->args->items : NULL);
    wrong_spec_items[0] = dp_chunk(0);
    wrong_spec = dp_dict(1, lacks, wrong_spec_items);
    if (rank)
        return;
    batch->args = NULL;
    batch->kwargs = &wrong_tree;
    batch->split.kwargs_spec = &wrong_spec;
}

static void e3_two_leaves_for_one_spec(struct dp_batch_step *batch, int rank)
{
    if (rank)
        return;
    wrong_items[0] = wrong_items[1] = batch->args->items[0];
    wrong_items[2] = dp_tuple(2, wrong_items);
    wrong_tree = dp_tuple(1, &wrong_items[2]);
    batch->args = &wrong_tree;
}

static void one_more_tensor(struct dp_batch_step *batch, int rows, int ndim)
{
    wrong_tensor = *batch->args->items[0].tensor;
    wrong_shape[0] = rows;
    wrong_shape[1] = COLUMNS;
    wrong_tensor.shape = wrong_shape;
    wrong_tensor.ndim = ndim;
    wrong_items[0] = batch->args->items[0];
    wrong_items[1] = dp_tensor(&wrong_tensor);
    wrong_tree = dp_tuple(2, wrong_items);
    batch->args = &wrong_tree;
}

static void e5_a_later_tensor_is_shorter(struct dp_batch_step *batch, int rank)
{
    if (rank == 0)
        one_more_tensor(batch, 3, 2);
    batch->split.shrink = DP_SHRINK_FIRST;
}

static void e6_nothing_as_the_spec_of_a_tensor(struct dp_batch_step *batch, int rank)
{
    if (rank)
        return;
    wrong_items[0] = dp_tuple(1, batch->args->items);
    wrong_tree = dp_tuple(1, wrong_items);
    wrong_spec_items[0] = dp_absent();
    wrong_spec_items[1] = dp_tuple(1, wrong_spec_items);
    wrong_spec = dp_tuple(1, &wrong_spec_items[1]);
    batch->args = &wrong_tree;
    batch->split.args_spec = &wrong_spec;
}

static void e7_another_number_than_the_schedules(struct dp_batch_step *batch, int rank)
{
    if (rank == 0)
        batch->split.count = 3;
}

static void e10_a_dimension_out_of_range(struct dp_batch_step *batch, int rank)
{
    wrong_spec_items[0] = dp_chunk(2);
    wrong_spec = dp_tuple(1, wrong_spec_items);
    if (rank == 0)
        batch->split.args_spec = &wrong_spec;
}

static void e10_a_tensor_without_dimensions(struct dp_batch_step *batch, int rank)
{
    if (rank == 0)
        one_more_tensor(batch, 12, 0);
}

static void e11_a_tensor_without_rows(struct dp_batch_step *batch, int rank)
{
    if (rank == 0)
        one_more_tensor(batch, 0, 2);
    batch->split.shrink = DP_SHRINK_MIN;
}

static void a_member_that_is_made_here(struct dp_batch_step *batch, int rank)
{
    static const struct dp_microbatches none;

    if (rank == 0)
        batch->step.inputs = &none;
}

CASE(every_bad_argument_is_named_and_ends_the_step_everywhere)
{
    static const struct {
        void (*edit)(struct dp_batch_step *batch, int rank);
        const char *sentence;
    } wrong[] = {
        {e1_more_values_than_specs, "args: 1 values and 2 specs, expected as many"},
        {e2_a_name_without_spec, "kwargs: no spec for \"x\", expected one for each name"},
        {e3_two_leaves_for_one_spec, "args[0]: 2 leaves and 1 leaves in its spec"},
        {e5_a_later_tensor_is_shorter, "args[1]: 3 rows along dimension 0 for 4 micro-batches"},
        {e6_nothing_as_the_spec_of_a_tensor, "args[0][0]: the spec of a tensor is nothing"},
        {e7_another_number_than_the_schedules,
         "inputs: 3 micro-batches, expected the stream's 4"},
        {e10_a_dimension_out_of_range, "args[0]: Chunk(2) of float32[12, 2]"},
        {e10_a_tensor_without_dimensions, "args[1]: Chunk(0) of a tensor without dimensions"},
        {e11_a_tensor_without_rows, "args[1]: 0 rows along dimension 0"},
        {a_member_that_is_made_here, "step.inputs: given, expected NULL in a step of a whole"},
    };

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct trial trial = shapes[0];
        trial.rows = 12;
        trial.no_rows = true;
        trial.edit = wrong[i].edit;
        trial.error = DP_EINVAL;
        trial.elsewhere = DP_EABORTED;
        trial.sentence = wrong[i].sentence;
        run_on(NULL, &trial);
    }
}

/* Rows of the merge: they come after the step, on the rank that merges. */
static void e8_more_leaves_than_results(struct dp_batch_step *batch, int rank)
{
    wrong_spec_items[0] = wrong_spec_items[1] = dp_chunk(0);
    wrong_spec = dp_tuple(2, wrong_spec_items);
    batch->merge.spec = &wrong_spec;
}

static void e9_values_that_differ(struct dp_batch_step *batch, int rank)
{
    wrong_spec = dp_replicate();
    batch->merge.spec = &wrong_spec;
}

static void e13_values_without_dimensions(struct dp_batch_step *batch, int rank)
{
    wrong_spec_items[0] = wrong_spec_items[1] = dp_chunk(0);
    wrong_spec = dp_tuple(2, wrong_spec_items);
    batch->loss_merge.spec = &wrong_spec;
}

static void e14_masked_results_of_other_shapes(struct dp_batch_step *batch, int rank)
{
    batch->merge.mask = true;
}

CASE(what_cannot_be_merged_is_named)
{
    static const struct {
        void (*edit)(struct dp_batch_step *batch, int rank);
        int error, rows;
        const char *sentence;
    } wrong[] = {
        {e8_more_leaves_than_results, DP_EINVAL, 12, "a result with 1 leaves, expected the 2"},
        {e9_values_that_differ, DP_EMISMATCH, 12, "micro-batch 1 has float32[3, 2]"},
        {e13_values_without_dimensions, DP_EINVAL, 12, "of tensors without dimensions"},
        {e14_masked_results_of_other_shapes, DP_EMISMATCH, 10, "do not fit under a mask"},
    };

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct trial trial = {.spec = {.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 2,
                                       .microbatches = 4},
                              .rows = wrong[i].rows, .most = 3, .edit = wrong[i].edit,
                              .error = wrong[i].error, .sentence = wrong[i].sentence};
        run_on(NULL, &trial);
    }
}

RUN_QUIET_CASES(NULL, NULL)
