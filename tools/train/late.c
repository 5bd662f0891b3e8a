/* SPDX-License-Identifier: Apache-2.0 */
#include "train/late.h"


#include <stdlib.h>
#include <string.h>

enum { DUE, RATE, SCALE, SKIP }; /* of late.state */

static struct dp_mixer_update due_update(const struct late *l)
{
    return (struct dp_mixer_update){l->state[RATE], l->state[SCALE], l->state[SKIP] > 0};
}

static void set_due(struct late *l, const struct dp_mixer_update *how)
{
    l->state[DUE] = 1;
    l->state[RATE] = how->rate;
    l->state[SCALE] = how->scale;
    l->state[SKIP] = how->skip;
}

/* ---- what is kept until the next step -------------------------------------------------------- */

/* A tensor like the gradient, in the slot's block of kept ones. */
static void place(struct late *l, const struct gpt_stage *stage, int slot)
{
    for (size_t i = 0; i < stage->params.tensors_len; i++) {
        DLTensor *kept = &l->kept[slot][i];
        *kept = *stage->parameters[i].grad;
        kept->data = l->block[slot] + stage->params.tensors[i].offset;
        kept->byte_offset = 0;
    }
}

int late_init(struct trainer *t, int (*update)(struct trainer *t, int slot,
                                               const struct dp_mixer_update *how))
{
    struct late *l = &t->late;
    const struct engine *e = t->engine;

    if (!t->config.late)
        return 0;
    l->shape = 4;
    l->update = update;
    for (int i = 0; i < e->stage_count; i++) {
        const struct params *p = &e->stages[i]->params;
        l->block[i] = calloc(p->count + 1, sizeof(real));
        l->kept[i] = calloc(p->tensors_len + 1, sizeof(DLTensor));
        if (!l->block[i] || !l->kept[i])
            return DP_ENOMEM;
        place(l, e->stages[i], i);
    }
    return 0;
}

void late_fini(struct trainer *t)
{
    for (int i = 0; i < DP_MAX_SLOTS; i++) {
        free(t->late.block[i]);
        free(t->late.kept[i]);
    }
}

/* The kept gradients for those of the stage; these are kept. */
static void swap_gradients(struct trainer *t, int slot)
{
    const struct gpt_stage *stage = t->engine->stages[slot];

    for (size_t i = 0; i < stage->params.tensors_len; i++) {
        real *a = stage->parameters[i].grad->data, *b = t->late.kept[slot][i].data;
        const size_t count = tensor_count(&stage->params.tensors[i]);
        for (size_t k = 0; k < count; k++) {
            const real other = a[k];
            a[k] = b[k];
            b[k] = other;
        }
    }
}

/* ---- updates --------------------------------------------------------------------------------- */

int late_carry_out(void *trainer)
{
    struct trainer *t = trainer;
    const struct dp_mixer_update how = due_update(&t->late);
    int err = 0;

    for (int i = 0; i < t->engine->stage_count && t->late.state[DUE] > 0 && !err; i++)
        err = t->late.update(t, i, &how);
    return err;
}

int late_update(struct trainer *t, const struct dp_mixer_update *how)
{
    int err = 0;

    for (int i = 0; i < t->engine->stage_count; i++)
        swap_gradients(t, i);
    err = late_carry_out(t); /* which leaves them zero, as they are before the first */
    set_due(&t->late, how);
    return err;
}

int late_catch_up(struct trainer *t)
{
    int err = 0;

    if (!t->config.late || !(t->late.state[DUE] > 0))
        return 0;
    for (int i = 0; i < t->engine->stage_count; i++)
        swap_gradients(t, i);
    err = late_carry_out(t);
    t->late.state[DUE] = 0;
    return err;
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

const char late_update_name[] = "late/step";

bool late_update_is_in(const struct dp_checkpoint *c)
{
    bool found = dp_checkpoint_find(c, late_update_name);

    for (int32_t i = 0; i < dp_checkpoint_count(c) && !found; i++) {
        const char *slash = strrchr(dp_checkpoint_at(c, i)->name, '/');
        found = slash && !strcmp(slash, "/late");
    }
    return found;
}

const DLTensor *late_gradient(const struct trainer *t, int slot, size_t tensor)
{
    return &t->late.kept[slot][tensor];
}

const DLTensor *late_update_state(struct trainer *t)
{
    t->late.tensor = (DLTensor){.data = t->late.state,
                                .device = {kDLCPU, 0},
                                .ndim = 1,
                                .dtype = {kDLFloat, 64, 1},
                                .shape = &t->late.shape};
    return &t->late.tensor;
}

void late_restore(struct trainer *t, bool found)
{
    if (!found)
        t->late.state[DUE] = 0;
}
