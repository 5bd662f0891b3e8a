/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/steps.h"

#include "base/fail.h"

#include <stdio.h>
#include <string.h>

/* What the callbacks of one micro-batch in one stage get to see. */
struct frame {
    const struct dp_plan_op *op;
    const struct dp_slot *slot;
    const struct dp_stage *stage;
    struct dp_stage_call call;
    DLTensor in[DP_MAX_TENSORS], out[DP_MAX_TENSORS];
    DLTensor gin[DP_MAX_TENSORS], gout[DP_MAX_TENSORS];
    DLTensor made[DP_MAX_TENSORS]; /* what the callback is to fill, as it was handed out */
};

int dp_compute_settle(struct dp_pipeline *pipe)
{
    const struct dp_device_ops *device = pipe->device->ops;

    if (pipe->native_stream)
        return 0;
    int err = device->event_record(pipe->done, pipe->compute);
    return err ? err : device->event_wait(pipe->done, pipe->deadline_ns);
}

/* ---- tensors -------------------------------------------------------------------------------- */

static char *address(const struct dp_pipeline *pipe, size_t offset)
{
    return offset == DP_NOWHERE ? NULL : pipe->memory + offset;
}

/* The tensors of a border in a buffer; base NULL: nowhere. */
static void make_tensors(const struct dp_pipeline *pipe, int border, const struct dp_layout *layout,
                         char *base, DLTensor *tensors)
{
    for (int k = 0; k < pipe->borders[border].count; k++) {
        struct dp_tensor_spec *spec = &pipe->handed_out[border].tensors[k];
        tensors[k] = (DLTensor){
            .data = base && layout->offset[k] != DP_NOWHERE ? base + layout->offset[k] : NULL,
            .device = pipe->device->dl,
            .ndim = spec->ndim,
            .dtype = spec->dtype,
            .shape = spec->shape,
        };
    }
}

static struct dp_batch_cut cut_of(const struct dp_pipeline *pipe, const struct dp_tensor_spec *spec)
{
    return (struct dp_batch_cut){spec, pipe->config.batch_dim,
                                 pipe->config.schedule->mb_per_stream};
}

/* Views of a whole batch. */
static void view_batch(const struct dp_pipeline *pipe, int border, const DLTensor *const *batch,
                       uint32_t mb, DLTensor *tensors)
{
    const struct dp_border *b = &pipe->borders[border];

    make_tensors(pipe, border, &pipe->layouts[border].activation, NULL, tensors);
    for (int k = 0; k < b->count; k++) {
        struct dp_batch_cut cut = cut_of(pipe, &b->tensors[k]);
        tensors[k].data = dp_batch_view(&cut, batch[k], (int)mb);
    }
}

/* ---- what a callback must have left alone ---------------------------------------------------- */

/* Says what is wrong, and puts the shape right that all callbacks get to see. */
static int fail_tensor(struct dp_pipeline *pipe, const struct frame *f, const char *name,
                       int border, int k, const DLTensor *tensor)
{
    const struct dp_tensor_spec *spec = &pipe->borders[border].tensors[k];
    char what[128], has[128], wants[128], has_dtype[32], wants_dtype[32];

    dp_pipeline_describe(pipe, f->op, what, sizeof(what));
    dp_dtype_name(tensor->dtype, has_dtype, sizeof(has_dtype));
    dp_dtype_name(spec->dtype, wants_dtype, sizeof(wants_dtype));
    if (tensor->ndim >= 0 && tensor->ndim <= DP_MAX_DIMS && tensor->shape)
        dp_shape_text(tensor->shape, tensor->ndim, has, sizeof(has));
    else
        snprintf(has, sizeof(has), "of %d dimensions", tensor->ndim);
    dp_shape_text(spec->shape, spec->ndim, wants, sizeof(wants));
    pipe->handed_out[border].tensors[k] = *spec;
    return dp_fail(DP_EMISMATCH,
                   "%s: the stage left tensor %d of %s as %s %s, or in other memory, expected %s %s "
                   "where it was",
                   what, k, name, has_dtype, has, wants_dtype, wants);
}

