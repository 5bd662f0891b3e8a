/* SPDX-License-Identifier: Apache-2.0
 *
 * step.c - a model that is streamed through the device: opened, and carried through steps. A step
 * is a walk over the events of its plan.
 */
#include "offload/state.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/tensor.h"
#include <dualpipe/microbatch.h>

#include <stdlib.h>
#include <string.h>

/* ---- what is wrong with a config ------------------------------------------------------------- */

static int check_layer(const struct dp_offload_config *c, int32_t l, int64_t batch)
{
    const struct dp_offload_layer *layer = &c->layers[l];

    if (!layer->ops || !layer->ops->forward)
        return dp_fail(DP_EINVAL, "offload: layer %d has no forward", l);
    if (!layer->ops->backward && !c->forward_only)
        return dp_fail(DP_EINVAL, "offload: layer %d has no backward, and the model is trained", l);
    if (layer->parameter_count < 0 || (layer->parameter_count && !layer->parameters))
        return dp_fail(DP_EINVAL, "offload: layer %d has %d parameters, but no list of them", l,
                       layer->parameter_count);
    return dpo_border_check(layer->out, batch, "the output of layer", l);
}

static int check_first(const struct dp_offload_config *c)
{
    bool sound = c->first[0] == 0 && c->first[c->slices] == c->layer_count;

    for (int32_t s = 0; s < c->slices && sound; s++)
        sound = c->first[s] <= c->first[s + 1];
    if (sound)
        return 0;
    return dp_fail(DP_EINVAL, "offload: the ready-made shards are not the layers 0 to %d in order",
                   c->layer_count - 1);
}

static bool is_16_bits(DLDataType type)
{
    return !type.bits ||
           ((type.code == kDLFloat || type.code == kDLBfloat) && type.bits == 16 && type.lanes == 1);
}

static int check_config(const struct dp_offload_config *c)
{
    if (!c->layers || c->layer_count < 1)
        return dp_fail(DP_EINVAL, "offload: no model: expected at least 1 layer");
    if (!c->device)
        return dp_fail(DP_EINVAL, "offload: no device");
    if (c->microbatches < 0 || c->microbatches > DP_MAX_MICROBATCHES)
        return dp_fail(DP_EINVAL, "offload: %d micro-batches, expected 1 to %d", c->microbatches,
                       DP_MAX_MICROBATCHES);
    if (c->slices < 1)
        return dp_fail(DP_EINVAL, "offload: %d slices, expected at least 1", c->slices);
    if (c->order_blocks < 0 || c->order_blocks > DP_OFFLOAD_MAX_BLOCKS ||
        (c->order_blocks & (c->order_blocks - 1)))
        return dp_fail(DP_EINVAL,
                       "offload: order_blocks: %d, expected a power of two up to %d, or 0",
                       c->order_blocks, DP_OFFLOAD_MAX_BLOCKS);
    if (c->order_blocks > 1 && !dp_device_host_accessible(c->device))
        return dp_fail(DP_EUNSUPPORTED, "offload: order_blocks: gradients are added up by the CPU, "
                                        "which does not reach the memory of this device");
    if (!(c->kept_share >= 0 && c->kept_share <= 1))
        return dp_fail(DP_EINVAL, "offload: kept_share: %g, expected 0 to 1", c->kept_share);
    if (c->kept_share > 0 && !dp_device_host_accessible(c->device))
        return dp_fail(DP_EUNSUPPORTED, "offload: kept_share: what stays on the device is updated by "
                                        "the CPU, which does not reach the memory of this device");
    if (c->delay && !c->update)
        return dp_fail(DP_EINVAL, "offload: delay: expected an update that could be delayed");
    if (c->boundaries_down && !c->checkpoint)
        return dp_fail(DP_EINVAL, "offload: only with checkpoints can boundaries wait on the host");
    if (!is_16_bits(c->values_type) || !is_16_bits(c->grads_type))
        return dp_fail(DP_EINVAL, "offload: values_type or grads_type: expected bfloat16 or float16, or "
                                  "0 bits for what parameters are");
    if (!c->input || c->input->count < 1 || c->input->tensors[0].ndim < 1)
        return dp_fail(DP_EINVAL, "offload: no input: expected at least 1 tensor with rows");
    int64_t batch = c->input->tensors[0].shape[0];
    int err = dpo_border_check(c->input, batch, "the input of layer", 0);
    for (int32_t l = 0; l < c->layer_count && !err; l++)
        err = check_layer(c, l, batch);
    return !err && c->first ? check_first(c) : err;
}

