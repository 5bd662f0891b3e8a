/* SPDX-License-Identifier: Apache-2.0
 *
 * parameters.c - where parameters lie. In every shard: all values, then all gradients, 256-byte
 * aligned. A tied parameter is owned by its first occurrence. In the same shard the others are the
 * same memory; in other shards they are copies, so that a shard is still loaded by one copy: their
 * gradients are added to the owner's, and its new value is copied back to them (shards.c).
 *
 * Mixed precision: the same once more in 16 bits, as it is in a slot.
 *
 *      host     values, gradients      float32
 *      up       values                 16 bits, the float32 ones rounded
 */
#include "offload/layout.h"

#include "base/fail.h"
#include "base/tensor.h"
#include "optimizer/update.h"

#include <stdlib.h>
#include <string.h>

static bool frozen(const struct dpo_parameter *p)
{
    return p->given->flags & DP_PARAMETER_FROZEN;
}

static DLDataType in_16_bits(DLDataType type, DLDataType wanted)
{
    return wanted.bits && type.code == kDLFloat && type.bits == 32 ? wanted : type;
}

DLDataType dpo_value_type(const struct dp_offload_config *c, const struct dp_parameter *p)
{
    return in_16_bits(p->value->dtype, c->values_type);
}

DLDataType dpo_grad_type(const struct dp_offload_config *c, const struct dp_parameter *p)
{
    return in_16_bits(p->grad ? p->grad->dtype : p->value->dtype, c->grads_type);
}

static bool tied(const struct dp_parameter *a, const struct dp_parameter *b)
{
    return (a->tied && b->tied && !strcmp(a->tied, b->tied)) ||
           dp_tensor_address(a->value) == dp_tensor_address(b->value);
}

/* The parameters before it are all set. */
static void find_owner(struct dpo_layout *layout, struct dpo_parameter *p)
{
    p->owner = p;
    for (struct dpo_parameter *q = layout->parameters; q < p; q++)
        if (q->owner == q && tied(q->given, p->given)) {
            p->owner = q;
            break;
        }
    for (struct dpo_parameter *q = p->owner; q < p && !p->alias; q++)
        if (q->owner == p->owner && q->shard == p->shard) {
            p->alias = true;
            p->value = q->value;
            p->grad = q->grad;
        }
}

static bool is_real(DLDataType type)
{
    return (type.code == kDLFloat && (type.bits == 16 || type.bits == 32 || type.bits == 64)) ||
           (type.code == kDLBfloat && type.bits == 16);
}

static size_t take_bytes(size_t *bytes, size_t more)
{
    size_t at = *bytes;

    *bytes += dpo_align(more);
    return at;
}

static int take_parameter(struct dpo_layout *layout, struct dpo_parameter *p, int32_t layer)
{
    const struct dp_parameter *given = p->given;

    if (!given->value || !dp_tensor_on_host(given->value) || !dp_tensor_compact(given->value))
        return dp_fail(DP_EINVAL,
                       "offload: layer %d, parameter '%s': expected a contiguous tensor on "
                       "the host",
                       layer, given->name ? given->name : "");
    const DLTensor *grad = given->grad ? given->grad : given->value;
    if (!frozen(p) && !is_real(grad->dtype))
        return dp_fail(DP_EUNSUPPORTED,
                       "offload: layer %d, parameter '%s': expected a gradient of float32, float64, "
                       "bfloat16 or float16",
                       layer, given->name ? given->name : "");
    p->count = (size_t)dp_tensor_numel(given->value);
    p->value_type = dpo_value_type(&layout->config, given);
    p->grad_type = dpo_grad_type(&layout->config, given);
    p->value_bytes = p->count * (p->value_type.bits / 8u);
    if (!frozen(p))
        p->grad_bytes = p->count * (p->grad_type.bits / 8u);
    p->grad = SIZE_MAX;
    find_owner(layout, p);
    if (p->owner->value_bytes != p->value_bytes || p->owner->grad_bytes != p->grad_bytes)
        return dp_fail(DP_EINVAL,
                       "offload: layer %d, parameter '%s': tied to '%s', which has "
                       "another size",
                       layer, given->name, p->owner->given->name);
    struct dpo_shard *shard = &layout->shards[p->shard];
    if (p->alias)
        return 0;
    layout->copies_tied = layout->copies_tied || p->owner != p;
    p->value = take_bytes(&shard->value_bytes, p->value_bytes);
    p->host_value_at = take_bytes(&shard->host_value_bytes,
                                  p->count * dp_tensor_element_bytes(given->value));
    if (!frozen(p) && !layout->config.forward_only) {
        p->grad = take_bytes(&shard->grad_bytes, p->grad_bytes);
        p->host_grad_at =
            take_bytes(&shard->host_grad_bytes, p->count * dp_tensor_element_bytes(grad));
    }
    if (p->owner->shard < shard->wait_for)
        shard->wait_for = p->owner->shard;
    return 0;
}

