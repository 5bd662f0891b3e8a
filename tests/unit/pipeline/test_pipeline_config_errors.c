/* SPDX-License-Identifier: Apache-2.0
 *
 * test_pipeline_config_errors.c - every pipeline that cannot be opened. Rows C1 and on of the
 * behaviour that the library promises.
 */
#include "pipeline_wrong.h"

/* ---- configs -------------------------------------------------------------------------------- */

/* Configs are copied, but what they point to belongs to the rank's thread. */
static _Thread_local struct dp_stage some_stages[DP_MAX_SLOTS];
static _Thread_local struct dp_stage_ops some_ops;
static _Thread_local struct dp_border some_borders[16];
static _Thread_local DLTensor some_grad;
static _Thread_local struct dp_parameter some_parameters[MODEL_GRADS];
static _Thread_local struct dp_border some_labels;
static _Thread_local int64_t some_strides[2];
static _Thread_local struct dp_schedule some_schedule;
static _Thread_local int32_t some_ranks[8];
static _Thread_local struct dp_op some_op_list[4096];

static struct dp_stage *copy_stages(struct dp_pipeline_config *config)
{
    memcpy(some_stages, config->stages,
           (size_t)config->schedule->max_slots * sizeof(*some_stages));
    some_ops = *some_stages[0].ops;
    config->stages = some_stages;
    return some_stages;
}

static DLTensor *copy_grad(struct dp_pipeline_config *config)
{
    struct dp_stage *stage = copy_stages(config);

    memcpy(some_parameters, stage->parameters, sizeof(some_parameters));
    some_grad = *some_parameters[0].grad;
    some_parameters[0].grad = &some_grad;
    stage->parameters = some_parameters;
    return &some_grad;
}

static struct dp_border *copy_borders(struct dp_pipeline_config *config)
{
    memcpy(some_borders, config->borders,
           ((size_t)config->schedule->stages + 1) * sizeof(*some_borders));
    config->borders = some_borders;
    return some_borders;
}

static struct dp_schedule *copy_schedule(struct dp_pipeline_config *config)
{
    some_schedule = *config->schedule;
    memcpy(some_ranks, some_schedule.group_rank, (size_t)some_schedule.ranks * sizeof(*some_ranks));
    memcpy(some_op_list, some_schedule.ops,
           some_schedule.first[some_schedule.ranks] * sizeof(*some_op_list));
    some_schedule.group_rank = some_ranks;
    some_schedule.ops = some_op_list;
    config->schedule = &some_schedule;
    return &some_schedule;
}

WRONG_CONFIG(no_schedule, config->schedule = NULL)
WRONG_CONFIG(no_stages, config->stages = NULL)
WRONG_CONFIG(no_ops, copy_stages(config)[1].ops = NULL)
WRONG_CONFIG(no_forward, copy_stages(config)->ops = &some_ops; some_ops.forward = NULL)
WRONG_CONFIG(no_backward, copy_stages(config)->ops = &some_ops; some_ops.backward = NULL)
WRONG_CONFIG(no_weight, copy_stages(config)->ops = &some_ops; some_ops.weight = NULL)
WRONG_CONFIG(grads_missing, copy_stages(config)->parameters = NULL)
WRONG_CONFIG(grad_missing, copy_grad(config); some_parameters[1].grad = NULL)
WRONG_CONFIG(grad_elsewhere, copy_grad(config)->device = (DLDevice){kDLCUDA, 1})
WRONG_CONFIG(grad_of_integers, copy_grad(config)->dtype = (DLDataType){kDLInt, 32, 1})

static void grad_strided(int rank, struct dp_pipeline_config *config)
{
    DLTensor *grad = copy_grad(config);
    some_strides[0] = 1;
    some_strides[1] = grad->shape[0];
    grad->strides = some_strides;
}

WRONG_CONFIG(grads_fewer, copy_stages(config)->parameter_count = 1)
WRONG_CONFIG(map_twice, copy_schedule(config)->group_rank[1] = 0)
WRONG_CONFIG(map_outside, copy_schedule(config)->group_rank[1] = 7)

static void op_missing(int rank, struct dp_pipeline_config *config)
{
    struct dp_schedule *s = copy_schedule(config);
    for (size_t i = 0; i < s->first[s->ranks]; i++)
        if (s->ops[i].kind == DP_OP_B) {
            s->ops[i].kind = DP_OP_W;
            return;
        }
}