static bool is_as_made(const struct dp_tensor_spec *spec, const DLTensor *tensor,
                       const DLTensor *made)
{
    return !memcmp(tensor, made, sizeof(*tensor)) &&
           !memcmp(tensor->shape, spec->shape, (size_t)spec->ndim * sizeof(*spec->shape));
}

static void remember(const struct dp_pipeline *pipe, struct frame *f, int border,
                     const DLTensor *tensors)
{
    memcpy(f->made, tensors, (size_t)pipe->borders[border].count * sizeof(*tensors));
}

static int check_tensors(struct dp_pipeline *pipe, const struct frame *f, const char *name,
                         int border, const DLTensor *tensors)
{
    for (int k = 0; k < pipe->borders[border].count; k++) {
        const struct dp_tensor_spec *spec = &pipe->borders[border].tensors[k];
        if (!is_as_made(spec, &tensors[k], &f->made[k]))
            return fail_tensor(pipe, f, name, border, k, &tensors[k]);
    }
    return 0;
}

/* A gradient whose data has become NULL is missing: it becomes zeros. */
static int check_gradients(struct dp_pipeline *pipe, const struct frame *f, const char *name,
                           int border, DLTensor *tensors)
{
    int err = 0;

    for (int k = 0; k < pipe->borders[border].count && !err; k++) {
        if (tensors[k].data || !f->made[k].data)
            continue;
        tensors[k].data = f->made[k].data;
        err = pipe->device->ops->zero(pipe->compute, tensors[k].data,
                                      dp_spec_bytes(&pipe->borders[border].tensors[k]));
        if (!err)
            err = dp_compute_settle(pipe);
    }
    return err ? err : check_tensors(pipe, f, name, border, tensors);
}

static int fail_callback(const struct dp_pipeline *pipe, const struct frame *f, const char *name,
                         int ret)
{
    char what[128];

    dp_pipeline_describe(pipe, f->op, what, sizeof(what));
    return dp_fail(DP_ECALLBACK, "%s: callback %s failed with %d (%s)", what, name, ret,
                   dp_strerror(ret));
}

/* ---- frames --------------------------------------------------------------------------------- */

static int32_t global_mb(const struct dp_pipeline *pipe, const struct frame *f)
{
    return (int32_t)f->op->mb + f->slot->stream * pipe->config.schedule->mb_per_stream;
}

static DLTensor *const *grads_of(const struct dp_pipeline *pipe, const struct frame *f)
{
    bool second = global_mb(pipe, f) >= dp_plan_half(pipe->config.schedule);
    DLTensor **half = pipe->halves.grads[f->op->slot];
    return second && half ? half : f->stage->grads;
}

static void make_inputs(const struct dp_pipeline *pipe, struct frame *f)
{
    int border = f->slot->stage;

    if (f->op->at.in == DP_NOWHERE)
        view_batch(pipe, border, pipe->now.args->inputs, f->op->mb, f->in);
    else
        make_tensors(pipe, border, &pipe->layouts[border].activation,
                     address(pipe, f->op->at.in), f->in);
}

static void make_outputs(const struct dp_pipeline *pipe, struct frame *f)
{
    int border = f->slot->stage + 1;

    if (f->op->at.out == DP_NOWHERE)
        view_batch(pipe, border, (const DLTensor *const *)pipe->now.args->outputs, f->op->mb,
                   f->out);
    else
        make_tensors(pipe, border, &pipe->layouts[border].activation,
                     address(pipe, f->op->at.out), f->out);
}

static void frame_init(const struct dp_pipeline *pipe, struct frame *f, const struct dp_plan_op *op)
{
    const struct dp_pipeline_config *config = &pipe->config;

    f->op = op;
    f->slot = dp_pipeline_slot(pipe, op->slot);
    f->stage = &pipe->stages[op->slot];
    f->call = (struct dp_stage_call){
        .slot = op->slot,
        .stage = f->slot->stage,
        .mb = (int32_t)op->mb,
        .mb_global = global_mb(pipe, f),
        .step = pipe->step,
        .training = !config->schedule->forward_only,
        .random = dp_random_key(config->seed, pipe->step, (uint32_t)f->slot->stage,
                                (uint32_t)global_mb(pipe, f)),
        .save = address(pipe, op->at.save),
        .stream = pipe->native_stream,
        .in = f->in,
        .grads = grads_of(pipe, f),
    };
    make_inputs(pipe, f);
}

