/* SPDX-License-Identifier: Apache-2.0
 *
 * compute.c - entries that call the stage or the loss: their tensors, and what they must not change.
 */
#include "base/internal.h"
#include "pipeline/state.h"
#include "pipeline/steps.h"

#include "base/fail.h"
#include "pipeline/border.h"
#include "pipeline/offsets.h"
#include "pipeline/setup.h"

#include <stdio.h>
#include <string.h>

/* The arguments of the callbacks of one micro-batch in one stage. */
struct frame {
    const struct dp_plan_op *op;
    const struct dp_slot_step *of;
    const struct dp_slot *slot;
    const struct dp_stage *stage;
    struct dp_stage_call call;
    DLTensor in[DP_MAX_TENSORS], out[DP_MAX_TENSORS];
    DLTensor gin[DP_MAX_TENSORS], gout[DP_MAX_TENSORS];
    void *made[DP_MAX_TENSORS]; /* the data of what the callback is to fill, as it was handed out */
    DLTensor label_tensors[DP_MAX_TENSORS];
    const DLTensor *labels; /* of a last stage, NULL: none */
};

/* ---- tensors -------------------------------------------------------------------------------- */

static char *address(const struct dp_pipeline *pipe, size_t offset)
{
    return offset == DP_NOWHERE ? NULL : pipe->base.memory + offset;
}

static struct dp_side side_of(const struct dp_pipeline *pipe, int border)
{
    return (struct dp_side){&pipe->borders[border], pipe->blanks + (size_t)border * DP_MAX_TENSORS,
                            &pipe->layouts[border]};
}

/* The tensors of a border in a buffer; base NULL: nowhere. */
static void make_tensors(const struct dp_side *side, const struct dp_layout *layout, char *base,
                         DLTensor *tensors)
{
    const int count = side->border->count;

    for (int k = 0; k < count; k++) {
        tensors[k] = side->blanks[k];
        tensors[k].data = base && layout->offset[k] != DP_NOWHERE ? base + layout->offset[k] : NULL;
    }
}

/* A tensor of the caller's, or, where it is strided and must not be, the copy at `base`. */
static DLTensor given_tensor(const DLTensor *given, const struct dp_layout *layout, int k,
                             char *base)
{
    DLTensor t = *given;

    if (given->strides) {
        t.data = base + layout->offset[k];
        t.strides = NULL;
    }
    return t;
}

/* ---- what a callback must not have changed --------------------------------------------------- */

/* Not even one of another shape or type. */
static bool is_no_tensor(const void *made, const DLTensor *tensor)
{
    return (made && !tensor->data) || tensor->dtype.code == kDLOpaqueHandle ||
           tensor->ndim < 0 || (tensor->ndim && !tensor->shape);
}

/* Describe what is wrong, and restore the shape that all callbacks are handed. */
static int fail_tensor(struct dp_pipeline *pipe, const struct frame *f, const char *name,
                       int border, int k, const DLTensor *tensor)
{
    const struct dp_tensor_spec *spec = &pipe->borders[border].tensors[k];
    const bool none = is_no_tensor(f->made[k], tensor);
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
    if (none)
        return dp_fail(DP_EINVAL,
                       "%s: the stage left tensor %d of %s as no tensor (%s), expected %s %s", what,
                       k, name, tensor->data ? has_dtype : "no data", wants_dtype, wants);
    return dp_fail(
        DP_EMISMATCH,
        "%s: the stage left tensor %d of %s as %s %s, or changed its description, expected "
        "%s %s",
        what, k, name, has_dtype, has, wants_dtype, wants);
}

static bool is_as_made(const struct dp_tensor_spec *spec, const DLTensor *blank,
                       const DLTensor *tensor, const void *made)
{
    const size_t data = sizeof(tensor->data); /* comes first */

    if (tensor->data != made ||
        memcmp((const char *)tensor + data, (const char *)blank + data, sizeof(*blank) - data))
        return false;
    for (int i = 0; i < spec->ndim; i++)
        if (blank->shape[i] != spec->shape[i])
            return false;
    return true;
}

