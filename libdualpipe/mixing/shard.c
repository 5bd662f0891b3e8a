/* SPDX-License-Identifier: Apache-2.0 */
#include "mixing/shard.h"

#include "base/tensor.h"

#include <stdio.h>
#include <stdlib.h>

struct dp_shard_tensor {
    char name[160];
    int64_t shape[1];
    DLTensor value, grad;
};

int dp_shard_init(struct dp_shard *s, size_t most)
{
    s->list = calloc(most + 1, sizeof(*s->list));
    s->tensors = calloc(most + 1, sizeof(*s->tensors));
    return s->list && s->tensors ? 0 : DP_ENOMEM;
}

void dp_shard_fini(struct dp_shard *s)
{
    free(s->list);
    free(s->tensors);
    *s = (struct dp_shard){0};
}

static DLTensor piece_of(const DLTensor *t, size_t first, int64_t *shape)
{
    return (DLTensor){.data = dp_tensor_address(t) + first * dp_tensor_element_bytes(t),
                      .device = t->device,
                      .ndim = 1,
                      .dtype = t->dtype,
                      .shape = shape};
}

void dp_shard_add(struct dp_shard *s, const struct dp_parameter *p, size_t first, size_t count)
{
    struct dp_shard_tensor *t = &s->tensors[s->count];

    snprintf(t->name, sizeof(t->name), "%.100s[%zu:%zu]", p->name, first, first + count);
    t->shape[0] = (int64_t)count;
    t->value = piece_of(p->value, first, t->shape);
    t->grad = piece_of(p->grad, first, t->shape);
    s->list[s->count++] = (struct dp_parameter){
        .name = t->name, .flags = p->flags, .value = &t->value, .grad = &t->grad};
}

int dp_shard_levels(int replicas)
{
    int levels = 0;

    while (1 << levels < replicas)
        levels++;
    return 1 << levels == replicas ? levels : 0;
}