/* ---- batch ---------------------------------------------------------------------------------- */

/* A first stage whose micro-batches are not contiguous in the caller's batch. */
static int read_inputs(struct dp_pipeline *pipe, struct frame *f)
{
    const struct dp_border *border = &pipe->borders[0];
    int err = 0;

    if (!dp_slot_is_first(f->slot) || f->op->at.in == DP_NOWHERE)
        return 0;
    for (int k = 0; k < border->count && !err; k++) {
        struct dp_batch_cut cut = cut_of(pipe, &border->tensors[k]);
        err = dp_batch_read(&cut, pipe->now.args->inputs[k], (int)f->op->mb, f->in[k].data,
                            pipe->device->ops, pipe->compute);
    }
    return err ? err : dp_compute_settle(pipe);
}

static int write_outputs(struct dp_pipeline *pipe, struct frame *f)
{
    const struct dp_border *border = &pipe->borders[f->slot->stage + 1];
    int err = 0;

    if (!dp_slot_is_last(f->slot) || !pipe->now.args->outputs || f->op->at.out == DP_NOWHERE)
        return 0;
    for (int k = 0; k < border->count && !err; k++) {
        struct dp_batch_cut cut = cut_of(pipe, &border->tensors[k]);
        err = dp_batch_write(&cut, pipe->now.args->outputs[k], (int)f->op->mb, f->out[k].data,
                             pipe->device->ops, pipe->compute);
    }
    return err ? err : dp_compute_settle(pipe);
}

/* ---- loss ----------------------------------------------------------------------------------- */

/* *label is of this micro-batch; *out NULL where there are no labels. */
static int make_label(struct dp_pipeline *pipe, const struct frame *f, DLTensor *label,
                      const DLTensor **out)
{
    struct dp_batch_cut cut = cut_of(pipe, &pipe->label);
    const DLTensor *batch = pipe->now.args->label;

    *out = NULL;
    if (!batch)
        return 0;
    *label = (DLTensor){.device = pipe->device->dl,
                        .ndim = pipe->label.ndim,
                        .dtype = pipe->label.dtype,
                        .shape = pipe->label.shape};
    *out = label;
    if (!pipe->label_memory) {
        label->data = dp_batch_view(&cut, batch, (int)f->op->mb);
        return 0;
    }
    label->data = pipe->label_memory;
    int err = dp_batch_read(&cut, batch, (int)f->op->mb, label->data, pipe->device->ops,
                            pipe->compute);
    return err ? err : dp_compute_settle(pipe);
}

static int note_losses(struct dp_pipeline *pipe, const struct frame *f, int32_t count)
{
    struct dp_step_state *now = &pipe->now;
    char what[128];

    if (count < 1 || count > pipe->config.max_loss_values ||
        (now->loss_values && count != now->loss_values)) {
        dp_pipeline_describe(pipe, f->op, what, sizeof(what));
        return dp_fail(DP_EINVAL, "%s: the loss gave %d values, expected %s%d", what, count,
                       now->loss_values ? "as for other micro-batches " : "1 to ",
                       now->loss_values ? now->loss_values : pipe->config.max_loss_values);
    }
    now->loss_values = count;
    if (now->args->losses)
        memcpy(now->args->losses + (size_t)f->op->mb * (size_t)count, pipe->loss_memory,
               (size_t)count * sizeof(double));
    return 0;
}

static int take_loss(struct dp_pipeline *pipe, struct frame *f)
{
    const struct dp_pipeline_config *config = &pipe->config;
    const DLTensor *label;
    DLTensor memory;
    int32_t count = 0;

    if (!dp_slot_is_last(f->slot) || !config->loss)
        return 0;
    int err = make_label(pipe, f, &memory, &label);
    if (err)
        return err;
    err = config->loss->loss(config->loss_user, &f->call, f->out, label, pipe->loss_memory,
                             config->max_loss_values, &count);
    return err ? fail_callback(pipe, f, "loss", err) : note_losses(pipe, f, count);
}