WRONG_CONFIG(no_comm, config->comm = NULL)
WRONG_CONFIG(no_borders, config->borders = NULL)
WRONG_CONFIG(border_empty, copy_borders(config)[1].count = 0)
WRONG_CONFIG(border_overfull, copy_borders(config)[1].count = DP_MAX_TENSORS + 1)
WRONG_CONFIG(border_without_dtype, copy_borders(config)[1].tensors[2].dtype = (DLDataType){0})
WRONG_CONFIG(border_of_many_dimensions, copy_borders(config)[1].tensors[0].ndim = DP_MAX_DIMS + 1)
WRONG_CONFIG(border_negative, copy_borders(config)[1].tensors[0].shape[1] = -4)

static void border_huge(int rank, struct dp_pipeline_config *config)
{
    copy_borders(config)[1].tensors[0].shape[0] = INT64_MAX / 2;
    copy_borders(config)[1].tensors[0].shape[1] = 1000;
}

static void label_negative(int rank, struct dp_pipeline_config *config)
{
    some_labels = *config->labels;
    some_labels.tensors[0].shape[1] = -3;
    config->labels = &some_labels;
}

WRONG_CONFIG(labels_none, some_labels = (struct dp_border){0}; config->labels = &some_labels)
WRONG_CONFIG(blocks_odd, config->order_blocks = 3)
WRONG_CONFIG(blocks_few, config->order_blocks = 1)
WRONG_CONFIG(input_end_missing, copy_borders(config)[0].count = 0)
WRONG_CONFIG(no_loss, config->loss = NULL)

static void half_a_loss(int rank, struct dp_pipeline_config *config)
{
    static const struct dp_loss_ops half = {.loss = NULL};
    config->loss = &half;
}

WRONG_CONFIG(losses_negative, config->max_loss_values = -1)
WRONG_CONFIG(scale_not_a_number, config->loss_scale = NAN)
WRONG_CONFIG(of_a_later_release, ((struct later_dp_pipeline_config *)config)->unknown = 1)
WRONG_CONFIG(save_area_huge, copy_stages(config)->save_bytes = SIZE_MAX - 100)
WRONG_CONFIG(save_areas_large, copy_stages(config)->save_bytes = (size_t)1 << 50)

static const struct wrong wrong_configs[] = {
    {"huge save area", 1, save_area_huge, NULL, DP_ENOMEM, "no memory for a buffer of"},
    {"large save areas", 1, save_areas_large, NULL, DP_ENOMEM, "no memory for a buffer of"},
    {"no schedule", 1, no_schedule, NULL, DP_EINVAL, "schedule: NULL"},
    {"no stages", 1, no_stages, NULL, DP_EINVAL, "stages: NULL"},
    {"no callbacks", 0, no_ops, NULL, DP_EINVAL, "slot 1: no callbacks"},
    {"no forward", 0, no_forward, NULL, DP_EINVAL, "no callback forward"},
    {"no backward", 0, no_backward, NULL, DP_EINVAL, "no callback backward"},
    {"no weight", 0, no_weight, NULL, DP_EINVAL, "no callback weight"},
    {"C1 no gradients", 0, grads_missing, NULL, DP_EINVAL, "parameters: a list of 2"},
    {"C1 no gradient", 0, grad_missing, NULL, DP_EINVAL, "parameter '0.bias': its gradient is NULL"},
    {"C1 gradient elsewhere", 0, grad_elsewhere, NULL, DP_EINVAL, "its gradient is on device 2:1"},
    {"gradient of integers", 0, grad_of_integers, NULL, DP_EINVAL, "its gradient is int32"},
    {"gradient strided", 0, grad_strided, NULL, DP_EINVAL, "expected the shape and strides"},
    {"mirrors differ", 0, grads_fewer, NULL, DP_EMISMATCH,
     "number of parameters of stage 0: rank 1 has 2, rank 0 has 1", DP_EMISMATCH},
    {"C2 rank map", EVERYWHERE, map_twice, NULL, DP_EINVAL, "group rank", 0},
    {"C2 rank map outside", EVERYWHERE, map_outside, NULL, DP_EINVAL, "group rank 7", 0},
    {"schedule with a hole", 0, op_missing, NULL, DP_EINVAL, "schedule breaks"},
    {"S1 no borders", 1, no_borders, NULL, DP_ESTATE, "borders: not declared"},
    {"S1 empty border", 1, border_empty, NULL, DP_ESTATE, "border 1: no tensor"},
    {"border too full", 1, border_overfull, NULL, DP_EINVAL, "17 tensors"},
    {"border without dtype", 1, border_without_dtype, NULL, DP_EINVAL, "tensor 2: dtype"},
    {"many dimensions", 1, border_of_many_dimensions, NULL, DP_EINVAL, "9 dimensions"},
    {"negative extent", 1, border_negative, NULL, DP_EINVAL, "extent -4"},
    {"huge border", 1, border_huge, NULL, DP_EINVAL, "more bytes"},
    {"negative label", 1, label_negative, NULL, DP_EINVAL, "label 0: extent -3"},
    {"no label", 1, labels_none, NULL, DP_EINVAL, "labels: 0 tensors"},
    {"three blocks", 1, blocks_odd, NULL, DP_EINVAL, "order_blocks: 3, expected a power of two"},
    {"one block", 1, blocks_few, NULL, DP_EINVAL, "order_blocks: 1, expected a power of two from 2"},
    {"no input declared", 0, input_end_missing, NULL, DP_ESTATE, "border 0: no tensor declared"},
    {"S4 no loss", 1, no_loss, NULL, DP_EINVAL, "loss: NULL"},
    {"half a loss", 1, half_a_loss, NULL, DP_EINVAL, "no callback loss"},
    {"negative losses", 1, losses_negative, NULL, DP_EINVAL, "max_loss_values: -1"},
    {"of a later release", 1, of_a_later_release, NULL, DP_EINVAL, "struct dp_pipeline_config of"},
    {"loss_scale", 1, scale_not_a_number, NULL, DP_EINVAL, "loss_scale: nan"},
};