static int32_t shard_of(const struct dpo_layout *layout, int32_t layer)
{
    int32_t shard = 0;

    while (layer >= layout->shards[shard].end)
        shard++;
    return shard;
}

static int take_layer(struct dpo_layout *layout, int32_t index, struct dpo_parameter *p)
{
    struct dpo_layer *layer = &layout->layers[index];
    const struct dp_offload_layer *given = layer->given;
    int err = 0;

    layer->parameters = p;
    layer->values = calloc((size_t)given->parameter_count + 1, sizeof(DLTensor));
    layer->grads = calloc((size_t)given->parameter_count + 1, sizeof(DLTensor));
    if (!layer->values || !layer->grads)
        return dp_fail(DP_ENOMEM, "offload: no memory for layer %d", index);
    for (int32_t k = 0; k < given->parameter_count && !err; k++) {
        p[k].given = &given->parameters[k];
        p[k].shard = shard_of(layout, index);
        err = take_parameter(layout, &p[k], index);
    }
    return err;
}

int dpo_parameters_init(struct dpo_layout *layout)
{
    int32_t at = 0;
    int err = 0;

    for (int32_t l = 0; l < layout->config.layer_count; l++)
        layout->parameter_count += layout->config.layers[l].parameter_count;
    layout->parameters = calloc((size_t)layout->parameter_count + 1, sizeof(*layout->parameters));
    layout->list = calloc((size_t)layout->parameter_count + 1, sizeof(*layout->list));
    if (!layout->parameters || !layout->list)
        return dp_fail(DP_ENOMEM, "offload: no memory for %d parameters", layout->parameter_count);
    for (int32_t l = 0; l < layout->config.layer_count && !err; l++) {
        err = take_layer(layout, l, layout->parameters + at);
        at += layout->config.layers[l].parameter_count;
    }
    return err;
}

/* The tensor of the user's, elsewhere. */
static DLTensor moved(const DLTensor *like, char *to)
{
    DLTensor t = *like;

    t.data = to;
    t.byte_offset = 0;
    t.strides = NULL;
    t.device = (DLDevice){kDLCPU, 0};
    return t;
}

static void fill_one(struct dpo_layout *layout, struct dpo_parameter *p)
{
    struct dpo_shard *shard = &layout->shards[p->shard];
    const struct dp_parameter *given = p->given;

    if (p->alias)
        return;
    p->host_value = moved(given->value, shard->values + p->host_value_at);
    memcpy(p->host_value.data, dp_tensor_address(given->value),
           p->count * dp_tensor_element_bytes(given->value));
    if (p->grad != SIZE_MAX)
        p->host_grad = moved(given->grad ? given->grad : given->value,
                             shard->grads + p->host_grad_at);
    if (p->owner != p)
        return;
    struct dp_parameter listed = *given;
    listed.value = &p->host_value;
    listed.grad = p->grad != SIZE_MAX ? &p->host_grad : NULL;
    if (!shard->list)
        shard->list = &layout->list[layout->list_count];
    shard->list_count++;
    layout->list[layout->list_count++] = listed;
}

int dpo_parameters_fill(struct dpo_layout *layout)
{
    for (int32_t i = 0; i < layout->parameter_count; i++)
        fill_one(layout, &layout->parameters[i]);
    for (int32_t s = 0; s < layout->shard_count; s++)
        dpo_parameters_renew(layout, s);
    return 0;
}

static void renew(struct dpo_layout *layout, struct dpo_parameter *p)
{
    size_t bytes = dp_tensor_element_bytes(&p->host_value);
    char *up = layout->shards[p->shard].up + p->value;

    if (p->owner != p)
        memcpy(p->host_value.data, p->owner->host_value.data, p->count * bytes);
    if (p->value_type.bits != p->host_value.dtype.bits)
        dp_real_store(p->value_type, p->count, up, p->host_value.data, false);
    else if (layout->images)
        memcpy(up, p->host_value.data, p->value_bytes);
}

void dpo_parameters_renew(struct dpo_layout *layout, int32_t shard)
{
    for (int32_t i = 0; i < layout->parameter_count; i++)
        if (layout->parameters[i].shard == shard && !layout->parameters[i].alias)
            renew(layout, &layout->parameters[i]);
}

void dpo_parameters_renew_owned(struct dpo_layout *layout, int32_t shard)
{
    for (int32_t i = 0; i < layout->parameter_count; i++)
        if (layout->parameters[i].owner->shard == shard && !layout->parameters[i].alias)
            renew(layout, &layout->parameters[i]);
}

void dpo_parameters_fini(struct dpo_layout *layout)
{
    for (int32_t l = 0; layout->layers && l < layout->config.layer_count; l++) {
        free(layout->layers[l].values);
        free(layout->layers[l].grads);
    }
    free(layout->parameters);
    free(layout->list);
}
