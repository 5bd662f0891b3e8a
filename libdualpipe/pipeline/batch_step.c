/* SPDX-License-Identifier: Apache-2.0
 *
 * batch_step.c - what dp_split, dp_pipeline_step and dp_merge do one after the other.
 */
#include <dualpipe/batch_step.h>

#include "base/fail.h"
#include "base/sized.h"
#include "base/tensor.h"
#include "microbatch/tree.h"
#include "pipeline/base.h"
#include "pipeline/border.h"
#include "pipeline/steps.h"

#include <stdlib.h>
#include <string.h>

/* What is made for a step, and freed after it; the arena holds all that is no split. */
struct dp_batch_held {
    struct dp_microbatches *inputs, *labels, *context, *grads;
    struct dp_microbatches outputs;
    struct dp_step step; /* the caller's, with all of this */
    struct dp_arena arena;
};

static void drop(struct dp_batch_step *batch)
{
    struct dp_batch_held *held = batch->held;

    batch->held = NULL;
    if (!held)
        return;
    dp_microbatches_free(held->inputs);
    dp_microbatches_free(held->labels);
    dp_microbatches_free(held->context);
    dp_microbatches_free(held->grads);
    dp_arena_fini(&held->arena);
    free(held);
}

static int no_memory(int32_t count)
{
    return dp_fail(DP_ENOMEM, "no memory for a step of %d micro-batches", count);
}

/* ---- the step's schedule and extents --------------------------------------------------------- */

static const struct dp_schedule *schedule_of(const struct dp_pipeline_base *base,
                                             const struct dp_batch_step *batch)
{
    return batch->step.schedule ? batch->step.schedule : base->programs[0].schedule;
}

/* How many micro-batches the rows of a stream make, where `most` were asked for. */
static int64_t made_of(const struct dp_batch_step *batch, int32_t most)
{
    const int64_t each = batch->rows / most + (batch->rows % most != 0);

    if (batch->split.rule == DP_CUT_CHUNK)
        return (batch->rows - 1) / each + 1;
    return batch->rows < most && batch->split.shrink != DP_SHRINK_NEVER ? batch->rows : most;
}

/* Fewer micro-batches than the schedule has: that one which has as many. */
static int shrink(const struct dp_pipeline_base *base, const struct dp_batch_step *batch,
                  const struct dp_schedule **s)
{
    const bool forward_only = (*s)->forward_only;

    if (batch->rows <= 0 || batch->step.schedule)
        return 0;
    const int64_t made = made_of(batch, (*s)->mb_per_stream);
    if (made == (*s)->mb_per_stream)
        return 0;
    for (int i = 0; i < base->program_count; i++) {
        const struct dp_schedule *other = base->programs[i].schedule;
        if (other->mb_per_stream != made || other->forward_only != forward_only)
            continue;
        *s = other;
        return 0;
    }
    return dp_fail(DP_EINVAL,
                   "rows: %lld make %lld of %d micro-batches, expected all, or a schedule of "
                   "%lld micro-batches among those of the pipeline",
                   (long long)batch->rows, (long long)made, (*s)->mb_per_stream, (long long)made);
}

/* Rows are cut by the rule of the arguments, in each stream alike. */
static int make_extents(const struct dp_pipeline_base *base, const struct dp_batch_step *batch,
                        struct dp_batch_held *held, const struct dp_schedule *s)
{
    int64_t(*extents)[DP_MAX_EXTENTS], begin;

    if (batch->rows < 0)
        return dp_fail(DP_EINVAL, "rows: %lld, expected at least 1, or 0",
                       (long long)batch->rows);
    if (!batch->rows || batch->split.mask)
        return 0;
    if (batch->step.extents)
        return dp_fail(DP_EINVAL, "extents: given, expected NULL beside rows");
    extents = dp_arena_array(&held->arena, (size_t)s->microbatches, sizeof(*extents));
    if (!extents)
        return no_memory(s->microbatches);
    for (int32_t mb = 0; mb < s->microbatches; mb++) {
        memcpy(extents[mb], base->config.max_extents, sizeof(extents[mb]));
        dp_cut_window(batch->split.rule, batch->rows, s->mb_per_stream, mb % s->mb_per_stream,
                      &begin, &extents[mb][0]);
    }
    held->step.extents = (const int64_t(*)[DP_MAX_EXTENTS])extents;
    return 0;
}