static void remember(struct frame *f, const struct dp_side *side, const DLTensor *tensors)
{
    for (int k = 0; k < side->border->count; k++)
        f->made[k] = tensors[k].data;
}

/* What a callback usually leaves behind: everything as it was handed out. */
static bool all_as_made(const struct frame *f, const struct dp_side *side, const DLTensor *tensors)
{
    const struct dp_border *b = side->border;

    for (int k = 0; k < b->count; k++)
        if (!is_as_made(&b->tensors[k], &side->blanks[k], &tensors[k], f->made[k]))
            return false;
    return true;
}

static int check_tensors(struct dp_pipeline *pipe, const struct frame *f, const char *name,
                         int border, const DLTensor *tensors)
{
    const struct dp_side side = side_of(pipe, border);

    for (int k = 0; k < side.border->count; k++) {
        const struct dp_tensor_spec *spec = &side.border->tensors[k];
        if (!is_as_made(spec, &side.blanks[k], &tensors[k], f->made[k]))
            return fail_tensor(pipe, f, name, border, k, &tensors[k]);
    }
    return 0;
}

/* Where the stage has put its own buffer into a tensor it was to fill: a border of one tensor is
 * sent from there, in all other cases it is copied. */
static int take_own_buffers(struct dp_pipeline *pipe, const struct frame *f, int border,
                            DLTensor *tensors, void **own)
{
    int count = pipe->borders[border].count, err = 0;

    for (int k = 0; k < count; k++) {
        void *data = tensors[k].data;
        if (data == f->made[k] || !data || !f->made[k])
            continue;
        tensors[k].data = f->made[k];
        if (own && count == 1 && !pipe->staged) {
            *own = data;
            continue;
        }
        if (!err)
            err = dp_device_copy(pipe->base.compute, f->made[k], data,
                                 dp_spec_bytes(&pipe->borders[border].tensors[k]));
        if (!err)
            err = dp_compute_sync(pipe);
        dp_compute_give_back(pipe, f->op->slot, data);
    }
    return err;
}

/* A gradient whose data has become NULL is missing: it becomes zeros. */
static int check_gradients(struct dp_pipeline *pipe, const struct frame *f, const char *name,
                           int border, DLTensor *tensors)
{
    int err = 0;

    for (int k = 0; k < pipe->borders[border].count && !err; k++) {
        if (tensors[k].data || !f->made[k])
            continue;
        tensors[k].data = f->made[k];
        err = dp_device_zero(pipe->base.compute, tensors[k].data,
                                      dp_spec_bytes(&pipe->borders[border].tensors[k]));
        if (!err)
            err = dp_compute_sync(pipe);
    }
    return err ? err : check_tensors(pipe, f, name, border, tensors);
}

/* ---- failed callbacks ------------------------------------------------------------------------ */

static int fail_callback(const struct dp_pipeline *pipe, const struct frame *f, const char *name,
                         int ret)
{
    const char *why = dp_callback_reason(ret);
    const char *wish = f->call.skips ? f->call.skips->wrong : "";
    char what[128];

    pipe->now.args->callback_error = ret;
    dp_pipeline_describe(pipe, f->op, what, sizeof(what));
    return dp_fail(DP_ECALLBACK, "%s: callback %s failed with %d (%s)%s%s", what, name, ret,
                   dp_strerror(ret), *why || *wish ? ": " : "", *why ? why : wish);
}

int dp_compute_settle(struct dp_pipeline *pipe, int slot)
{
    const struct dp_stage *stage = &pipe->base.stages[slot];
    const int ret = stage->ops->settle ? stage->ops->settle(stage->user) : 0;

    if (!ret)
        return 0;
    pipe->now.args->callback_error = ret;
    const char *why = dp_callback_reason(ret);
    const int at = dp_schedule_slot(pipe->base.config.schedule, pipe->base.rank, slot)->stage;
    return dp_fail(DP_ECALLBACK, "slot %d, stage %d: callback settle failed with %d (%s)%s%s", slot, at,
                   ret, dp_strerror(ret), *why ? ": " : "", why);
}

/* ---- frames --------------------------------------------------------------------------------- */

