/* SPDX-License-Identifier: Apache-2.0
 *
 * layout.c - a config, checked and laid out: what is in which shard, and how many bytes each kind of
 * memory takes. Nothing is allocated but lists.
 *
 * Activations, plain: every layer's output and save areas, for all micro-batches. With checkpoints:
 * what crosses from shard to shard, and one piece of memory for the inside of any shard, for one
 * micro-batch.
 */
#include "offload/layout.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/sized.h"
#include "base/tensor.h"
#include <dualpipe/microbatch.h>

#include <stdlib.h>
#include <string.h>

/* ---- tensors between layers ------------------------------------------------------------------ */

static size_t row_bytes(const struct dp_tensor_spec *spec)
{
    size_t bytes = (size_t)(spec->dtype.bits * spec->dtype.lanes + 7) / 8;

    for (int32_t d = 1; d < spec->ndim; d++)
        bytes *= (size_t)spec->shape[d];
    return bytes;
}

static int check_border(const struct dp_border *spec, int64_t rows, const char *what, int32_t index)
{
    if (!spec || spec->count < 1 || spec->count > DP_MAX_TENSORS)
        return dp_fail(DP_EINVAL, "offload: %s %d: expected 1 to %d tensors", what, index,
                       DP_MAX_TENSORS);
    for (int32_t k = 0; k < spec->count; k++) {
        const struct dp_tensor_spec *t = &spec->tensors[k];
        if (t->ndim < 1 || t->ndim > DP_MAX_DIMS || t->shape[0] != rows || rows < 1)
            return dp_fail(DP_EINVAL,
                           "offload: %s %d: tensor %d has %lld rows in dimension 0, expected the "
                           "batch's %lld",
                           what, index, k, t->ndim > 0 ? (long long)t->shape[0] : 0LL,
                           (long long)rows);
        for (int32_t d = 1; d < t->ndim; d++)
            if (t->shape[d] < 0)
                return dp_fail(DP_EINVAL, "offload: %s %d: tensor %d has a negative extent", what,
                               index, k);
    }
    return 0;
}

static size_t init_border(struct dpo_border *border, const struct dp_border *spec, int64_t rows)
{
    border->spec = spec;
    border->bytes = 0;
    for (int32_t k = 0; k < spec->count; k++) {
        border->row_bytes[k] = row_bytes(&spec->tensors[k]);
        border->offset[k] = border->bytes;
        border->bytes += dpo_align(border->row_bytes[k] * (size_t)rows);
    }
    return border->bytes;
}

void dpo_border_tensors(DLDevice device, const struct dpo_border *border, char *base, int64_t first,
                        int64_t rows, struct dpo_tensors *out)
{
    for (int32_t k = 0; k < border->spec->count; k++) {
        const struct dp_tensor_spec *spec = &border->spec->tensors[k];
        for (int32_t d = 0; d < spec->ndim; d++)
            out->shape[k][d] = d ? spec->shape[d] : rows;
        out->t[k] = (DLTensor){
            .device = device, .ndim = spec->ndim, .dtype = spec->dtype, .shape = out->shape[k]};
        if (base)
            out->t[k].data = base + border->offset[k] + (size_t)first * border->row_bytes[k];
    }
}

/* ---- what is wrong with a config ------------------------------------------------------------- */

static int check_layer(const struct dp_offload_config *c, int32_t l, int64_t batch)
{
    const struct dp_offload_layer *layer = &c->layers[l];

    if (!layer->ops || !layer->ops->forward)
        return dp_fail(DP_EINVAL, "offload: layer %d has no forward", l);
    DP_RESERVED(layer, "layer");
    DP_RESERVED(layer->ops, "callbacks of a layer");
    if (!layer->ops->backward && !c->forward_only)
        return dp_fail(DP_EINVAL, "offload: layer %d has no backward, and the model is trained", l);
    if (layer->parameter_count < 0 || (layer->parameter_count && !layer->parameters))
        return dp_fail(DP_EINVAL, "offload: layer %d has %d parameters, but no list of them", l,
                       layer->parameter_count);
    return check_border(layer->out, batch, "the output of layer", l);
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
    return !type.bits || ((type.code == kDLFloat || type.code == kDLBfloat) && type.bits == 16 &&
                          type.lanes == 1);
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
    if (c->boundaries_down && !c->checkpoint)
        return dp_fail(DP_EINVAL, "offload: only with checkpoints can boundaries wait on the host");
    if (!is_16_bits(c->values_type) || !is_16_bits(c->grads_type))
        return dp_fail(DP_EINVAL,
                       "offload: values_type or grads_type: expected bfloat16 or float16, or "
                       "0 bits for what parameters are");
    if (!c->input || c->input->count < 1 || c->input->tensors[0].ndim < 1)
        return dp_fail(DP_EINVAL, "offload: no input: expected at least 1 tensor with rows");
    int64_t batch = c->input->tensors[0].shape[0];
    int err = check_border(c->input, batch, "the input of layer", 0);
    for (int32_t l = 0; l < c->layer_count && !err; l++)
        err = check_layer(c, l, batch);
    return !err && c->first ? check_first(c) : err;
}

