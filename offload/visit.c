/* SPDX-License-Identifier: Apache-2.0
 *
 * visit.c - compute: all micro-batches of a shard, forward or backward, while it is on the device.
 */
#include "offload/state.h"

#include "base/fail.h"

#include <string.h>

/* One micro-batch in one layer. */
struct frame {
    struct dp_offload *o;
    int32_t l, mb;
    int64_t first; /* row */
    bool again;
    struct dpo_tensors in;
};

/* ---- before and after ------------------------------------------------------------------------ */

/* Where the layers of the shard find their parameters now, and where they add gradients. */
static void point_at_slot(struct dp_offload *o, int32_t index)
{
    const struct dpo_shard *shard = &o->layout.shards[index];
    const struct dpo_slot *slot = &o->memory.slots[shard->slot];

    for (int32_t l = shard->first; l < shard->end; l++)
        for (int32_t k = 0; k < o->layout.layers[l].given->parameter_count; k++) {
            const struct dpo_parameter *p = &o->layout.layers[l].parameters[k];
            DLTensor *value = &o->layout.layers[l].values[k], *grad = &o->layout.layers[l].grads[k];
            *value = *p->given->value;
            *grad = p->given->grad ? *p->given->grad : *p->given->value;
            value->dtype = p->value_type;
            grad->dtype = p->grad_type;
            value->device = grad->device = dp_device_dl(o->streams.dev);
            value->byte_offset = grad->byte_offset = 0;
            value->strides = grad->strides = NULL;
            value->data = slot->values + p->value;
            grad->data = p->grad == SIZE_MAX ? NULL : slot->grads + p->grad;
        }
}

/* Callbacks of the host's compute when they are called; those of a GPU queue work in the stream. */
static int settle(struct dp_offload *o)
{
    return o->streams.host ? dpo_wait(&o->streams, o->streams.compute) : 0;
}

/* ---- where things are ------------------------------------------------------------------------ */

struct place {
    const struct dpo_border *border;
    char *at;
    bool whole; /* all rows of the batch are there */
};

static struct place input_of_shard(const struct dp_offload *o, int32_t shard, char *at)
{
    const struct dpo_border *border =
        shard ? &o->layout.layers[o->layout.shards[shard].first - 1].whole : &o->layout.input;

    return (struct place){border, at, true};
}

/* The output of a layer inside a shard, or, when it is computed again, of any. */
static struct place inner_output(const struct dp_offload *o, int32_t l)
{
    const struct dpo_layer *layer = &o->layout.layers[l];

    if (o->layout.config.checkpoint)
        return (struct place){&layer->piece, o->memory.activations + layer->piece_at, false};
    return (struct place){&layer->whole, o->memory.activations + layer->whole_at, true};
}

static void view(const struct frame *f, struct place place, struct dpo_tensors *out)
{
    dpo_border_tensors(dp_device_dl(f->o->streams.dev), place.border, place.at,
                       place.whole ? f->first : 0, f->o->layout.rows[f->mb], out);
}

