/* SPDX-License-Identifier: Apache-2.0
 *
 * Micro-batches that a loader hands over one at a time: each when its forward begins, and given
 * back once nothing of the step reads it any more.
 */
#include "pipeline/steps.h"

#include "base/fail.h"
#include "pipeline/extents.h"

#include <stdio.h>

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

static int take(struct dp_pipeline *pipe, const struct dp_plan_op *op, const struct source *from)
{
    const int32_t mb = (int32_t)op->mb;
    const int32_t global =
        mb + dp_pipeline_slot(pipe, op->slot)->stream * pipe->config.schedule->mb_per_stream;
    const struct dp_tree *args = NULL, *kwargs = NULL;
    struct dp_border now = *from->declared;

    int err = from->loader->load(from->loader->user, mb, &args, &kwargs);
    if (err)
        return fail_load(pipe, op, from, err);
    from->batch->loaded[mb] = true;
    if (pipe->extents)
        dp_extents_apply(from->declared, pipe->config.max_extents, pipe->extents[global], &now);
    return dp_batch_take_one(from->batch, mb, args, kwargs, &now, pipe->device, from->what);
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

int dp_load_before(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    const struct dp_slot *slot = dp_pipeline_slot(pipe, op->slot);
    const struct source inputs = inputs_of(pipe), labels = labels_of(pipe);
    int err = 0;

    if (op->kind != DP_PLAN_FORWARD)
        return 0;
    if (inputs.loader && dp_slot_is_first(slot))
        err = take(pipe, op, &inputs);
    if (!err && labels.loader && dp_slot_is_last(slot))
        err = take(pipe, op, &labels);
    return err;
}

/* Inputs are read until the weight part, labels until the backward begins. */
void dp_load_after(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    const struct dp_slot *slot = dp_pipeline_slot(pipe, op->slot);
    const struct source inputs = inputs_of(pipe), labels = labels_of(pipe);
    const bool forward = op->kind == DP_PLAN_FORWARD && pipe->config.schedule->forward_only;
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
