/* SPDX-License-Identifier: Apache-2.0
 *
 * step.c - a model that is streamed through the device: opened, and carried through steps. A step
 * is a walk over the events of its plan.
 */
#include "offload/state.h"

#include "base/fail.h"
#include "base/sized.h"
#include "base/tensor.h"

#include <stdlib.h>
#include <string.h>

/* ---- waiting --------------------------------------------------------------------------------- */

/* What went wrong in threads of the device's. */
static int errors_of_others(struct dp_offload *o)
{
    int err = atomic_exchange(&o->failed, 0);

    return err ? dp_fail(err, "offload: the update of a shard failed with %d (%s)", err,
                         dp_strerror(err))
               : 0;
}

int dp_offload_finish(struct dp_offload *o)
{
    int err = dpo_wait(&o->streams, o->streams.compute);

    if (!err)
        err = dpo_copies_wait(&o->streams);
    if (!err)
        err = dpo_wait(&o->streams, o->streams.update);
    o->exposed = true;
    return err ? err : errors_of_others(o);
}

/* After a failure nothing is in flight, and all shards are where they live. */
static int give_up(struct dp_offload *o, int err)
{
    dpo_wait(&o->streams, o->streams.compute);
    dpo_copies_wait(&o->streams);
    dpo_wait(&o->streams, o->streams.update);
    for (int32_t slot = 0; slot < o->layout.config.slots; slot++)
        o->in_slot[slot] = -1;
    o->trained = false;
    o->exposed = true; /* an update may have come to some shards and not to others */
    return err;
}

/* ---- open ------------------------------------------------------------------------------------ */

static int make_plan(struct dp_offload *o)
{
    const size_t slots = (size_t)o->layout.config.slots;

    o->events = calloc(6 * (size_t)o->layout.shard_count, sizeof(*o->events));
    o->in_slot = calloc(slots, sizeof(*o->in_slot));
    o->plan_slot = calloc(slots, sizeof(*o->plan_slot));
    if (!o->events || !o->in_slot || !o->plan_slot)
        return dp_fail(DP_ENOMEM, "offload: no memory for a plan of %d shards",
                       o->layout.shard_count);
    for (size_t slot = 0; slot < slots; slot++)
        o->in_slot[slot] = -1;
    return 0;
}

int dp_offload_open_sized(const struct dp_offload_config *config, struct dp_offload **out,
                          size_t size)
{
    DP_TAKE(dp_offload_config, config, size);
    struct dp_offload *o = calloc(1, sizeof(*o));

    if (!o)
        return dp_fail(DP_ENOMEM, "offload: no memory for a model");
    int err = dpo_layout_init(&o->layout, config);
    if (err) {
        free(o);
        return err;
    }
    o->counts = o->layout.counts;
    o->streams = (struct dpo_streams){.dev = config->device,
                                      .given = config->stream,
                                      .timeout_ns = o->layout.config.timeout_ns,
                                      .check = config->check};
    err = make_plan(o);
    if (!err)
        err = dpo_memory_init(o);
    if (!err)
        err = dpo_parameters_fill(&o->layout);
    o->built = !err;
    o->exposed = true;
    if (err)
        dp_offload_close(o);
    else
        *out = o;
    return err;
}

void dp_offload_close(struct dp_offload *o)
{
    if (!o)
        return;
    if (o->built)
        give_up(o, 0);
    dpo_memory_fini(o);
    dpo_layout_fini(&o->layout);
    free(o->events);
    free(o->in_slot);
    free(o->plan_slot);
    free(o);
}

/* ---- tensors of the user's ------------------------------------------------------------------- */