static DLTensor *const *grads_of(const struct dp_pipeline *pipe, const struct frame *f)
{
    return dp_accumulator_set(&pipe->accumulator, f->op->slot, f->op->set);
}

static void make_inputs(const struct dp_pipeline *pipe, struct frame *f)
{
    const struct dp_side *side = &f->of->in;
    const struct dp_layout *layout = &side->layout->activation;
    char *base = address(pipe, f->op->at.in);

    if (!dp_slot_is_first(f->slot)) {
        make_tensors(side, layout, base, f->in);
        return;
    }
    const DLTensor *given = dp_batch_at(&pipe->ends.inputs, f->op->mb);
    if (!base)
        f->call.in = given;
    for (int k = 0; k < side->border->count && base; k++)
        f->in[k] = given_tensor(&given[k], layout, k, base);
    f->call.args = pipe->ends.inputs.args[f->op->mb];
    f->call.kwargs = pipe->ends.inputs.kwargs[f->op->mb];
}

/* Where the caller wants a tensor of the output; NULL: nowhere. */
static const DLTensor *wanted_output(const struct dp_pipeline *pipe, const struct frame *f, int k)
{
    const struct dp_batch *outputs = &pipe->ends.outputs;

    if (!outputs->given || !dp_slot_is_last(f->slot) || f->op->kind == DP_PLAN_RECOMPUTE)
        return NULL;
    const DLTensor *wanted = dp_batch_at(outputs, f->op->mb) + k;
    return wanted->data ? wanted : NULL;
}

static void make_outputs(const struct dp_pipeline *pipe, struct frame *f)
{
    const struct dp_side *side = &f->of->out;

    make_tensors(side, &side->layout->activation, address(pipe, f->op->at.out), f->out);
    if (!pipe->ends.outputs.given)
        return;
    for (int k = 0; k < side->border->count; k++) {
        const DLTensor *wanted = wanted_output(pipe, f, k);
        if (wanted && !wanted->strides)
            f->out[k].data = wanted->data;
    }
}

static void make_output_gradients(const struct dp_pipeline *pipe, struct frame *f)
{
    const struct dp_side *side = &f->of->out;

    make_tensors(side, &side->layout->gradient, address(pipe, f->op->at.gout), f->gout);
    f->call.gout = f->gout;
}

void dp_compute_begin(struct dp_pipeline *pipe)
{
    const struct dp_pipeline_config *config = &pipe->base.config;

    for (int i = 0; i < pipe->base.slots; i++) {
        const struct dp_slot *slot = dp_pipeline_slot(pipe, i);
        struct dp_slot_step *of = &pipe->slot_steps[i];

        of->in = side_of(pipe, slot->stage);
        of->out = side_of(pipe, slot->stage + 1);
        of->slot = slot;
        of->stage = &pipe->base.stages[i];
        of->doing = dp_pipeline_doing(pipe->step, slot->stage);
        of->call = (struct dp_stage_call){
            .slot = i,
            .stage = slot->stage,
            .mb_global = config->first_mb + slot->stream * config->schedule->mb_per_stream,
            .step = pipe->step,
            .training = !config->schedule->forward_only,
            .random = dp_random_key(config->seed, pipe->step, (uint32_t)slot->stage, 0),
            .stream = pipe->native_stream,
        };
    }
}

/* The low bits of a key's stream are the micro-batch. */
static struct dp_random_key random_key(const struct dp_pipeline *pipe, const struct dp_stage_call *call)
{
    const uint32_t mb = (uint32_t)call->mb_global;

    if (mb >> 16)
        return dp_random_key(pipe->base.config.seed, pipe->step, (uint32_t)call->stage, mb);
    return (struct dp_random_key){call->random.key, call->random.stream | mb};
}