/* ---- waiting --------------------------------------------------------------------------------- */

static int wait_copies(struct dp_offload *o)
{
    int64_t begun_ns = dp_now_ns();
    int err = dp_copy_engine_drain(o->copies, o->config.timeout_ns);

    o->wait_ns += dp_now_ns() - begun_ns;
    return err;
}

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
    int err = dpo_wait(o, o->compute);

    if (!err)
        err = dpo_shard_launch(o, 0);
    if (!err)
        err = wait_copies(o);
    if (!err)
        err = dpo_wait(o, o->update);
    o->exposed = true;
    return err ? err : errors_of_others(o);
}

bool dp_offload_due(const struct dp_offload *o)
{
    return o->due;
}

void dp_offload_set_due(struct dp_offload *o, bool due)
{
    o->due = due && o->config.delay;
}

int dp_offload_catch_up(struct dp_offload *o)
{
    int err = dp_offload_finish(o);

    if (!err)
        err = dpo_shard_update(o);
    return err ? err : dp_offload_finish(o);
}

/* After a failure nothing is in flight, and all shards are where they live. */
static int give_up(struct dp_offload *o, int err)
{
    dpo_wait(o, o->compute);
    dpo_shard_launch(o, 0);
    wait_copies(o);
    dpo_wait(o, o->update);
    for (int32_t slot = 0; slot < o->config.slots; slot++)
        o->in_slot[slot] = -1;
    o->trained = false;
    o->exposed = true; /* an update may have come to some shards and not to others */
    return err;
}

/* ---- open ------------------------------------------------------------------------------------ */

static int take_rows(struct dp_offload *o)
{
    o->batch = o->config.input->tensors[0].shape[0];
    o->rows = calloc((size_t)o->config.microbatches, sizeof(*o->rows));
    if (!o->rows)
        return dp_fail(DP_ENOMEM, "offload: no memory for %d micro-batches",
                       o->config.microbatches);
    return dp_chunk_sizes(o->batch, o->config.microbatches, o->rows, &o->microbatches);
}

static int64_t size_of_layer(const struct dp_offload_config *c, int32_t l)
{
    int64_t sum = 0;

    for (int32_t k = 0; k < c->layers[l].parameter_count; k++) {
        const struct dp_parameter *p = &c->layers[l].parameters[k];
        int64_t elements = p->value ? dp_tensor_numel(p->value) : 0, each = 1;
        if (p->value && c->split == DP_OFFLOAD_SPLIT_BALANCED)
            each = (dpo_value_type(c, p).bits +
                    (p->flags & DP_PARAMETER_FROZEN ? 0 : dpo_grad_type(c, p).bits)) / 8;
        sum += elements * each;
    }
    return sum;
}

static int split(const struct dp_offload *o, int32_t *first, int32_t *shards)
{
    const struct dp_offload_config *c = &o->config;
    int64_t *sizes;

    if (c->first) {
        memcpy(first, c->first, ((size_t)c->slices + 1) * sizeof(*first));
        *shards = c->slices;
        return 0;
    }
    sizes = calloc((size_t)c->layer_count, sizeof(*sizes));
    if (!sizes)
        return dp_fail(DP_ENOMEM, "offload: no memory for %d layers", c->layer_count);
    for (int32_t l = 0; l < c->layer_count; l++)
        sizes[l] = size_of_layer(c, l);
    int err = dp_offload_split(c->split, sizes, c->layer_count, c->slices, first, shards);
    free(sizes);
    return err;
}

/* Empty shards hand on what they are given: they are left out. */
static int take_shards(struct dp_offload *o)
{
    int32_t *first = calloc((size_t)o->config.slices + 1, sizeof(*first)), shards = 0;

    o->shards = calloc((size_t)o->config.slices, sizeof(*o->shards));
    o->layers = calloc((size_t)o->config.layer_count, sizeof(*o->layers));
    int err = first && o->shards && o->layers ? split(o, first, &shards)
                                              : dp_fail(DP_ENOMEM, "offload: no memory for shards");
    for (int32_t s = 0; s < shards && !err; s++)
        if (first[s] < first[s + 1]) {
            o->shards[o->shard_count] = (struct dpo_shard){
                .first = first[s], .end = first[s + 1], .wait_for = o->shard_count, .slot = -1};
            o->shard_count++;
        }
    for (int32_t l = 0; l < o->config.layer_count && !err; l++)
        o->layers[l].given = &o->config.layers[l];
    free(first);
    return err;
}