/* ---- arguments ------------------------------------------------------------------------------- */

/* What goes with the arguments is cut by their rule. */
static int cut(const struct dp_batch_step *batch, const struct dp_tree *args,
               const struct dp_tree *kwargs, const struct dp_split_options *options,
               const struct dp_schedule *s, struct dp_microbatches **out)
{
    struct dp_split_options o = *options;

    o.rule = batch->split.rule;
    if (!args && !kwargs)
        return 0;
    if (!o.count)
        o.count = s->mb_per_stream;
    return dp_split(args, kwargs, &o, out);
}

static int check_unset(const struct dp_step *step)
{
    const struct {
        const void *member;
        const char *name;
    } unset[] = {{step->inputs, "inputs"},
                 {step->labels, "labels"},
                 {step->input_loader, "input_loader"},
                 {step->label_loader, "label_loader"},
                 {step->outputs, "outputs"},
                 {step->output_grads, "output_grads"},
                 {step->losses, "losses"}};

    for (size_t i = 0; i < sizeof(unset) / sizeof(unset[0]); i++)
        if (unset[i].member)
            return dp_fail(DP_EINVAL, "step.%s: given, expected NULL in a step of a whole batch",
                           unset[i].name);
    return 0;
}

/* ---- room for outputs and losses ------------------------------------------------------------- */

static int32_t last_mb_global(const struct dp_pipeline_base *base, const struct dp_schedule *s,
                              int32_t mb)
{
    return dp_base_slot(base, base->last_slot)->stream * s->mb_per_stream + mb;
}

static bool make_output(struct dp_arena *arena, const struct dp_border *border, struct dp_tree *out)
{
    DLTensor *tensors = dp_arena_array(arena, (size_t)border->count, sizeof(*tensors));
    struct dp_tree *leaves = dp_arena_array(arena, (size_t)border->count, sizeof(*leaves));

    for (int k = 0; k < border->count && tensors && leaves; k++) {
        const struct dp_tensor_spec *spec = &border->tensors[k];
        int64_t *shape = dp_arena_array(arena, DP_MAX_DIMS, sizeof(*shape));
        void *data = dp_arena_data(arena, dp_spec_bytes(spec) + 1);
        if (!shape || !data)
            return false;
        memcpy(shape, spec->shape, sizeof(spec->shape));
        tensors[k] = (DLTensor){.data = data,
                                .device = {kDLCPU, 0},
                                .ndim = spec->ndim,
                                .dtype = spec->dtype,
                                .shape = shape};
        leaves[k] = dp_tensor(&tensors[k]);
    }
    if (tensors && leaves)
        *out = dp_tuple(border->count, leaves);
    return tensors && leaves;
}

static int make_outputs(const struct dp_pipeline_base *base, const struct dp_batch_step *batch,
                        struct dp_batch_held *held, const struct dp_schedule *s)
{
    const struct dp_border *declared = &base->config.borders[s->stages];
    struct dp_tree *outputs;

    if (!batch->outputs)
        return 0;
    if (base->out_of_reach)
        return dp_fail(DP_EUNSUPPORTED, "outputs: wanted of a pipeline whose memory the CPU does "
                                        "not reach, expected dp_step.outputs");
    outputs = dp_arena_array(&held->arena, (size_t)s->mb_per_stream, sizeof(*outputs));
    bool made = outputs != NULL;
    for (int32_t mb = 0; mb < s->mb_per_stream && made; mb++) {
        struct dp_border now = *declared;
        if (held->step.extents)
            dp_extents_apply(declared, base->config.max_extents,
                             held->step.extents[last_mb_global(base, s, mb)], &now);
        made = make_output(&held->arena, &now, &outputs[mb]);
    }
    if (!made)
        return no_memory(s->mb_per_stream);
    held->outputs = (struct dp_microbatches){.count = s->mb_per_stream, .args = outputs};
    held->step.outputs = &held->outputs;
    return 0;
}