static void frame_init(struct dp_pipeline *pipe, struct frame *f, const struct dp_plan_op *op)
{
    const struct dp_microbatches *context = pipe->now.args->context;
    const struct dp_slot_step *of = &pipe->slot_steps[op->slot];
    struct dp_stage_call *call = &f->call;

    f->op = op;
    f->of = of;
    f->slot = of->slot;
    f->stage = of->stage;
    *call = of->call;
    call->mb = (int32_t)op->mb;
    call->mb_global += (int32_t)op->mb;
    call->discarded = op->recomputed;
    call->recomputing = op->kind == DP_PLAN_RECOMPUTE;
    call->random = random_key(pipe, call);
    call->save = address(pipe, op->at.save);
    call->save_input = address(pipe, op->at.save_input);
    call->save_weight = address(pipe, op->at.save_weight);
    call->handle = &pipe->handles[dp_pipeline_index(pipe, op)];
    call->in = f->in;
    if (context)
        call->context = &context->kwargs[call->mb_global - pipe->base.config.first_mb];
    call->grads = grads_of(pipe, f);
    if (pipe->skips.of_slot)
        call->skips = dp_skips_begin(&pipe->skips, (enum dp_plan_kind)op->kind, op->slot, op->mb);
    make_inputs(pipe, f);
}

static int fail_skips(struct dp_pipeline *pipe, const struct frame *f)
{
    char where[128];

    pipe->now.args->callback_error = DP_EINVAL;
    dp_pipeline_describe(pipe, f->op, where, sizeof(where));
    return dp_fail(DP_ECALLBACK, "%s: %s", where, f->call.skips->wrong);
}

static inline int end_skips(struct dp_pipeline *pipe, const struct frame *f)
{
    if (!f->call.skips)
        return 0;
    const int err = dp_skips_end(&pipe->skips, f->call.skips);
    return err || !f->call.skips->wrong[0] ? err : fail_skips(pipe, f);
}

/* ---- batch ---------------------------------------------------------------------------------- */

/* Copies of inputs of a first stage that are strided and must not be. */
static int read_inputs(struct dp_pipeline *pipe, struct frame *f)
{
    const DLTensor *given = dp_batch_at(&pipe->ends.inputs, f->op->mb);
    int err = 0;

    if (!dp_slot_is_first(f->slot) || f->op->at.in == DP_NOWHERE)
        return 0;
    for (int k = 0; k < pipe->borders[0].count && !err; k++)
        if (given[k].strides)
            err = dp_batch_copy(pipe->base.compute, &f->in[k], &given[k]);
    return err ? err : dp_compute_sync(pipe);
}

static int write_outputs(struct dp_pipeline *pipe, struct frame *f)
{
    int count = pipe->borders[f->slot->stage + 1].count, err = 0;

    if (!dp_slot_is_last(f->slot) || !pipe->ends.outputs.given)
        return 0;
    for (int k = 0; k < count && !err; k++) {
        const DLTensor *wanted = wanted_output(pipe, f, k);
        if (wanted && wanted->strides)
            err = dp_batch_copy(pipe->base.compute, wanted, &f->out[k]);
    }
    return err ? err : dp_compute_sync(pipe);
}

/* ---- loss ----------------------------------------------------------------------------------- */

/* The labels of this micro-batch. Those of a forward and of a backward are needed at once by a
 * pair: their copies lie in memory `side` 0 and 1. */
static int make_labels(struct dp_pipeline *pipe, struct frame *f, int side)
{
    const struct dp_layout *layout = &pipe->label_layout.activation;
    int err = 0;

    f->labels = NULL;
    if (!pipe->ends.labels.given)
        return 0;
    const DLTensor *given = dp_batch_at(&pipe->ends.labels, f->op->mb);
    f->labels = given;
    if (!pipe->label_memory)
        return 0;
    f->labels = f->label_tensors;
    for (int k = 0; k < pipe->labels.count && !err; k++) {
        f->label_tensors[k] =
            given_tensor(&given[k], layout, k,
                         pipe->label_memory + (size_t)side * dp_offset_align(layout->bytes));
        if (given[k].strides)
            err = dp_batch_copy(pipe->base.compute, &f->label_tensors[k], &given[k]);
    }
    return err ? err : dp_compute_sync(pipe);
}

static double scale_of(const struct dp_pipeline *pipe, const struct frame *f)
{
    const double *scales = pipe->now.args->loss_scales;
    return scales ? scales[f->op->mb] : pipe->base.config.loss_scale;
}

