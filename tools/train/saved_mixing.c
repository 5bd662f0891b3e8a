/* SPDX-License-Identifier: Apache-2.0 */
#include "train/saved_mixing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ----------------------------------------------------------------------------------- */

static const char *value_name(const struct trainer *t, const char *name,
                              char out[static SAVED_MIXING_NAME])
{
    snprintf(out, SAVED_MIXING_NAME, "replica %d/%s", t->engine->replica.index, name);
    return out;
}

static const char *state_name(const struct trainer *t, int slot, const char *name,
                              char out[static SAVED_MIXING_NAME])
{
    const struct engine *e = t->engine;
    const int stage =
        e->schedule ? dp_schedule_slot(e->schedule, engine_rank(e), slot)->stage : 0;

    snprintf(out, SAVED_MIXING_NAME, "replica %d stage %d/%s", e->replica.index, stage, name);
    return out;
}

/* ---- writing --------------------------------------------------------------------------------- */

static bool is_first_of_all(const struct trainer *t, int slot)
{
    return t->engine->replica.index == 0 && !t->engine->second_copy[slot];
}

/* The weights become the average, are copied, and are what they were again. */
static int copy_average(struct trainer *t, struct saved_mixing *m)
{
    int err = data_parallel_average(&t->replicas, true);

    for (int i = 0; i < t->engine->stage_count && !err; i++) {
        const struct gpt_stage *stage = t->engine->stages[i];
        const size_t bytes = stage->params.count * sizeof(real);
        if (!is_first_of_all(t, i))
            continue;
        m->average[i] = malloc(bytes);
        if (m->average[i])
            memcpy(m->average[i], stage->weights, bytes);
        else
            err = DP_ENOMEM;
    }
    const int reverted = data_parallel_revert(&t->replicas);
    return err ? err : reverted;
}

static int make_room(const struct trainer *t, struct saved_mixing *m, int32_t states)
{
    size_t room = (size_t)states + 1;

    for (int i = 0; i < t->engine->stage_count; i++)
        room += 2 * t->engine->stages[i]->params.tensors_len;
    m->tensors = calloc(room, sizeof(*m->tensors));
    m->names = calloc(room, sizeof(*m->names));
    return m->tensors && m->names ? 0 : DP_ENOMEM;
}

/* As a tensor whose name is m's. */
static void add_tensor(struct saved_mixing *m, const DLTensor *tensor)
{
    m->tensors[m->count] = (struct dp_named_tensor){m->names[m->count], *tensor};
    m->count++;
}

static void add_values(struct saved_mixing *m, const struct trainer *t, int slot)
{
    const struct gpt_stage *stage = t->engine->stages[slot];

    for (size_t i = 0; i < stage->params.tensors_len; i++) {
        const struct dp_parameter *p = &stage->parameters[i];
        DLTensor average = *p->value;
        value_name(t, p->name, m->names[m->count]);
        add_tensor(m, p->value);
        if (!m->average[slot])
            continue;
        average.data = m->average[slot] + stage->params.tensors[i].offset;
        average.byte_offset = 0;
        snprintf(m->names[m->count], SAVED_MIXING_NAME, "%s", p->name);
        add_tensor(m, &average);
    }
}

struct mixer_state {
    const struct dp_named_tensor *tensors;
    int32_t count;
};

int saved_mixing_list(struct trainer *t, struct saved_mixing *out)
{
    struct mixer_state states[DP_MAX_SLOTS] = {0};
    int32_t sum = 0;
    int err;

    *out = (struct saved_mixing){0};
    err = copy_average(t, out);
    for (int i = 0; i < t->engine->stage_count && !err; i++) {
        err = dp_mixer_state(t->replicas.slots[i].mixer, &states[i].tensors, &states[i].count);
        sum += states[i].count;
    }
    if (!err)
        err = make_room(t, out, sum);
    for (int i = 0; i < t->engine->stage_count && !err; i++) {
        if (t->engine->second_copy[i])
            continue;
        add_values(out, t, i);
        for (int32_t k = 0; k < states[i].count; k++) {
            state_name(t, i, states[i].tensors[k].name, out->names[out->count]);
            add_tensor(out, &states[i].tensors[k].tensor);
        }
    }
    return err;
}

void saved_mixing_fini(struct saved_mixing *m)
{
    for (int i = 0; i < DP_MAX_SLOTS; i++)
        free(m->average[i]);
    free(m->tensors);
    free(m->names);
    *m = (struct saved_mixing){0};
}

/* ---- reading --------------------------------------------------------------------------------- */

static int read_values(struct trainer *t, int slot, const struct dp_checkpoint *c)
{
    const struct gpt_stage *stage = t->engine->stages[slot];
    char name[SAVED_MIXING_NAME];
    int err = 0;

    for (size_t i = 0; i < stage->params.tensors_len && !err; i++)
        err = dp_checkpoint_read(c, value_name(t, stage->parameters[i].name, name),
                                 stage->parameters[i].value);
    return err;
}

/* The numbers say which tensors there are. */
static int resume_mixer(struct trainer *t, int slot, const struct dp_checkpoint *c)
{
    char name[SAVED_MIXING_NAME];
    const struct dp_checkpoint_tensor *at =
        dp_checkpoint_find(c, state_name(t, slot, "mixer/numbers", name));
    int64_t length = at && at->ndim == 1 ? at->shape[0] : 0;
    int64_t *numbers = calloc((size_t)length + 1, sizeof(*numbers));
    const DLTensor out = {.data = numbers,
                          .device = {kDLCPU, 0},
                          .ndim = 1,
                          .dtype = {kDLInt, 64, 1},
                          .shape = &length};
    int err = numbers ? dp_checkpoint_read(c, name, &out) : DP_ENOMEM;

    if (!err)
        err = dp_mixer_resume(t->replicas.slots[slot].mixer, numbers, length);
    free(numbers);
    return err;
}

static int read_state(struct trainer *t, int slot, const struct dp_checkpoint *c)
{
    const struct dp_named_tensor *tensors;
    char name[SAVED_MIXING_NAME];
    int32_t count = 0;
    int err = dp_mixer_state(t->replicas.slots[slot].mixer, &tensors, &count);

    for (int32_t i = 0; i < count && !err; i++)
        err = dp_checkpoint_read(c, state_name(t, slot, tensors[i].name, name),
                                 &tensors[i].tensor);
    return err;
}

int saved_mixing_read(struct trainer *t, const struct dp_checkpoint *c)
{
    int err = 0;

    for (int i = 0; i < t->engine->stage_count && !err; i++) {
        err = resume_mixer(t, i, c);
        if (!err)
            err = read_values(t, i, c);
        if (!err)
            err = read_state(t, i, c);
    }
    return err;
}