static int make_results(const struct dp_pipeline_base *base, const struct dp_batch_step *batch,
                        struct dp_batch_held *held, const struct dp_schedule *s)
{
    const int32_t values = base->config.max_loss_values;

    if (batch->unused)
        return 0;
    if (base->last_slot < 0)
        return batch->outputs || batch->losses
                   ? dp_fail(DP_EINVAL,
                             "%s: given, expected NULL on rank %d: it holds no last stage",
                             batch->outputs ? "outputs" : "losses", base->rank)
                   : 0;
    int err = make_outputs(base, batch, held, s);
    if (err || !batch->losses)
        return err;
    held->step.losses = dp_arena_array(&held->arena, (size_t)s->mb_per_stream * (size_t)values,
                                       sizeof(double));
    return held->step.losses ? 0 : no_memory(s->mb_per_stream);
}

/* ---- results --------------------------------------------------------------------------------- */

/* The memory of a step ends with it: a result that would refer to that of micro-batch 0 is a copy. */
static int fold_one(void *user, struct dp_tree *acc, const struct dp_tree *value, int32_t mb,
                    int32_t count)
{
    (void)user, (void)count;
    if (!dp_tensor_same_shape(acc->tensor, value->tensor))
        return DP_EMISMATCH;
    if (!mb)
        dp_tensor_copy_elements(acc->tensor, value->tensor);
    return mb && !dp_tensor_same_elements(acc->tensor, value->tensor) ? DP_EMISMATCH : 0;
}

static bool refers(const struct dp_tree *spec)
{
    return spec->kind != DP_TREE_CHUNK && spec->kind != DP_TREE_STACK &&
           spec->kind != DP_TREE_REDUCE;
}

static int copying_spec(struct dp_arena *arena, const struct dp_tree *spec, struct dp_tree *out)
{
    static const struct dp_reducer one = {.name = "Replicate", .fold = fold_one};
    int32_t count;
    int err = dp_tree_check(spec, "spec", false, &count);

    if (err)
        return err;
    const struct dp_tree **flat = dp_arena_array(arena, (size_t)count + 1, sizeof(*flat));
    struct dp_tree *leaves = dp_arena_array(arena, (size_t)count + 1, sizeof(*leaves));
    if (flat && leaves) {
        dp_tree_flatten(spec, NULL, "spec", flat);
        for (int32_t i = 0; i < count; i++)
            leaves[i] = refers(flat[i]) ? dp_reduce(&one) : *flat[i];
    }
    return flat && leaves && dp_tree_rebuild(arena, spec, leaves, false, out)
               ? 0
               : dp_fail(DP_ENOMEM, "no memory for a spec of %d leaves", count);
}

static int merge_results(struct dp_batch_held *held, const struct dp_tree *results, int32_t count,
                         const struct dp_merge_options *options, enum dp_cut_rule rule,
                         struct dp_tree **out)
{
    struct dp_merge_options o = *options;
    struct dp_tree spec;
    int err = o.spec ? copying_spec(&held->arena, o.spec, &spec) : 0;

    if (o.spec)
        o.spec = &spec;
    o.rule = rule;
    return err ? err : dp_merge(results, count, &o, out);
}

static int merge_outputs(const struct dp_batch_step *batch, struct dp_tree **out)
{
    struct dp_batch_held *held = batch->held;
    const int32_t count = held->outputs.count;
    struct dp_tree *results = dp_arena_array(&held->arena, (size_t)count, sizeof(*results));

    if (!results)
        return no_memory(count);
    for (int32_t mb = 0; mb < count; mb++) {
        const struct dp_tree *tuple = &held->outputs.args[mb];
        results[mb] = tuple->count == 1 ? tuple->items[0] : *tuple;
    }
    return merge_results(held, results, count, &batch->merge, batch->split.rule, out);
}

static bool is_container(const struct dp_tree *spec)
{
    return spec && (spec->kind == DP_TREE_TUPLE || spec->kind == DP_TREE_LIST ||
                    spec->kind == DP_TREE_DICT);
}