static int start_from_loss(struct dp_pipeline *pipe, struct frame *f)
{
    const struct dp_pipeline_config *config = &pipe->config;
    const double *scales = pipe->now.args->loss_scales;
    const DLTensor *label;
    DLTensor memory;

    int err = make_label(pipe, f, &memory, &label);
    if (err)
        return err;
    make_outputs(pipe, f);
    remember(pipe, f, f->slot->stage + 1, f->gout);
    err = config->loss->loss_backward(config->loss_user, &f->call, f->out, label,
                                      scales ? scales[f->op->mb] : config->loss_scale, f->gout);
    if (err)
        return fail_callback(pipe, f, "loss_backward", err);
    return check_gradients(pipe, f, "the loss's gradient", f->slot->stage + 1, f->gout);
}

/* ---- one entry ------------------------------------------------------------------------------ */

static int begin_forward(struct dp_pipeline *pipe, struct frame *f, const struct dp_plan_op *op)
{
    frame_init(pipe, f, op);
    make_outputs(pipe, f);
    remember(pipe, f, f->slot->stage + 1, f->out);
    return read_inputs(pipe, f);
}

static int end_forward(struct dp_pipeline *pipe, struct frame *f)
{
    int err = check_tensors(pipe, f, "its output", f->slot->stage + 1, f->out);

    if (!err)
        err = take_loss(pipe, f);
    return err ? err : write_outputs(pipe, f);
}

static int begin_backward(struct dp_pipeline *pipe, struct frame *f, const struct dp_plan_op *op)
{
    frame_init(pipe, f, op);
    int border = f->slot->stage;

    make_tensors(pipe, border, &pipe->layouts[border].gradient, address(pipe, op->at.gin), f->gin);
    make_tensors(pipe, border + 1, &pipe->layouts[border + 1].gradient,
                 address(pipe, op->at.gout), f->gout);
    int err = dp_slot_is_last(f->slot) ? start_from_loss(pipe, f) : 0;
    remember(pipe, f, border, f->gin);
    return err;
}

static int end_backward(struct dp_pipeline *pipe, struct frame *f)
{
    return check_gradients(pipe, f, "its input gradient", f->slot->stage, f->gin);
}

static int run_forward(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    struct frame f;
    int err = begin_forward(pipe, &f, op);

    if (err)
        return err;
    err = f.stage->ops->forward(f.stage->user, &f.call, f.in, f.out);
    return err ? fail_callback(pipe, &f, "forward", err) : end_forward(pipe, &f);
}

static int run_backward(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    enum dp_backward_mode mode =
        op->kind == DP_PLAN_INPUT ? DP_BACKWARD_INPUT : DP_BACKWARD_FULL;
    struct frame f;
    int err = begin_backward(pipe, &f, op);

    if (err)
        return err;
    err = f.stage->ops->backward(f.stage->user, &f.call, f.gout, f.gin, mode);
    return err ? fail_callback(pipe, &f, "backward", err) : end_backward(pipe, &f);
}

static int run_pair(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    struct frame f, b;
    int err = begin_forward(pipe, &f, &op[0]);

    if (!err)
        err = begin_backward(pipe, &b, &op[1]);
    if (err)
        return err;
    err = f.stage->ops->fwd_bwd(f.stage->user, &f.call, f.in, f.out, b.stage->user, &b.call, b.gout,
                                b.gin);
    if (err)
        return fail_callback(pipe, &f, "fwd_bwd", err);
    err = end_forward(pipe, &f);
    return err ? err : end_backward(pipe, &b);
}

static int run_weight(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    struct frame f;

    frame_init(pipe, &f, op);
    int err = f.stage->ops->weight(f.stage->user, &f.call);
    return err ? fail_callback(pipe, &f, "weight", err) : 0;
}

int dp_compute_run(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    switch ((enum dp_plan_kind)op->kind) {
    case DP_PLAN_FORWARD:
        return op->pair ? run_pair(pipe, op) : run_forward(pipe, op);
    case DP_PLAN_BACKWARD:
    case DP_PLAN_INPUT:
        return run_backward(pipe, op);
    default:
        return run_weight(pipe, op);
    }
}