static void *save_of(const struct frame *f)
{
    const struct dpo_layer *layer = &f->o->layout.layers[f->l];
    size_t each = dpo_align(layer->given->save_bytes);

    if (!layer->given->save_bytes)
        return NULL;
    return f->o->memory.activations + layer->save_at +
           (f->o->layout.config.checkpoint ? 0 : each * (size_t)f->mb);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static struct dp_offload_call call_of(struct frame *f)
{
    struct dp_offload *o = f->o;

    return (struct dp_offload_call){
        .layer = f->l,
        .mb = f->mb,
        .first_row = f->first,
        .rows = o->layout.rows[f->mb],
        .step = o->number,
        .training = o->step ? o->step->training : true,
        .again = f->again,
        .random = dp_random_key(o->layout.config.seed, o->number, (uint32_t)f->l, (uint32_t)f->mb),
        .values = o->layout.layers[f->l].values,
        .grads = o->layout.layers[f->l].grads,
        .in = f->in.t,
        .save = save_of(f),
        .stream = dp_device_stream_native(o->streams.compute),
        .queue = o->streams.compute,
    };
}

static int failed_call(const struct frame *f, const char *what, int err)
{
    return dp_fail(DP_ECALLBACK, "offload: layer %d, micro-batch %d: %s failed with %d (%s)", f->l,
                   f->mb, what, err, dp_strerror(err));
}

static int forward_layer(struct frame *f, struct place from, struct place to)
{
    const struct dp_offload_layer *layer = f->o->layout.layers[f->l].given;
    struct dpo_tensors out;

    view(f, from, &f->in);
    view(f, to, &out);
    struct dp_offload_call call = call_of(f);
    int err = layer->ops->forward(layer->user, &call, f->in.t, out.t);
    return err ? failed_call(f, "the forward", err) : 0;
}

/* The compute of a host goes on at once, and so must find zeros. */
static int zero(const struct dp_offload *o, void *at, size_t bytes)
{
    if (!o->streams.host)
        return dp_device_zero(o->streams.compute, at, bytes);
    memset(at, 0, bytes);
    return 0;
}

/* Tensors of no gradient have none; and one that the layer has found to have none becomes zeros. */
static void leave_out(const struct dp_border *spec, struct dpo_tensors *tensors)
{
    for (int32_t k = 0; k < spec->count; k++)
        if (spec->tensors[k].no_grad)
            tensors->t[k].data = NULL;
}

static int zero_missing(const struct frame *f, const struct dpo_border *border,
                        const struct dpo_tensors *wanted, const struct dpo_tensors *made)
{
    int err = 0;

    for (int32_t k = 0; k < border->spec->count && !err; k++)
        if (wanted->t[k].data && !made->t[k].data)
            err = zero(f->o, wanted->t[k].data,
                       border->row_bytes[k] * (size_t)f->o->layout.rows[f->mb]);
    return err;
}

static int backward_layer(struct frame *f, struct place in, struct place from, struct place to)
{
    const struct dp_offload_layer *layer = f->o->layout.layers[f->l].given;
    struct dpo_tensors gout, gin, wanted;

    view(f, in, &f->in);
    view(f, from, &gout);
    view(f, to, &gin);
    leave_out(from.border->spec, &gout);
    leave_out(to.border->spec, &gin);
    wanted = gin;
    struct dp_offload_call call = call_of(f);
    int err = layer->ops->backward(layer->user, &call, gout.t, gin.t);
    if (err)
        return failed_call(f, "the backward", err);
    return zero_missing(f, to.border, &wanted, &gin);
}

/* ---- a micro-batch through a shard ----------------------------------------------------------- */

/* `end`: where the output of the last layer goes. */
static int forward_piece(struct frame *f, int32_t index, struct place from, struct place end)
{
    const struct dpo_shard *shard = &f->o->layout.shards[index];
    int err = 0;

    for (f->l = shard->first; f->l < shard->end && !err; f->l++) {
        struct place to = f->l + 1 == shard->end ? end : inner_output(f->o, f->l);
        err = forward_layer(f, from, to);
        from = to;
    }
    return err;
}

static struct place gradient_of(const struct dp_offload *o, int32_t l)
{
    const struct dpo_layer *layer = &o->layout.layers[l];

    return (struct place){&layer->piece, o->memory.activations + o->layout.piece_gradient[l % 2],
                          false};
}

static int backward_piece(struct frame *f, int32_t index, struct place input, struct place gout,
                          struct place gin)
{
    const struct dpo_shard *shard = &f->o->layout.shards[index];
    int err = 0;

    for (f->l = shard->end - 1; f->l >= shard->first && !err; f->l--) {
        bool first = f->l == shard->first;
        struct place in = first ? input : inner_output(f->o, f->l - 1);
        struct place to = first ? gin : gradient_of(f->o, f->l - 1);
        err = backward_layer(f, in, gout, to);
        gout = to;
    }
    return err;
}

/* ---- visits ---------------------------------------------------------------------------------- */

int dpo_visit_forward(struct dp_offload *o, int32_t index)
{
    struct dpo_shard *shard = &o->layout.shards[index];
    struct dpo_slot *slot = &o->memory.slots[shard->slot];
    struct frame f = {.o = o};
    char *in, *out;
    int err = dp_device_stream_wait(o->streams.compute, slot->loaded);

    if (!err)
        err = dpo_boundary_read(o, index, &in);
    if (!err)
        err = dpo_boundary_write(o, index + 1, &out);
    if (!err)
        err = settle(o);
    if (err)
        return err;
    point_at_slot(o, index);
    struct place from = input_of_shard(o, index, in);
    struct place to = {&o->layout.layers[shard->end - 1].whole, out, true};
    for (; f.mb < o->layout.microbatches && !err; f.mb++) {
        err = forward_piece(&f, index, from, to);
        f.first += o->layout.rows[f.mb];
    }
    if (!err)
        err = dp_device_event_record(slot->used, o->streams.compute);
    return err ? err : dpo_boundary_written(o, index + 1);
}

/* The shard, its input and the empty gradients are there. */
static int begin_backward(struct dp_offload *o, int32_t index, char **in)
{
    struct dpo_shard *shard = &o->layout.shards[index];
    struct dpo_slot *slot = &o->memory.slots[shard->slot];
    int err = dp_device_stream_wait(o->streams.compute, slot->loaded);

    for (int32_t s = index; s >= 0 && s >= index - o->layout.config.distance && !err; s--)
        err = dpo_boundary_fetch(o, s);
    if (!err)
        err = dpo_boundary_read(o, index, in);
    if (!err)
        err = dp_device_stream_wait(o->streams.compute, slot->emptied);
    if (!err)
        err = dp_device_zero(o->streams.compute, slot->grads, shard->grad_bytes);
    if (!err)
        err = settle(o);
    return err;
}

static int end_backward(struct dp_offload *o, int32_t index)
{
    int err = dp_device_event_record(o->memory.slots[o->layout.shards[index].slot].used,
                                     o->streams.compute);

    if (!err && o->layout.rings)
        err = dp_device_event_record(o->memory.ring[index % o->layout.rings].used,
                                     o->streams.compute);
    return err ? err : dpo_shard_grads_down(o, index);
}

int dpo_visit_backward(struct dp_offload *o, int32_t index)
{
    struct dpo_shard *shard = &o->layout.shards[index];
    struct frame f = {.o = o, .again = true};
    char *in;
    int err = begin_backward(o, index, &in);

    if (err)
        return err;
    struct place from = input_of_shard(o, index, in);
    struct place gout = {&o->layout.layers[shard->end - 1].whole,
                         o->memory.gradients[o->gradient_now], true};
    o->gradient_now = !o->gradient_now;
    struct place gin = {from.border, o->memory.gradients[o->gradient_now], true};
    point_at_slot(o, index);
    for (; f.mb < o->layout.microbatches && !err; f.mb++) {
        if (o->layout.config.checkpoint)
            err = forward_piece(&f, index, from, inner_output(o, shard->end - 1));
        if (!err)
            err = backward_piece(&f, index, from, gout, gin);
        f.first += o->layout.rows[f.mb];
    }
    return err ? err : end_backward(o, index);
}
