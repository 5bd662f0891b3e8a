/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_host.c - a slot's values and gradients in pinned memory of the host, where replicas sum and mix
 * them.
 */
#include "train/cuda/cuda_rank.h"

#include <string.h>

static size_t bytes_of(const struct cuda_slot *s)
{
    return s->stage->params.count * sizeof(real);
}

int cuda_rank_host(struct cuda_rank *r, int slot, struct gpt_stage **out)
{
    struct cuda_slot *s = &r->slots[slot];
    struct gpt_config model = s->stage->config;
    const size_t bytes = bytes_of(s);

    model.compute = NULL;
    int err = gpt_stage_new_bare(&model, s->index, s->stages, &s->host);
    if (!err)
        err = dp_device_alloc(r->dev, DP_MEMORY_PINNED, 2 * bytes, &s->host_memory);
    if (err)
        return err;
    real *values = s->host_memory;
    memset(values, 0, 2 * bytes);
    gpt_stage_set_memory(s->host, values, values + s->stage->params.count, NULL);
    *out = s->host;
    return cuda_rank_copy(r, values, s->weights, bytes);
}

int cuda_rank_fetch(struct cuda_rank *r, int slot, bool clear)
{
    struct cuda_slot *s = &r->slots[slot];
    int err = cuda_rank_copy(r, s->host->grads, s->grads, bytes_of(s));

    return err || !clear ? err : dp_device_zero(r->stream, s->grads, bytes_of(s));
}

/* Waits, as the host goes on to change what is copied. */
int cuda_rank_put(struct cuda_rank *r, int slot, bool grads)
{
    struct cuda_slot *s = &r->slots[slot];

    return cuda_rank_copy(r, grads ? s->grads : s->weights, grads ? s->host->grads : s->host->weights,
                          bytes_of(s));
}

void cuda_host_free(struct cuda_rank *r, struct cuda_slot *s)
{
    gpt_stage_free(s->host);
    dp_device_free(r->dev, DP_MEMORY_PINNED, s->host_memory);
}