static struct dp_offload_plan plan_of(const struct dp_offload *o, bool forward_only)
{
    return (struct dp_offload_plan){.shards = o->shard_count,
                                    .slots = o->config.slots,
                                    .distance = o->config.distance,
                                    .forward_only = forward_only,
                                    .drop_at_once = o->config.drop_at_once,
                                    .kept = o->shard_count - o->streamed};
}

/* More slots than shards that pass through them would stay empty. */
static void drop_surplus(struct dp_offload_config *c, int32_t streamed)
{
    const int32_t most = streamed > 1 ? streamed : 1;

    if (c->slots > most)
        c->slots = most;
    if (c->distance >= c->slots)
        c->distance = c->slots - 1;
}

static int take_plan(struct dp_offload *o)
{
    struct dp_offload_plan plan = plan_of(o, false);
    int err = dpo_plan_check(&plan);
    if (err)
        return err;
    drop_surplus(&o->config, o->streamed);
    const size_t slots = (size_t)o->config.slots;

    o->events = calloc(6 * (size_t)o->shard_count, sizeof(*o->events));
    o->in_slot = calloc(slots, sizeof(*o->in_slot));
    o->plan_slot = calloc(slots, sizeof(*o->plan_slot));
    if (!o->events || !o->in_slot || !o->plan_slot)
        return dp_fail(DP_ENOMEM, "offload: no memory for a plan of %d shards", o->shard_count);
    for (size_t slot = 0; slot < slots; slot++)
        o->in_slot[slot] = -1;
    return 0;
}

static void take_config(struct dp_offload *o, const struct dp_offload_config *config)
{
    o->config = *config;
    o->dev = config->device;
    o->config.microbatches = config->microbatches ? config->microbatches : 1;
    if (!config->slots) {
        o->config.slots = 2;
        o->config.distance = 1;
    }
    o->images = config->values_type.bits || config->delay;
    o->widens = config->grads_type.bits;
    o->config.order_blocks = config->order_blocks ? config->order_blocks : 1;
    o->levels = __builtin_ctz((unsigned)o->config.order_blocks);
    if (!config->timeout_ns)
        o->config.timeout_ns = 60 * DP_NS_PER_S;
}

static int count(struct dp_offload *o)
{
    int err = take_rows(o);

    if (!err)
        err = take_shards(o);
    if (!err)
        dpo_kept_choose(o);
    if (!err)
        err = take_plan(o);
    if (!err)
        err = dpo_parameters_init(o);
    return err ? err : dpo_memory_count(o);
}

int dpo_count(const struct dp_offload_config *config, struct dp_offload **out)
{
    int err = check_config(config);
    if (err)
        return err;

    struct dp_offload *o = calloc(1, sizeof(*o));
    if (!o)
        return dp_fail(DP_ENOMEM, "offload: no memory for a model");
    take_config(o, config);
    err = count(o);
    if (err)
        dp_offload_close(o);
    else
        *out = o;
    return err;
}

int dp_offload_open(const struct dp_offload_config *config, struct dp_offload **out)
{
    struct dp_offload *o;
    int err = dpo_count(config, &o);

    if (err)
        return err;
    err = dpo_memory_init(o);
    if (!err)
        err = dpo_parameters_fill(o);
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
    dpo_parameters_fini(o);
    free(o->events);
    free(o->in_slot);
    free(o->plan_slot);
    free(o->shards);
    free(o->layers);
    free(o->rows);
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
        size_t bytes = border->row_bytes[k] * (size_t)o->batch;
        char *here = at + border->offset[k];
        if (!t)
            continue;
        err = check_tensor(&border->spec->tensors[k], t, what, k);
        if (!err)
            err = dp_device_copy(o->compute, to_device ? here : dp_tensor_address(t),
                                 to_device ? dp_tensor_address(t) : here, bytes);
    }
    return err;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static int carry_out(struct dp_offload *o, const struct dp_offload_event *event)
{
    if (o->config.trace)
        o->config.trace(o->config.trace_user, event);
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
    bool stale = o->config.update || !o->step->unchanged;
    int err = 0;

    for (int32_t slot = 0; slot < o->config.slots && stale && !err; slot++)
        if (o->in_slot[slot] >= 0)
            err = carry_out(o, &(struct dp_offload_event){DP_OFFLOAD_DROP, o->in_slot[slot], slot});
    if (!err && stale && o->exposed && (o->images || o->copies_tied))
        err = dpo_shard_renew(o);
    if (stale)
        o->exposed = false;
    return err;
}