/* Of each micro-batch one tensor, or one for each value. */
static int merge_losses(struct dp_batch_step *batch, int32_t count, struct dp_tree **out)
{
    const struct dp_tree by_rows = dp_stack(0);
    struct dp_batch_held *held = batch->held;
    struct dp_merge_options options = batch->loss_merge;
    const bool apart = is_container(options.spec);
    const size_t values = (size_t)held->step.loss_values, per_mb = apart ? values : 1;
    struct dp_tree *results = dp_arena_array(&held->arena, (size_t)count, sizeof(*results));
    struct dp_tree *leaves = dp_arena_array(&held->arena, (size_t)count * per_mb, sizeof(*leaves));
    DLTensor *tensors = dp_arena_array(&held->arena, (size_t)count * per_mb, sizeof(*tensors));
    int64_t shape = (int64_t)values;

    if (!results || !leaves || !tensors)
        return no_memory(count);
    for (size_t mb = 0; mb < (size_t)count; mb++) {
        for (size_t i = 0; i < per_mb; i++) {
            DLTensor *t = &tensors[mb * per_mb + i];
            *t = (DLTensor){.data = &held->step.losses[mb * values + i],
                            .device = {kDLCPU, 0},
                            .ndim = !apart,
                            .dtype = {kDLFloat, 64, 1},
                            .shape = &shape};
            leaves[mb * per_mb + i] = dp_tensor(t);
        }
        results[mb] = apart ? dp_tuple((int32_t)per_mb, &leaves[mb * per_mb]) : leaves[mb];
    }
    if (!options.spec)
        options.spec = &by_rows;
    return merge_results(held, results, count, &options, batch->split.rule, out);
}

/* Of a rank without stages: its arguments, in nodes of their own. */
static int pass_arguments(const struct dp_batch_step *batch, struct dp_tree **out)
{
    struct dp_arena *arena;
    int32_t count;
    int err = dp_tree_check(batch->args, "args", true, &count);

    if (err)
        return err;
    struct dp_tree *root = dp_arena_object_new(sizeof(*root), &arena);
    const struct dp_tree **flat =
        root ? dp_arena_array(arena, (size_t)count + 1, sizeof(*flat)) : NULL;
    struct dp_tree *leaves = flat ? dp_arena_array(arena, (size_t)count + 1, sizeof(*leaves)) : NULL;
    if (leaves) {
        dp_tree_flatten(batch->args, NULL, "args", flat);
        for (int32_t i = 0; i < count; i++)
            leaves[i] = *flat[i];
    }
    if (!leaves || !dp_tree_rebuild(arena, batch->args, leaves, true, root)) {
        dp_tree_free(root);
        return no_memory(1);
    }
    *out = root;
    return 0;
}

static int merge(struct dp_batch_step *batch)
{
    const int32_t count = batch->held->step.schedule->mb_per_stream;
    struct dp_tree *outputs = NULL, *losses = NULL;

    if (batch->unused)
        return batch->outputs && batch->args ? pass_arguments(batch, batch->outputs) : 0;
    int err = batch->held->step.outputs ? merge_outputs(batch, &outputs) : 0;

    if (!err && batch->losses && batch->held->step.loss_values)
        err = merge_losses(batch, count, &losses);
    if (err) {
        dp_tree_free(outputs);
        return err;
    }
    if (batch->outputs)
        *batch->outputs = outputs;
    if (batch->losses)
        *batch->losses = losses;
    return 0;
}

/* ---- a step ----------------------------------------------------------------------------------- */

static int make_context(struct dp_batch_step *batch, const struct dp_schedule *s)
{
    struct dp_batch_held *held = batch->held;

    if (!batch->context)
        return 0;
    if (batch->step.context)
        return dp_fail(DP_EINVAL, "step.context: given, expected NULL beside context");
    if (s->streams > 1)
        return dp_fail(DP_EUNSUPPORTED, "context: given, expected step.context where a schedule "
                                        "has two streams");
    int err = cut(batch, NULL, batch->context, &batch->context_split, s, &held->context);
    held->step.context = held->context;
    return err;
}