static int note_losses(struct dp_pipeline *pipe, const struct frame *f, int32_t count)
{
    struct dp_step_state *now = &pipe->now;
    char what[128];

    if (count < 1 || count > pipe->base.config.max_loss_values ||
        (now->loss_values && count != now->loss_values)) {
        dp_pipeline_describe(pipe, f->op, what, sizeof(what));
        return dp_fail(DP_EINVAL, "%s: the loss gave %d values, expected %s%d", what, count,
                       now->loss_values ? "as for other micro-batches " : "1 to ",
                       now->loss_values ? now->loss_values : pipe->base.config.max_loss_values);
    }
    now->loss_values = count;
    if (now->args->losses)
        memcpy(now->args->losses + (size_t)f->op->mb * (size_t)count, pipe->loss_memory,
               (size_t)count * sizeof(double));
    return 0;
}

static bool takes_loss(const struct dp_pipeline *pipe, const struct frame *f)
{
    return dp_slot_is_last(f->slot) && pipe->base.config.loss;
}

static int take_loss(struct dp_pipeline *pipe, struct frame *f)
{
    const struct dp_pipeline_config *config = &pipe->base.config;
    int32_t count = 0;

    if (!takes_loss(pipe, f))
        return 0;
    int err = make_labels(pipe, f, 0);
    if (err)
        return err;
    err = config->loss->loss(config->loss_user, &f->call, f->out, f->labels, pipe->loss_memory,
                             config->max_loss_values, &count);
    return err ? fail_callback(pipe, f, "loss", err) : note_losses(pipe, f, count);
}

static int start_from_loss(struct dp_pipeline *pipe, struct frame *f)
{
    const struct dp_pipeline_config *config = &pipe->base.config;
    int err = make_labels(pipe, f, 1);

    if (err)
        return err;
    make_outputs(pipe, f);
    remember(f, &f->of->out, f->gout);
    err = config->loss->loss_backward(config->loss_user, &f->call, f->out, f->labels,
                                      scale_of(pipe, f), f->gout);
    if (err)
        return fail_callback(pipe, f, "loss_backward", err);
    if (all_as_made(f, &f->of->out, f->gout))
        return 0;
    return check_gradients(pipe, f, "the loss's gradient", f->slot->stage + 1, f->gout);
}

/* ---- one entry ------------------------------------------------------------------------------ */

static int begin_forward(struct dp_pipeline *pipe, struct frame *f, const struct dp_plan_op *op)
{
    frame_init(pipe, f, op);
    make_outputs(pipe, f);
    remember(f, &f->of->out, f->out);
    return read_inputs(pipe, f);
}

/* The stage has handed over buffers of its own, or done what it must not. */
static int check_changed_outputs(struct dp_pipeline *pipe, struct frame *f)
{
    bool sent = f->slot->next >= 0 && f->slot->next != pipe->base.rank && !f->call.recomputing;
    int err = take_own_buffers(pipe, f, f->slot->stage + 1, f->out,
                               sent ? dp_own_buffer(pipe, f->op, DP_CHANNEL_ACTIVATION) : NULL);

    return err ? err : check_tensors(pipe, f, "its output", f->slot->stage + 1, f->out);
}

static int end_forward(struct dp_pipeline *pipe, struct frame *f)
{
    int err = all_as_made(f, &f->of->out, f->out) ? 0 : check_changed_outputs(pipe, f);
    return err ? err : write_outputs(pipe, f);
}

/* The caller's gradients of its outputs; those that are absent are zero. */
static int start_from_given(struct dp_pipeline *pipe, struct frame *f)
{
    const DLTensor *given = dp_batch_at(&pipe->ends.output_grads, f->op->mb);
    int border = f->slot->stage + 1, err = 0;

    for (int k = 0; k < pipe->borders[border].count && !err; k++) {
        DLTensor *gout = &f->gout[k];
        if (!gout->data)
            continue;
        if (!given[k].data)
            err = dp_device_zero(pipe->base.compute, gout->data,
                                 dp_spec_bytes(&pipe->borders[border].tensors[k]));
        else
            err = dp_batch_copy(pipe->base.compute, gout, &given[k]);
    }
    return err ? err : dp_compute_sync(pipe);
}

