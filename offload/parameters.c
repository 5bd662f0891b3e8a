/* SPDX-License-Identifier: Apache-2.0
 *
 * parameters.c - where parameters lie. In every shard: all values, then all gradients, 256-byte
 * aligned. A tied parameter is owned by its first occurrence. In the same shard the others are the
 * same memory; in other shards they are copies, so that a shard is still loaded by one copy: their
 * gradients are added to the owner's, and its new value is copied back to them (shards.c).
 */
#include "offload/state.h"

#include "base/fail.h"
#include "base/tensor.h"

#include <stdlib.h>
#include <string.h>

static size_t align(size_t n)
{
    return (n + 255) / 256 * 256;
}

static bool frozen(const struct dpo_parameter *p)
{
    return p->given->flags & DP_PARAMETER_FROZEN;
}

static bool tied(const struct dp_parameter *a, const struct dp_parameter *b)
{
    return (a->tied && b->tied && !strcmp(a->tied, b->tied)) ||
           dp_tensor_address(a->value) == dp_tensor_address(b->value);
}

/* The parameters before it are all set. */
static void find_owner(struct dp_offload *o, struct dpo_parameter *p)
{
    p->owner = p;
    for (struct dpo_parameter *q = o->parameters; q < p; q++)
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

static int take_parameter(struct dp_offload *o, struct dpo_parameter *p, int32_t layer)
{
    const struct dp_parameter *given = p->given;

    if (!given->value || !dp_tensor_on_host(given->value) || !dp_tensor_compact(given->value))
        return dp_fail(DP_EINVAL,
                       "offload: layer %d, parameter '%s': expected a contiguous tensor on "
                       "the host",
                       layer, given->name ? given->name : "");
    const DLTensor *grad = given->grad ? given->grad : given->value;
    if (!frozen(p) && (grad->dtype.code != kDLFloat || grad->dtype.bits < 32))
        return dp_fail(DP_EUNSUPPORTED,
                       "offload: layer %d, parameter '%s': expected a float32 or float64 gradient",
                       layer, given->name ? given->name : "");
    p->value_bytes = (size_t)dp_tensor_numel(given->value) * dp_tensor_element_bytes(given->value);
    if (!frozen(p))
        p->grad_bytes = (size_t)dp_tensor_numel(given->value) * dp_tensor_element_bytes(grad);
    p->grad = SIZE_MAX;
    find_owner(o, p);
    if (p->owner->value_bytes != p->value_bytes || p->owner->grad_bytes != p->grad_bytes)
        return dp_fail(DP_EINVAL,
                       "offload: layer %d, parameter '%s': tied to '%s', which has "
                       "another size",
                       layer, given->name, p->owner->given->name);
    struct dpo_shard *shard = &o->shards[p->shard];
    if (p->alias)
        return 0;
    p->value = shard->value_bytes;
    shard->value_bytes += align(p->value_bytes);
    if (!frozen(p) && !o->config.forward_only) {
        p->grad = shard->grad_bytes;
        shard->grad_bytes += align(p->grad_bytes);
    }
    if (p->owner->shard < shard->wait_for)
        shard->wait_for = p->owner->shard;
    return 0;
}

static int32_t shard_of(const struct dp_offload *o, int32_t layer)
{
    int32_t shard = 0;

    while (layer >= o->shards[shard].end)
        shard++;
    return shard;
}

static int take_layer(struct dp_offload *o, int32_t index, struct dpo_parameter *p)
{
    struct dpo_layer *layer = &o->layers[index];
    const struct dp_offload_layer *given = layer->given;
    int err = 0;

    layer->parameters = p;
    layer->values = calloc((size_t)given->parameter_count + 1, sizeof(DLTensor));
    layer->grads = calloc((size_t)given->parameter_count + 1, sizeof(DLTensor));
    if (!layer->values || !layer->grads)
        return dp_fail(DP_ENOMEM, "offload: no memory for layer %d", index);
    for (int32_t k = 0; k < given->parameter_count && !err; k++) {
        p[k].given = &given->parameters[k];
        p[k].shard = shard_of(o, index);
        err = take_parameter(o, &p[k], index);
    }
    return err;
}

int dpo_parameters_init(struct dp_offload *o)
{
    int32_t at = 0;
    int err = 0;

    for (int32_t l = 0; l < o->config.layer_count; l++)
        o->parameter_count += o->config.layers[l].parameter_count;
    o->parameters = calloc((size_t)o->parameter_count + 1, sizeof(*o->parameters));
    o->list = calloc((size_t)o->parameter_count + 1, sizeof(*o->list));
    if (!o->parameters || !o->list)
        return dp_fail(DP_ENOMEM, "offload: no memory for %d parameters", o->parameter_count);
    for (int32_t l = 0; l < o->config.layer_count && !err; l++) {
        err = take_layer(o, l, o->parameters + at);
        at += o->config.layers[l].parameter_count;
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

static void fill_one(struct dp_offload *o, struct dpo_parameter *p)
{
    struct dpo_shard *shard = &o->shards[p->shard];
    const struct dp_parameter *given = p->given;

    if (p->alias)
        return;
    memcpy(shard->values + p->value, dp_tensor_address(given->value), p->value_bytes);
    p->host_value = moved(given->value, shard->values + p->value);
    if (p->grad != SIZE_MAX)
        p->host_grad = moved(given->grad ? given->grad : given->value, shard->grads + p->grad);
    if (p->owner != p)
        return;
    struct dp_parameter listed = *given;
    listed.value = &p->host_value;
    listed.grad = p->grad != SIZE_MAX ? &p->host_grad : NULL;
    if (!shard->list)
        shard->list = &o->list[o->list_count];
    shard->list_count++;
    o->list[o->list_count++] = listed;
}

int dpo_parameters_fill(struct dp_offload *o)
{
    for (int32_t i = 0; i < o->parameter_count; i++)
        fill_one(o, &o->parameters[i]);
    return 0;
}

void dpo_parameters_fini(struct dp_offload *o)
{
    for (int32_t l = 0; o->layers && l < o->config.layer_count; l++) {
        free(o->layers[l].values);
        free(o->layers[l].grads);
    }
    free(o->parameters);
    free(o->list);
}