static int make_step(const struct dp_pipeline_base *base, struct dp_batch_step *batch)
{
    const struct dp_schedule *s = schedule_of(base, batch);
    struct dp_batch_held *held = batch->held;
    int err = check_unset(&batch->step);

    if (!err)
        err = shrink(base, batch, &s);
    batch->unused = !base->slots;
    held->step = batch->step;
    held->step.schedule = s;
    if (!err)
        err = make_extents(base, batch, held, s);
    if (!err && !batch->unused)
        err = cut(batch, batch->args, batch->kwargs, &batch->split, s, &held->inputs);
    if (!err)
        err = cut(batch, batch->labels, NULL, &batch->label_split, s, &held->labels);
    if (!err)
        err = make_context(batch, s);
    if (!err)
        err = make_results(base, batch, held, s);
    held->step.inputs = held->inputs;
    held->step.labels = held->labels;
    return err;
}

static int check_call(const struct dp_pipeline *pipe, const struct dp_batch_step *batch,
                      bool halfway)
{
    if (!pipe || !batch)
        return dp_fail(DP_EINVAL, "a step without %s", pipe ? "a batch" : "a pipeline");
    if (halfway && (!batch->held || dp_step_under_way(pipe) != &batch->held->step))
        return dp_fail(DP_ESTATE, "dp_pipeline_backward_batch: expected the batch of "
                                  "dp_pipeline_forward_batch");
    if (!halfway && (batch->held || dp_step_under_way(pipe)))
        return dp_fail(DP_ESTATE, "a step of a batch after a forward: expected the backward "
                                  "first");
    DP_RESERVED(batch, "batch");
    return 0;
}

/* Where the step cannot even begin here, the other ranks must not wait for it. */
static int carry_out(struct dp_pipeline *pipe, struct dp_batch_step *batch,
                     int (*call)(struct dp_pipeline *pipe, struct dp_step *step))
{
    batch->held = calloc(1, sizeof(*batch->held));
    int err = batch->held ? make_step(dp_base_of(pipe), batch) : no_memory(1);

    if (err)
        return dp_step_abort(pipe, err);
    err = call(pipe, &batch->held->step);
    batch->step.loss_values = batch->held->step.loss_values;
    batch->step.callback_error = batch->held->step.callback_error;
    batch->step.forward_only = batch->held->step.forward_only;
    return err;
}

int dp_pipeline_step_batch(struct dp_pipeline *pipe, struct dp_batch_step *batch)
{
    int err = check_call(pipe, batch, false);

    if (err)
        return err;
    err = carry_out(pipe, batch, dp_pipeline_step);
    if (!err)
        err = merge(batch);
    drop(batch);
    return err;
}

int dp_pipeline_forward_batch(struct dp_pipeline *pipe, struct dp_batch_step *batch)
{
    int err = check_call(pipe, batch, false);

    if (err)
        return err;
    err = carry_out(pipe, batch, dp_pipeline_forward);
    if (!err && (err = merge(batch)))
        err = dp_step_abort(pipe, err);
    if (err || !dp_step_under_way(pipe))
        drop(batch);
    return err;
}

int dp_pipeline_backward_batch(struct dp_pipeline *pipe, struct dp_batch_step *batch)
{
    int err = check_call(pipe, batch, true);
    struct dp_split_options options;

    if (err)
        return err;
    struct dp_batch_held *held = batch->held;
    options = batch->grad_split;
    options.default_spec = DP_DEFAULT_BY_LEAF;
    err = cut(batch, batch->output_grads, NULL, &options, held->step.schedule, &held->grads);
    held->step.output_grads = held->grads;
    err = err ? dp_step_abort(pipe, err) : dp_pipeline_backward(pipe, &held->step);
    batch->step.callback_error = held->step.callback_error;
    drop(batch);
    return err;
}

void dp_pipeline_drop_batch(struct dp_pipeline *pipe, struct dp_batch_step *batch)
{
    if (batch->held && dp_step_under_way(pipe) == &batch->held->step)
        (void)dp_step_abort(pipe, DP_EABORTED);
    drop(batch);
}