static int start_last(struct dp_pipeline *pipe, struct frame *f)
{
    if (pipe->ends.output_grads.given)
        return start_from_given(pipe, f);
    return pipe->base.config.loss ? start_from_loss(pipe, f) : 0; /* opaque ends: the stage knows both */
}

/* With the gradient of the loss, unless a pair takes that itself. */
static int begin_backward(struct dp_pipeline *pipe, struct frame *f, const struct dp_plan_op *op,
                          bool in_pair)
{
    frame_init(pipe, f, op);
    const struct dp_side *side = &f->of->in;

    make_tensors(side, &side->layout->gradient, address(pipe, op->at.gin), f->gin);
    make_output_gradients(pipe, f);
    int err = dp_slot_is_last(f->slot) && !in_pair ? start_last(pipe, f) : 0;
    remember(f, side, f->gin);
    return err;
}

static int check_changed_gradients(struct dp_pipeline *pipe, struct frame *f)
{
    bool sent = f->slot->prev >= 0 && f->slot->prev != pipe->base.rank;
    int err = take_own_buffers(pipe, f, f->slot->stage, f->gin,
                               sent ? dp_own_buffer(pipe, f->op, DP_CHANNEL_GRADIENT) : NULL);
    return err ? err : check_gradients(pipe, f, "its input gradient", f->slot->stage, f->gin);
}

static int end_backward(struct dp_pipeline *pipe, struct frame *f)
{
    return all_as_made(f, &f->of->in, f->gin) ? 0 : check_changed_gradients(pipe, f);
}

static int run_forward(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    struct frame f;
    int err = begin_forward(pipe, &f, op);

    if (err)
        return err;
    err = f.stage->ops->forward(f.stage->user, &f.call, f.call.in, f.out);
    if (err)
        return fail_callback(pipe, &f, "forward", err);
    err = end_skips(pipe, &f);
    if (!err)
        err = end_forward(pipe, &f);
    return err || f.call.recomputing ? err : take_loss(pipe, &f);
}

static int run_backward(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    enum dp_backward_mode mode =
        op->kind == DP_PLAN_INPUT ? DP_BACKWARD_INPUT : DP_BACKWARD_FULL;
    struct frame f;
    int err = begin_backward(pipe, &f, op, false);

    if (err)
        return err;
    err = f.stage->ops->backward(f.stage->user, &f.call, f.gout, f.gin, mode);
    if (err)
        return fail_callback(pipe, &f, "backward", err);
    err = end_skips(pipe, &f);
    return err ? err : end_backward(pipe, &f);
}

/* What the hook of a pair needs for the loss, where its forward or its backward is of a last stage. */
static int make_forward_loss(struct dp_pipeline *pipe, struct frame *f, struct dp_pair_loss *loss)
{
    int err = make_labels(pipe, f, 0);

    *loss = (struct dp_pair_loss){.ops = pipe->base.config.loss,
                                  .user = pipe->base.config.loss_user,
                                  .labels = f->labels,
                                  .values = pipe->loss_memory,
                                  .max = pipe->base.config.max_loss_values,
                                  .count = &pipe->now.pair_losses};
    pipe->now.pair_losses = 0;
    return err;
}

static int make_backward_loss(struct dp_pipeline *pipe, struct frame *b, struct dp_pair_loss *loss)
{
    int err = make_labels(pipe, b, 1);

    if (!err)
        make_outputs(pipe, b);
    *loss = (struct dp_pair_loss){.ops = pipe->base.config.loss,
                                  .user = pipe->base.config.loss_user,
                                  .labels = b->labels,
                                  .out = b->out,
                                  .scale = scale_of(pipe, b)};
    return err;
}

