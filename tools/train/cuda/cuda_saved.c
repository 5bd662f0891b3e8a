/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_saved.c - what a checkpoint has of a slot: its values and AdamW's state, in the host's memory. A
 * bare stage and an optimizer there give them the names and shapes that they have on the CPU.
 */
#include "train/cuda/cuda_rank.h"

#include <stdlib.h>
#include <string.h>

/* A part in the host's memory. */
struct saved_part {
    DLTensor tensor;
    int64_t shape[1];
};

struct cuda_saved {
    struct gpt_stage *stage;
    struct saved_part *pieces; /* of a shard */
    struct dp_optimizer *optimizer;
    real *values;
};

void cuda_saved_free(struct cuda_saved *saved)
{
    if (!saved)
        return;
    dp_optimizer_free(saved->optimizer);
    gpt_stage_free(saved->stage);
    free(saved->pieces);
    free(saved->values);
    free(saved);
}

/* A piece as a parameter of one dimension: the values stand for the gradients, which nothing uses. */
static struct dp_parameter piece_of(struct cuda_saved *saved, const struct cuda_part *part,
                                    struct saved_part *out)
{
    out->shape[0] = (int64_t)part->count;
    out->tensor = (DLTensor){.data = saved->values + part->offset,
                             .device = {kDLCPU, 0},
                             .ndim = 1,
                             .dtype = {kDLFloat, 32, 1},
                             .shape = out->shape};
    return (struct dp_parameter){.name = part->name,
                                 .flags = part->decays ? 0 : DP_PARAMETER_NO_DECAY,
                                 .value = &out->tensor,
                                 .grad = &out->tensor};
}

/* Of what this slot updates. */
static int make_optimizer(struct cuda_saved *saved, const struct cuda_slot *of,
                          const struct dp_optimizer_config *config)
{
    const size_t len = of->part_count;
    struct dp_parameter *own = calloc(len + 1, sizeof(*own));
    int32_t count = 0;

    saved->pieces = calloc(len + 1, sizeof(*saved->pieces));
    if (!own || !saved->pieces) {
        free(own);
        return DP_ENOMEM;
    }
    for (size_t i = 0; i < len; i++)
        if (of->parts[i].owned)
            own[count++] = of->is_sharded ? piece_of(saved, &of->parts[i], &saved->pieces[i])
                                          : saved->stage->parameters[i];
    const int err = dp_optimizer_new(config, own, count, &saved->optimizer);
    free(own);
    return err;
}

static int make(struct cuda_saved *saved, const struct cuda_slot *of,
                const struct dp_optimizer_config *config)
{
    struct gpt_config model = of->stage->config;

    model.compute = NULL;
    saved->values = malloc(of->stage->params.count * sizeof(*saved->values));
    int err = saved->values ? gpt_stage_new_bare(&model, of->index, of->stages, &saved->stage)
                            : DP_ENOMEM;
    if (err)
        return err;
    gpt_stage_set_memory(saved->stage, saved->values, saved->values, NULL); /* no gradient is used */
    return make_optimizer(saved, of, config);
}

/* The state of each parameter: its steps, then the mean, then the mean square. */
enum { STATES = 3 };

static int move_tensor(struct cuda_rank *r, bool up, void *host, void *device, size_t bytes)
{
    return cuda_rank_copy(r, up ? device : host, up ? host : device, bytes);
}

static int move_state(struct cuda_rank *r, struct cuda_slot *s, bool up,
                      const struct cuda_part *part, const struct dp_named_tensor *state)
{
    const size_t bytes = part->count * sizeof(real);
    int64_t *steps = state[0].tensor.data;
    int err = move_tensor(r, up, state[1].tensor.data, s->first + part->state, bytes);

    if (!err)
        err = move_tensor(r, up, state[2].tensor.data, s->second + part->state, bytes);
    if (up)
        s->updates = (uint64_t)*steps;
    else
        *steps = (int64_t)s->updates;
    return err;
}

static int move(struct cuda_rank *r, struct cuda_slot *s, bool up)
{
    const size_t bytes = s->stage->params.count * sizeof(real);
    const struct dp_named_tensor *state = dp_optimizer_state(s->saved->optimizer);
    int err = move_tensor(r, up, s->saved->values, s->weights, bytes);

    for (size_t i = 0; i < s->part_count && !err; i++)
        if (s->parts[i].owned) {
            err = move_state(r, s, up, &s->parts[i], state);
            state += STATES;
        }
    return err;
}

int cuda_rank_saved(struct cuda_rank *r, int slot, const struct dp_optimizer_config *config,
                    const struct gpt_stage **values, struct dp_optimizer **state)
{
    struct cuda_slot *s = &r->slots[slot];
    int err = 0;

    if (!s->saved) {
        s->saved = calloc(1, sizeof(*s->saved));
        err = s->saved ? make(s->saved, s, config) : DP_ENOMEM;
    }
    if (err) {
        cuda_saved_free(s->saved);
        s->saved = NULL;
        return err;
    }
    *values = s->saved->stage;
    *state = s->saved->optimizer;
    return move(r, s, false);
}

int cuda_rank_restore(struct cuda_rank *r, int slot)
{
    return move(r, &r->slots[slot], true);
}
