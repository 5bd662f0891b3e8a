/* SPDX-License-Identifier: Apache-2.0
 *
 * kept.c - which shards stay on the device, and where their owner finds them.
 */
#include "offload/state.h"

#include "base/tensor.h"

static int64_t elements_of(const struct dp_offload *o, int32_t first, int32_t end)
{
    int64_t sum = 0;

    for (int32_t l = first; l < end; l++)
        for (int32_t k = 0; k < o->config.layers[l].parameter_count; k++) {
            const DLTensor *value = o->config.layers[l].parameters[k].value;
            sum += value ? dp_tensor_numel(value) : 0;
        }
    return sum;
}

/* The last shards stay on the device, as far as the share goes. */
void dpo_kept_choose(struct dp_offload *o)
{
    double left = o->config.kept_share * (double)elements_of(o, 0, o->config.layer_count);

    o->streamed = o->shard_count;
    while (o->streamed && o->config.kept_share > 0) {
        struct dpo_shard *shard = &o->shards[o->streamed - 1];
        left -= (double)elements_of(o, shard->first, shard->end);
        if (left < 0)
            break;
        shard->kept = true;
        o->streamed--;
    }
}

void dp_offload_kept(const struct dp_offload *o, int32_t *first, void **state, size_t *state_bytes)
{
    *first = o->list_count;
    for (int32_t s = o->streamed; s < o->shard_count; s++)
        *first -= o->shards[s].list_count;
    *state = o->kept_state_bytes ? o->kept_memory + o->kept_shard_bytes : NULL;
    *state_bytes = o->kept_state_bytes;
}