static int check_tensor(const struct dp_tensor_spec *spec, const DLTensor *t, const char *what,
                        int32_t k)
{
    bool same = t && t->ndim == spec->ndim && t->dtype.code == spec->dtype.code &&
                t->dtype.bits == spec->dtype.bits && t->dtype.lanes == spec->dtype.lanes;

    for (int32_t d = 0; same && d < spec->ndim; d++)
        same = t->shape[d] == spec->shape[d];
    if (same && dp_tensor_compact(t))
        return 0;
    return dp_fail(DP_EINVAL, "offload: %s %d: expected a contiguous tensor as declared", what, k);
}

/* Between the user's tensors and where the border lies on the device; NULLs are left out. */
static int copy_border(struct dp_offload *o, const struct dpo_border *border, char *at,
                       const DLTensor *const *tensors, bool to_device, const char *what)
{
    int err = 0;

    for (int32_t k = 0; k < border->spec->count && !err; k++) {
        const DLTensor *t = tensors ? tensors[k] : NULL;
        size_t bytes = border->row_bytes[k] * (size_t)o->layout.batch;
        char *here = at + border->offset[k];
        if (!t)
            continue;
        err = check_tensor(&border->spec->tensors[k], t, what, k);
        if (!err)
            err = dp_device_copy(o->streams.compute, to_device ? here : dp_tensor_address(t),
                                 to_device ? dp_tensor_address(t) : here, bytes);
    }
    return err;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static int carry_out(struct dp_offload *o, const struct dp_offload_event *event)
{
    if (o->layout.config.trace)
        o->layout.config.trace(o->layout.config.trace_user, event);
    switch (event->kind) {
    case DP_OFFLOAD_LOAD:
        o->in_slot[event->slot] = event->shard;
        return dpo_shard_load(o, event->shard, event->slot);
    case DP_OFFLOAD_DROP:
        o->in_slot[event->slot] = -1;
        return dpo_shard_drop(o, event->shard, event->slot);
    case DP_OFFLOAD_FORWARD:
        return dpo_visit_forward(o, event->shard);
    case DP_OFFLOAD_BACKWARD:
        return dpo_visit_backward(o, event->shard);
    }
    return DP_EINVAL;
}

static int walk(struct dp_offload *o, const struct dp_offload_event *events, size_t count)
{
    int err = 0;

    for (size_t i = 0; i < count && !err; i++)
        err = carry_out(o, &events[i]);
    return err;
}

/* What is still there from the last step is good only if it has not been changed where it lives. */
static int drop_stale(struct dp_offload *o)
{
    bool stale = o->layout.config.update || !o->step->unchanged;
    int err = 0;

    for (int32_t slot = 0; slot < o->layout.config.slots && stale && !err; slot++)
        if (o->in_slot[slot] >= 0)
            err = carry_out(o, &(struct dp_offload_event){DP_OFFLOAD_DROP, o->in_slot[slot], slot});
    if (!err && stale && o->exposed && (o->layout.images || o->layout.copies_tied))
        err = dpo_shard_renew(o);
    if (stale)
        o->exposed = false;
    return err;
}

/* The first part of a training step ends with the last forward. */
static void plan_step(struct dp_offload *o)
{
    struct dp_offload_plan plan = dpo_layout_plan(&o->layout, !o->step->training);

    memcpy(o->plan_slot, o->in_slot, (size_t)o->layout.config.slots * sizeof(*o->in_slot));
    o->event_count = dpo_plan(&plan, o->plan_slot, o->events, 6 * (size_t)o->layout.shard_count);
    for (size_t i = 0; i < o->event_count; i++)
        if (o->events[i].kind == DP_OFFLOAD_FORWARD)
            o->backward_at = i + 1;
}

static int put_inputs(struct dp_offload *o, const DLTensor *const *inputs)
{
    char *at;

    for (int32_t k = 0; k < o->layout.config.input->count; k++)
        if (!inputs || !inputs[k])
            return dp_fail(DP_EINVAL, "offload: input %d is missing", k);
    int err = dpo_boundary_write(o, 0, &at);
    if (!err)
        err = copy_border(o, &o->layout.input, at, inputs, true, "input");
    return err ? err : dpo_boundary_written(o, 0);
}

static const struct dpo_border *output(const struct dp_offload *o)
{
    return &o->layout.layers[o->layout.config.layer_count - 1].whole;
}

static int get_outputs(struct dp_offload *o, DLTensor *const *outputs)
{
    char *at;
    int err = dpo_boundary_write(o, o->layout.shard_count, &at); /* only where it is */

    if (!err)
        err = copy_border(o, output(o), at, (const DLTensor *const *)outputs, false, "output");
    return err ? err : dpo_wait(&o->streams, o->streams.compute);
}

int dp_offload_forward(struct dp_offload *o, const struct dp_offload_step *step)
{
    bool training = step->training;

    if (training && o->layout.config.forward_only)
        return dp_fail(DP_EINVAL, "offload: a model opened for forwards only cannot be trained");
    o->step = step;
    o->trained = false;
    int err = put_inputs(o, step->inputs);
    if (!err)
        err = drop_stale(o);
    if (!err) {
        plan_step(o);
        err = walk(o, o->events, training ? o->backward_at : o->event_count);
    }
    if (!err)
        err = get_outputs(o, step->outputs);
    if (!err)
        err = errors_of_others(o);
    o->step = NULL;
    if (err)
        return give_up(o, err);
    o->trained = training;
    return 0;
}

/* Where there is no gradient, zeros. */
static int put_gouts(struct dp_offload *o, const DLTensor *const *gouts)
{
    int err = 0;

    o->gradient_now = 0;
    if (!gouts)
        return dp_fail(DP_EINVAL, "offload: no gradients of the outputs");
    for (int32_t k = 0; k < output(o)->spec->count && !err; k++)
        if (!gouts[k])
            err = dp_device_zero(o->streams.compute, o->memory.gradients[0] + output(o)->offset[k],
                                 output(o)->row_bytes[k] * (size_t)o->layout.batch);
    return err ? err : copy_border(o, output(o), o->memory.gradients[0], gouts, true, "gout");
}

static int get_gins(struct dp_offload *o, DLTensor *const *gins)
{
    int err = 0;

    for (int32_t k = 0; gins && k < o->layout.config.input->count; k++)
        if (gins[k] && o->layout.config.input->tensors[k].no_grad)
            return dp_fail(DP_EINVAL, "offload: input %d has no gradient", k);
    err = copy_border(o, &o->layout.input, o->memory.gradients[o->gradient_now],
                      (const DLTensor *const *)gins, false, "gin");
    return err ? err : dpo_wait(&o->streams, o->streams.compute);
}

int dp_offload_backward(struct dp_offload *o, const struct dp_offload_gradients *g)
{
    if (!o->trained)
        return dp_fail(DP_ESTATE, "offload: a backward without a training forward before it");
    o->trained = false;
    o->grad_step = g;
    int err = put_gouts(o, g->gouts);
    if (!err)
        err = walk(o, o->events + o->backward_at, o->event_count - o->backward_at);
    if (!err)
        err = get_gins(o, g->gins);
    o->grad_step = NULL;
    if (err)
        return give_up(o, err);
    o->number++;
    return 0;
}

void dp_offload_seek(struct dp_offload *o, uint64_t step)
{
    o->number = step;
}

const struct dp_parameter *dp_offload_parameters(const struct dp_offload *o, int32_t *count)
{
    *count = o->layout.list_count;
    return o->layout.list;
}

static void count_memory(const struct dp_offload *o, struct dp_offload_memory *out)
{
    *out = o->counts;
    out->shards = o->layout.shard_count;
    out->slots = o->layout.config.slots;
}

void dp_offload_memory_sized(const struct dp_offload *o, struct dp_offload_memory *out, size_t size)
{
    struct dp_offload_memory own;

    count_memory(o, &own);
    dp_sized_give(out, size, &own, sizeof(own));
}