CASE(a_bad_config_is_named_on_all_ranks)
{
    expect_all_wrong(wrong_configs, COUNT(wrong_configs), training);
}

CASE(more_ranks_than_one_need_a_comm)
{
    static const struct wrong wrong = {"no comm", EVERYWHERE,   no_comm, NULL,
                                       DP_ESTATE, "comm: NULL", 0};
    expect_wrong(&wrong, training);
}

/* ---- ranks that do not agree ----------------------------------------------------------------- */

static struct dp_schedule *others[2];

WRONG_CONFIG(other_microbatches, config->schedule = others[0])

static void other_kind(int rank, struct dp_pipeline_config *config)
{
    config->schedule = others[1];
    static _Thread_local struct dp_border borders[16];
    memcpy(borders, config->borders, 3 * sizeof(*borders));
    borders[3] = borders[1];
    borders[4] = borders[2];
    config->borders = borders;
}

WRONG_CONFIG(other_ranks, config->schedule = others[0])
WRONG_CONFIG(other_shape, copy_borders(config)[1].tensors[0].shape[0] = 4)
WRONG_CONFIG(other_dtype, copy_borders(config)[1].tensors[0].dtype = (DLDataType){kDLBfloat, 16, 2})
WRONG_CONFIG(other_no_grad, copy_borders(config)[1].tensors[2].no_grad = true)
WRONG_CONFIG(other_input, copy_borders(config)[0].tensors[0].dtype.lanes = 2)
WRONG_CONFIG(other_extents, config->max_extents[1] = 3)

static void more_schedules(int rank, struct dp_pipeline_config *config)
{
    config->also = (const struct dp_schedule *const *)&others[0];
    config->also_count = 1;
}

static void other_name(int rank, struct dp_pipeline_config *config)
{
    static _Thread_local struct dp_parameter parameters[2];

    struct dp_stage *stage = copy_stages(config);
    memcpy(parameters, stage->parameters, sizeof(parameters));
    parameters[1].name = "another";
    stage->parameters = parameters;
}

WRONG_CONFIG(other_copies, config->unsummed_copies = true)
WRONG_CONFIG(other_order, config->fixed_order = false)
WRONG_CONFIG(other_seed, config->seed++)
WRONG_CONFIG(other_checks, config->unchecked = true)
WRONG_CONFIG(other_scale, config->loss_scale = 0.5)

static void other_op(int rank, struct dp_pipeline_config *config)
{
    struct dp_schedule *s = copy_schedule(config);
    for (size_t i = 0; i < s->first[s->ranks]; i++)
        s->ops[i].flags &= (uint16_t)~DP_OP_OVERLAP;
}