static int call_pair(struct dp_pipeline *pipe, struct frame *f, struct frame *b)
{
    struct dp_pair_loss f_loss, b_loss;
    bool f_last = takes_loss(pipe, f), b_last = takes_loss(pipe, b);
    int err = f_last ? make_forward_loss(pipe, f, &f_loss) : 0;

    if (!err && b_last)
        err = make_backward_loss(pipe, b, &b_loss);
    if (err)
        return err;
    const struct dp_pair pair = {
        .forward = {f->stage->user, &f->call, f->call.in, f->out, f_last ? &f_loss : NULL},
        .backward = {b->stage->user, &b->call, b->gout, b->gin, b_last ? &b_loss : NULL},
    };
    err = f->stage->ops->fwd_bwd(&pair);
    if (err)
        return fail_callback(pipe, f, "fwd_bwd", err);
    return f_last ? note_losses(pipe, f, pipe->now.pair_losses) : 0;
}

static int run_pair(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    struct frame f, b;
    int err = begin_forward(pipe, &f, &op[0]);

    if (!err)
        err = begin_backward(pipe, &b, &op[1], true);
    if (!err)
        err = call_pair(pipe, &f, &b);
    if (!err)
        err = end_skips(pipe, &f);
    if (!err)
        err = end_skips(pipe, &b);
    if (!err)
        err = end_forward(pipe, &f);
    return err ? err : end_backward(pipe, &b);
}

static int run_weight(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    struct frame f;

    frame_init(pipe, &f, op);
    make_output_gradients(pipe, &f);
    int err = f.stage->ops->weight(f.stage->user, &f.call);
    return err ? fail_callback(pipe, &f, "weight", err) : end_skips(pipe, &f);
}

static void set_border(struct dp_pipeline *pipe, int index, const int64_t *now)
{
    dp_extents_apply(&pipe->declared[index], pipe->base.config.max_extents, now, &pipe->borders[index]);
    dp_extents_apply(&pipe->declared[index], pipe->base.config.max_extents, now,
                     &pipe->handed_out[index]);
}

static void set_extents(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    const struct dp_slot *slot = dp_pipeline_slot(pipe, op->slot);
    size_t global = (size_t)slot->stream * (size_t)pipe->base.config.schedule->mb_per_stream + op->mb;
    const int64_t *now = pipe->base.extents[global];

    set_border(pipe, slot->stage, now);
    set_border(pipe, slot->stage + 1, now);
    dp_extents_apply(&pipe->declared_labels, pipe->base.config.max_extents, now, &pipe->labels);
}

/* The borders of a stage have one shape at a time: the two of a pair come one after the other. */
static int run_with_extents(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    int err;

    set_extents(pipe, op);
    if (op->kind == DP_PLAN_FORWARD || op->kind == DP_PLAN_RECOMPUTE)
        err = run_forward(pipe, op);
    else
        err = op->kind == DP_PLAN_WEIGHT ? run_weight(pipe, op) : run_backward(pipe, op);
    if (err || !op->pair)
        return err;
    set_extents(pipe, op + 1);
    return run_backward(pipe, op + 1);
}

static int run_call(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    if (pipe->base.extents)
        return run_with_extents(pipe, op);
    switch ((enum dp_plan_kind)op->kind) {
    case DP_PLAN_FORWARD:
        return op->pair ? run_pair(pipe, op) : run_forward(pipe, op);
    case DP_PLAN_RECOMPUTE:
        return run_forward(pipe, op);
    case DP_PLAN_BACKWARD:
    case DP_PLAN_INPUT:
        return run_backward(pipe, op);
    default:
        return run_weight(pipe, op);
    }
}

/* ---- loaders --------------------------------------------------------------------------------- */

/* An end of the model whose micro-batches come from a loader. */
struct source {
    const struct dp_loader *loader; /* NULL: the caller has handed over all of them */
    struct dp_batch *batch;
    const struct dp_border *declared;
    const char *what;
};

static struct source inputs_of(struct dp_pipeline *pipe)
{
    return (struct source){pipe->now.args->input_loader, &pipe->ends.inputs, &pipe->declared[0],
                           "input"};
}

static struct source labels_of(struct dp_pipeline *pipe)
{
    return (struct source){pipe->now.args->label_loader, &pipe->ends.labels, &pipe->declared_labels,
                           "label"};
}

/* ---- taking and giving back ------------------------------------------------------------------ */