/* The first part of a training step ends with the last forward. */
static void plan_step(struct dp_offload *o)
{
    struct dp_offload_plan plan = plan_of(o, !o->step->training);

    memcpy(o->plan_slot, o->in_slot, (size_t)o->config.slots * sizeof(*o->in_slot));
    o->event_count = dpo_plan(&plan, o->plan_slot, o->events, 6 * (size_t)o->shard_count);
    for (size_t i = 0; i < o->event_count; i++)
        if (o->events[i].kind == DP_OFFLOAD_FORWARD)
            o->backward_at = i + 1;
}

static int put_inputs(struct dp_offload *o, const DLTensor *const *inputs)
{
    char *at;

    for (int32_t k = 0; k < o->config.input->count; k++)
        if (!inputs || !inputs[k])
            return dp_fail(DP_EINVAL, "offload: input %d is missing", k);
    int err = dpo_boundary_write(o, 0, &at);
    if (!err)
        err = copy_border(o, &o->input, at, inputs, true, "input");
    return err ? err : dpo_boundary_written(o, 0);
}

static const struct dpo_border *output(const struct dp_offload *o)
{
    return &o->layers[o->config.layer_count - 1].whole;
}

static int get_outputs(struct dp_offload *o, DLTensor *const *outputs)
{
    char *at;
    int err = dpo_boundary_write(o, o->shard_count, &at); /* only where it is */

    if (!err)
        err = copy_border(o, output(o), at, (const DLTensor *const *)outputs, false, "output");
    return err ? err : dpo_wait(o, o->compute);
}

int dp_offload_forward(struct dp_offload *o, const struct dp_offload_step *step)
{
    bool training = step->training;

    if (training && o->config.forward_only)
        return dp_fail(DP_EINVAL, "offload: a model opened for forwards only cannot be trained");
    o->step = step;
    o->trained = false;
    int err = dpo_shard_launch(o, 0);
    if (!err)
        err = put_inputs(o, step->inputs);
    if (!err)
        err = drop_stale(o);
    if (!err && training)
        err = dpo_shard_update(o);
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
            err = dp_device_zero(o->compute, o->gradients[0] + output(o)->offset[k],
                                 output(o)->row_bytes[k] * (size_t)o->batch);
    return err ? err : copy_border(o, output(o), o->gradients[0], gouts, true, "gout");
}

static int get_gins(struct dp_offload *o, DLTensor *const *gins)
{
    int err = 0;

    for (int32_t k = 0; gins && k < o->config.input->count; k++)
        if (gins[k] && o->config.input->tensors[k].no_grad)
            return dp_fail(DP_EINVAL, "offload: input %d has no gradient", k);
    err = copy_border(o, &o->input, o->gradients[o->gradient_now], (const DLTensor *const *)gins,
                      false, "gin");
    return err ? err : dpo_wait(o, o->compute);
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
    o->due = o->config.delay;
    o->number++;
    return 0;
}

void dp_offload_seek(struct dp_offload *o, uint64_t step)
{
    o->number = step;
}

const struct dp_parameter *dp_offload_parameters(const struct dp_offload *o, int32_t *count)
{
    *count = o->list_count;
    return o->list;
}

void dp_offload_memory(const struct dp_offload *o, struct dp_offload_memory *out)
{
    *out = o->counts;
    out->shards = o->shard_count;
    out->slots = o->config.slots;
}

void dp_offload_times(const struct dp_offload *o, struct dp_offload_times *out)
{
    struct dp_copy_stats copies;

    dp_copy_engine_stats(o->copies, &copies);
    *out = (struct dp_offload_times){
        .compute_ns = dpo_meter_busy_ns(o, DPO_COMPUTE),
        .up_ns = copies.busy_ns[DP_COPY_UP],
        .down_ns = copies.busy_ns[DP_COPY_DOWN],
        .update_ns = dpo_meter_busy_ns(o, DPO_UPDATE),
        .wait_ns = o->wait_ns,
    };
}