static const struct wrong disagreements[] = {
    {"S8 M", 1, other_microbatches, NULL, DP_EMISMATCH, "micro-batches: rank 1 has 6, rank 0 has 4",
     DP_EMISMATCH},
    {"S8 kind", 1, other_kind, NULL, DP_EMISMATCH, "schedule kind: rank 1 has dualpipev, rank 0 has dualpipe", DP_EMISMATCH},
    {"ops", 1, other_op, NULL, DP_EMISMATCH, "schedule, op ", DP_EMISMATCH},
    {"shapes", 1, other_shape, NULL, DP_EMISMATCH, "border 1, tensor 0: rank 1 has float32[4, ", DP_EMISMATCH},
    {"dtypes", 1, other_dtype, NULL, DP_EMISMATCH, "border 1, tensor 0: rank 1 has bfloat16", DP_EMISMATCH},
    {"no_grad", 1, other_no_grad, NULL, DP_EMISMATCH, ", no_grad, rank 0 has ", DP_EMISMATCH},
    {"input", 1, other_input, NULL, DP_EMISMATCH, "border 0, tensor 0: rank 1 has ", DP_EMISMATCH},
    {"max_extents", 1, other_extents, NULL, DP_EMISMATCH, "max_extents[1]: rank 1 has 3, rank 0 has 0",
     DP_EMISMATCH},
    {"more schedules", 1, more_schedules, NULL, DP_EMISMATCH,
     "number of schedules: rank 1 has 2, rank 0 has 1", DP_EMISMATCH},
    {"name in a mirror", 1, other_name, NULL, DP_EMISMATCH,
     "parameter 1 of stage 1: rank 1 has 'another', float32[", DP_EMISMATCH},
    {"fixed_order", 1, other_order, NULL, DP_EMISMATCH, "fixed_order: rank 1 has 0, rank 0 has 1",
     DP_EMISMATCH},
    {"seed", 1, other_seed, NULL, DP_EMISMATCH, "seed: rank 1 has 8, rank 0 has 7", DP_EMISMATCH},
    {"unchecked", 1, other_checks, NULL, DP_EMISMATCH, "unchecked: rank 1", DP_EMISMATCH},
    {"copies", 1, other_copies, NULL, DP_EMISMATCH, "unsummed_copies: rank 1 has 1, rank 0 has 0",
     DP_EMISMATCH},
    {"scale", 1, other_scale, NULL, DP_EMISMATCH, "loss_scale: rank 1 has 0.5, rank 0 has 0", DP_EMISMATCH},
};

static const struct wrong inference_disagreements[] = {
    {"S8 criterion", 1, no_loss, NULL, DP_EMISMATCH, "loss (1: given, 2: NULL): rank 1 has 2",
     DP_EMISMATCH},
    {"S8 training", 1, other_microbatches, NULL, DP_EMISMATCH, "forward_only: rank 1 has 0",
     DP_EMISMATCH},
};

CASE(ranks_that_disagree_name_the_field)
{
    struct dp_schedule_spec spec = training;

    spec.microbatches = 6;
    assert_int_equal(dp_schedule_new(&spec, &others[0]), 0);
    spec = training;
    spec.kind = DP_SCHEDULE_DUALPIPEV;
    assert_int_equal(dp_schedule_new(&spec, &others[1]), 0);
    expect_all_wrong(disagreements, COUNT(disagreements), training);

    dp_schedule_free(others[0]);
    spec = training;
    spec.mirror_reduce = false;
    spec.return_outputs = true;
    assert_int_equal(dp_schedule_new(&spec, &others[0]), 0);
    expect_all_wrong(inference_disagreements, COUNT(inference_disagreements), inference);
    for (int i = 0; i < 2; i++)
        dp_schedule_free(others[i]);
}

CASE(a_comm_of_another_size_is_refused)
{
    static const struct wrong wrong = {"size", EVERYWHERE, other_ranks, NULL, DP_EINVAL,
                                       "comm: 2 ranks, expected the schedule's 4", 0};
    struct dp_schedule_spec spec = training;

    spec.ranks = 4;
    spec.microbatches = 8;
    assert_int_equal(dp_schedule_new(&spec, &others[0]), 0);
    expect_wrong(&wrong, training);
    dp_schedule_free(others[0]);
}

/* ---- schedules that are legal, but not for this pipeline ------------------------------------- */

static void expect_refused(const char *text, int err, const char *sentence)
{
    OWNED(dp_schedule) *s = NULL;
    struct job_rank r;

    if (dp_schedule_read(text, strlen(text), DP_FORMAT_TEXT, &s))
        fail_msg("%s", dp_last_error());
    ENDED_BY(job_end) struct job job = job_make(s);
    job_begin(&job);
    assert_int_equal(job_rank_open(&r, &job, NULL), err);
    assert_non_null(strstr(dp_last_error(), sentence));
    job_rank_close(&r);
}

CASE(a_schedule_that_asks_for_too_much_is_refused)
{
    expect_refused("user P=1 M=2 streams=2\nholds 0: 0 0/1\nrank 0: F0.0 B0.0 F1.0 B1.0\n",
                   DP_EUNSUPPORTED, "rank 0 holds 2 first and 2 last stages");
    expect_refused("user P=1 M=1\nrank 0: F0.0 B0.0 R0 Rw0\n", DP_EINVAL,
                   "a REDUCE of slot 0 of rank 0, which has no mirror, expected reduce operations");
}

RUN_QUIET_CASES(NULL, NULL)