static int fail_load(const struct dp_pipeline *pipe, const struct dp_plan_op *op,
                     const struct source *from, int ret)
{
    char where[128];

    pipe->now.args->callback_error = ret;
    dp_pipeline_describe(pipe, op, where, sizeof(where));
    return dp_fail(DP_ECALLBACK, "%s: callback load of the %ss failed with %d (%s)", where,
                   from->what, ret, dp_strerror(ret));
}

static int take_loaded(struct dp_pipeline *pipe, const struct dp_plan_op *op, const struct source *from)
{
    const int32_t mb = (int32_t)op->mb;
    const int32_t global =
        mb + dp_pipeline_slot(pipe, op->slot)->stream * pipe->base.config.schedule->mb_per_stream;
    const struct dp_tree *args = NULL, *kwargs = NULL;
    struct dp_border now = *from->declared;

    int err = from->loader->load(from->loader->user, mb, &args, &kwargs);
    if (err)
        return fail_load(pipe, op, from, err);
    from->batch->loaded[mb] = true;
    if (pipe->base.extents)
        dp_extents_apply(from->declared, pipe->base.config.max_extents, pipe->base.extents[global],
                         &now);
    return dp_batch_take_one(from->batch, mb, args, kwargs, &now, pipe->base.device, from->what);
}

static void give_back(const struct source *from, int32_t mb)
{
    if (!from->batch->loaded || !from->batch->loaded[mb])
        return;
    from->batch->loaded[mb] = false;
    if (from->loader->release)
        from->loader->release(from->loader->user, mb);
}

/* ---- around an entry ------------------------------------------------------------------------- */

/* Where the step has a loader: take what a forward needs, give back what nothing reads any more. */
static int load_before(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    const struct dp_slot *slot = dp_pipeline_slot(pipe, op->slot);
    const struct source inputs = inputs_of(pipe), labels = labels_of(pipe);
    int err = 0;

    if (op->kind != DP_PLAN_FORWARD)
        return 0;
    if (inputs.loader && dp_slot_is_first(slot))
        err = take_loaded(pipe, op, &inputs);
    if (!err && labels.loader && dp_slot_is_last(slot))
        err = take_loaded(pipe, op, &labels);
    return err;
}

/* Inputs are read until the weight part, labels until the backward begins. */
static void load_after(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    const struct dp_slot *slot = dp_pipeline_slot(pipe, op->slot);
    const struct source inputs = inputs_of(pipe), labels = labels_of(pipe);
    const bool forward = op->kind == DP_PLAN_FORWARD && pipe->base.config.schedule->forward_only;
    const bool backward = op->kind == DP_PLAN_BACKWARD;

    if (inputs.loader && dp_slot_is_first(slot) &&
        (forward || backward || op->kind == DP_PLAN_WEIGHT))
        give_back(&inputs, (int32_t)op->mb);
    if (labels.loader && dp_slot_is_last(slot) &&
        (forward || backward || op->kind == DP_PLAN_INPUT))
        give_back(&labels, (int32_t)op->mb);
}

void dp_load_drop(struct dp_pipeline *pipe)
{
    const struct source sources[] = {inputs_of(pipe), labels_of(pipe)};

    for (int i = 0; i < 2; i++)
        for (int32_t mb = 0; mb < sources[i].batch->count && sources[i].loader; mb++)
            give_back(&sources[i], mb);
}

static int run_loaded(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    int err = load_before(pipe, op);

    if (!err)
        err = run_call(pipe, op);
    for (int i = 0; i <= op->pair && !err; i++)
        load_after(pipe, op + i);
    return err;
}

int dp_compute_run(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    const struct dp_step *step = pipe->now.args;

    return step->input_loader || step->label_loader ? run_loaded(pipe, op) : run_call(pipe, op);
}

void dp_compute_drop_handle(struct dp_pipeline *pipe, int slot, int32_t mb)
{
    const size_t i =
        (size_t)slot * (size_t)pipe->base.config.schedule->mb_per_stream + (size_t)mb;
    void *handle = pipe->handles[i];

    pipe->handles[i] = NULL;
    if (handle && pipe->base.stages[slot].ops->drop)
        pipe->base.stages[slot].ops->drop(pipe->base.stages[slot].user, handle);
}