/* ---- shards ---------------------------------------------------------------------------------- */

static int take_rows(struct dpo_layout *layout)
{
    layout->batch = layout->config.input->tensors[0].shape[0];
    layout->rows = calloc((size_t)layout->config.microbatches, sizeof(*layout->rows));
    if (!layout->rows)
        return dp_fail(DP_ENOMEM, "offload: no memory for %d micro-batches",
                       layout->config.microbatches);
    return dp_cut_sizes(DP_CUT_CHUNK, layout->batch, layout->config.microbatches, layout->rows,
                        &layout->microbatches);
}

static int64_t size_of_layer(const struct dp_offload_config *c, int32_t l)
{
    int64_t sum = 0;

    for (int32_t k = 0; k < c->layers[l].parameter_count; k++) {
        const struct dp_parameter *p = &c->layers[l].parameters[k];
        int64_t elements = p->value ? dp_tensor_numel(p->value) : 0, each = 1;
        if (p->value && c->split == DP_OFFLOAD_SPLIT_BALANCED)
            each = (dpo_value_type(c, p).bits +
                    (p->flags & DP_PARAMETER_FROZEN ? 0 : dpo_grad_type(c, p).bits)) /
                   8;
        sum += elements * each;
    }
    return sum;
}

static int split(const struct dpo_layout *layout, int32_t *first, int32_t *shards)
{
    const struct dp_offload_config *c = &layout->config;
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
static int take_shards(struct dpo_layout *layout)
{
    int32_t *first = calloc((size_t)layout->config.slices + 1, sizeof(*first)), shards = 0;

    layout->shards = calloc((size_t)layout->config.slices, sizeof(*layout->shards));
    layout->layers = calloc((size_t)layout->config.layer_count, sizeof(*layout->layers));
    int err = first && layout->shards && layout->layers
                  ? split(layout, first, &shards)
                  : dp_fail(DP_ENOMEM, "offload: no memory for shards");
    for (int32_t s = 0; s < shards && !err; s++)
        if (first[s] < first[s + 1]) {
            layout->shards[layout->shard_count] =
                (struct dpo_shard){.first = first[s],
                                   .end = first[s + 1],
                                   .wait_for = layout->shard_count,
                                   .slot = -1};
            layout->shard_count++;
        }
    for (int32_t l = 0; l < layout->config.layer_count && !err; l++)
        layout->layers[l].given = &layout->config.layers[l];
    free(first);
    return err;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

struct sizes {
    size_t activations, inside, border, piece; /* the last three: the most of any shard */
};

static void lay_out_input(struct dpo_layout *layout, struct sizes *at)
{
    at->border = init_border(&layout->input, layout->config.input, layout->batch);
    if (layout->config.boundaries_down)
        return;
    layout->input_at = at->activations;
    at->activations += layout->input.bytes;
}

/* Outputs that are there for all micro-batches. */
static void lay_out_whole(struct dpo_layout *layout, struct sizes *at, int32_t shard, int32_t l)
{
    struct dpo_layer *layer = &layout->layers[l];
    bool border = l + 1 == layout->shards[shard].end, last = l + 1 == layout->config.layer_count;

    if (border)
        at->border = larger(at->border, layer->whole.bytes);
    else
        at->piece = larger(at->piece, layer->piece.bytes);
    if (layout->config.checkpoint && (!border || (layout->config.boundaries_down && !last)))
        return;
    layer->whole_at = at->activations;
    at->activations += layer->whole.bytes;
}

/* The inside of a shard: save areas, and with checkpoints what layers hand on. Its size. */
static size_t lay_out_inside(struct dpo_layout *layout, struct sizes *at, int32_t shard)
{
    bool checkpoint = layout->config.checkpoint;
    size_t inside = 0;

    for (int32_t l = layout->shards[shard].first; l < layout->shards[shard].end; l++) {
        struct dpo_layer *layer = &layout->layers[l];
        size_t save = dpo_align(layer->given->save_bytes);
        size_t *to = checkpoint ? &inside : &at->activations;
        layer->save_at = *to;
        *to += save * (checkpoint ? 1 : (size_t)layout->microbatches);
        if (!checkpoint)
            continue;
        layer->piece_at = inside;
        inside += layer->piece.bytes;
    }
    return inside;
}

/* Offsets inside a shard begin where all that is there for good ends. */
static void place_inside(struct dpo_layout *layout, size_t begin)
{
    for (int32_t l = 0; layout->config.checkpoint && l < layout->config.layer_count; l++) {
        layout->layers[l].save_at += begin;
        layout->layers[l].piece_at += begin;
    }
}

static size_t lay_out(struct dpo_layout *layout)
{
    struct sizes at = {0};

    lay_out_input(layout, &at);
    for (int32_t s = 0; s < layout->shard_count; s++)
        for (int32_t l = layout->shards[s].first; l < layout->shards[s].end; l++) {
            init_border(&layout->layers[l].whole, layout->layers[l].given->out, layout->batch);
            init_border(&layout->layers[l].piece, layout->layers[l].given->out,
                            layout->rows[0]);
            lay_out_whole(layout, &at, s, l);
        }
    for (int32_t s = 0; s < layout->shard_count; s++)
        at.inside = larger(at.inside, lay_out_inside(layout, &at, s));
    place_inside(layout, at.activations);
    at.activations += at.inside;
    layout->boundary_stride = at.border;
    for (int i = 0; i < 2 && !layout->config.forward_only; i++) {
        layout->piece_gradient[i] = at.activations;
        at.activations += at.piece;
    }
    return at.activations;
}

static void count_device(struct dpo_layout *layout)
{
    size_t borders = (size_t)layout->rings + (layout->config.forward_only ? 0 : 2);
    struct dp_offload_memory *counts = &layout->counts;

    counts->slots_bytes = (layout->slot_values + layout->slot_grads) * (size_t)layout->config.slots;
    counts->activations_bytes = layout->activation_bytes + borders * layout->boundary_stride;
    counts->device_bytes = counts->slots_bytes + counts->activations_bytes;
}

size_t dpo_layout_home_bytes(const struct dpo_layout *layout, const struct dpo_shard *shard)
{
    return dpo_align(shard->host_value_bytes + shard->host_grad_bytes) +
           (layout->images ? dpo_align(shard->value_bytes) : 0);
}

static void count_shards(struct dpo_layout *layout)
{
    layout->rings = layout->config.boundaries_down ? layout->config.distance + 2 : 0;
    for (int32_t s = 0; s < layout->shard_count; s++) {
        const struct dpo_shard *shard = &layout->shards[s];
        layout->slot_values = larger(layout->slot_values, shard->value_bytes);
        layout->slot_grads = larger(layout->slot_grads, shard->grad_bytes);
        layout->counts.largest_shard_bytes =
            larger(layout->counts.largest_shard_bytes, shard->value_bytes + shard->grad_bytes);
    }
    layout->activation_bytes = lay_out(layout);
    count_device(layout);
}

/* ---- all ------------------------------------------------------------------------------------- */

struct dp_offload_plan dpo_layout_plan(const struct dpo_layout *layout, bool forward_only)
{
    return (struct dp_offload_plan){.shards = layout->shard_count,
                                    .slots = layout->config.slots,
                                    .distance = layout->config.distance,
                                    .forward_only = forward_only,
                                    .drop_at_once = layout->config.drop_at_once};
}

/* More slots than shards would stay empty. */
static void drop_surplus(struct dp_offload_config *c, int32_t shards)
{
    if (c->slots > shards)
        c->slots = shards;
    if (c->distance >= c->slots)
        c->distance = c->slots - 1;
}

static int check_plan(struct dpo_layout *layout)
{
    const struct dp_offload_plan plan = dpo_layout_plan(layout, false);
    int err = dpo_plan_check(&plan);

    if (!err)
        drop_surplus(&layout->config, layout->shard_count);
    return err;
}

static void take_config(struct dpo_layout *layout, const struct dp_offload_config *config)
{
    layout->config = *config;
    layout->config.microbatches = config->microbatches ? config->microbatches : 1;
    if (!config->slots) {
        layout->config.slots = 2;
        layout->config.distance = 1;
    }
    layout->images = config->values_type.bits;
    layout->widens = config->grads_type.bits;
    if (!config->timeout_ns)
        layout->config.timeout_ns = 60 * DP_NS_PER_S;
}

int dpo_layout_init(struct dpo_layout *layout, const struct dp_offload_config *config)
{
    *layout = (struct dpo_layout){0};
    int err = check_config(config);
    if (err)
        return err;
    take_config(layout, config);
    err = take_rows(layout);
    if (!err)
        err = take_shards(layout);
    if (!err)
        err = check_plan(layout);
    if (!err)
        err = dpo_parameters_init(layout);
    if (!err)
        count_shards(layout);
    if (err)
        dpo_layout_fini(layout);
    return err;
}

void dpo_layout_fini(struct dpo_layout *layout)
{
    dpo_parameters_fini(layout);
    free(layout->shards);
    free(layout->layers);
    free(layout->rows);
}
