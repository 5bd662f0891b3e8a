/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/internal.h"
#include "trainer/saved.h"

#include "base/fail.h"
#include "base/tensor.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ----------------------------------------------------------------------------------- */

static const char *value_name(const struct sums *d, const char *name,
                              char out[static SAVED_NAME])
{
    snprintf(out, SAVED_NAME, "replica %d/%s", d->engine->replica.index, name);
    return out;
}

static const char *state_name(const struct sums *d, int slot, const char *name,
                              char out[static SAVED_NAME])
{
    snprintf(out, SAVED_NAME, "replica %d stage %d/%s", d->engine->replica.index,
             d->engine->parts[slot].stage, name);
    return out;
}

/* ---- writing --------------------------------------------------------------------------------- */

static bool is_first_of_all(const struct sums *d, int slot)
{
    return d->engine->replica.first && !d->engine->parts[slot].second_copy;
}

static size_t bytes_of(const struct dp_parameter *p)
{
    return (size_t)dp_parameter_elements(p) * (p->value->dtype.bits / 8u);
}

/* The values of a part, one after the other. */
static int copy_values(const struct engine_part *part, void **out)
{
    size_t bytes = 1;

    for (int32_t i = 0; i < part->count; i++)
        bytes += bytes_of(&part->parameters[i]);
    char *at = *out = malloc(bytes);
    if (!at)
        return dp_fail(DP_ENOMEM, "no memory for the average of %zu bytes", bytes);
    for (int32_t i = 0; i < part->count; i++) {
        memcpy(at, part->parameters[i].value->data, bytes_of(&part->parameters[i]));
        at += bytes_of(&part->parameters[i]);
    }
    return 0;
}

/* The values become the average, are copied, and are what they were again. */
static int copy_average(struct sums *d, struct saved_list *l)
{
    int err = sums_average(d, true);

    if (err)
        return err;
    for (int i = 0; i < d->engine->part_count && !err; i++)
        if (is_first_of_all(d, i))
            err = copy_values(&d->engine->parts[i], &l->average[i]);
    const int reverted = sums_revert(d);
    return err ? err : reverted;
}

static int make_room(const struct sums *d, struct saved_list *l, int32_t others)
{
    size_t room = (size_t)l->count + (size_t)others + 1;

    for (int i = 0; i < d->engine->part_count; i++)
        room += 2 * (size_t)d->engine->parts[i].count;
    struct dp_named_tensor *tensors = realloc(l->tensors, room * sizeof(*tensors));
    l->tensors = tensors ? tensors : l->tensors;
    l->names = calloc(room, sizeof(*l->names));
    return tensors && l->names ? 0 : dp_fail(DP_ENOMEM, "no memory for %zu names", room);
}

/* As a tensor whose name is the list's. */
static void add_tensor(struct saved_list *l, const DLTensor *tensor)
{
    l->tensors[l->count] = (struct dp_named_tensor){l->names[l->count], *tensor};
    l->count++;
}

static void add_values(struct saved_list *l, const struct sums *d, int slot)
{
    const struct engine_part *part = &d->engine->parts[slot];
    char *averaged = l->average[slot];

    for (int32_t i = 0; i < part->count; i++) {
        const struct dp_parameter *p = &part->parameters[i];
        DLTensor average = *p->value;
        value_name(d, p->name, l->names[l->count]);
        add_tensor(l, p->value);
        if (!l->average[slot])
            continue;
        average.data = averaged;
        average.byte_offset = 0;
        averaged += bytes_of(p);
        snprintf(l->names[l->count], SAVED_NAME, "%s", p->name);
        add_tensor(l, &average);
    }
}

struct mixer_state {
    const struct dp_named_tensor *tensors;
    int32_t count;
};

int saved_mixing_list(struct sums *d, struct saved_list *l)
{
    struct mixer_state states[DP_MAX_SLOTS] = {0};
    int32_t sum = 0;
    int err;

    if (place_device(d->place))
        return dp_fail(DP_EUNSUPPORTED, "a checkpoint of replicas that mix on a device");
    err = copy_average(d, l);
    for (int i = 0; i < d->engine->part_count && !err; i++) {
        err = dp_mixer_state(d->slots[i].mixer, &states[i].tensors, &states[i].count);
        sum += states[i].count;
    }
    if (!err)
        err = make_room(d, l, sum);
    for (int i = 0; i < d->engine->part_count && !err; i++) {
        if (d->engine->parts[i].second_copy)
            continue;
        add_values(l, d, i);
        for (int32_t k = 0; k < states[i].count; k++) {
            state_name(d, i, states[i].tensors[k].name, l->names[l->count]);
            add_tensor(l, &states[i].tensors[k].tensor);
        }
    }
    return err;
}

/* ---- reading --------------------------------------------------------------------------------- */

static int read_values(struct sums *d, int slot, const struct dp_checkpoint *c)
{
    const struct engine_part *part = &d->engine->parts[slot];
    char name[SAVED_NAME];
    int err = 0;

    for (int32_t i = 0; i < part->count && !err; i++)
        err = dp_checkpoint_read(c, value_name(d, part->parameters[i].name, name),
                                 part->parameters[i].value);
    return err;
}

/* The numbers say which tensors there are. */
static int resume_mixer(struct sums *d, int slot, const struct dp_checkpoint *c)
{
    char name[SAVED_NAME];
    const struct dp_checkpoint_tensor *at =
        dp_checkpoint_find(c, state_name(d, slot, "mixer/numbers", name));
    int64_t length = at && at->ndim == 1 ? at->shape[0] : 0;
    int64_t *numbers = calloc((size_t)length + 1, sizeof(*numbers));
    const DLTensor out = {.data = numbers,
                          .device = {kDLCPU, 0},
                          .ndim = 1,
                          .dtype = {kDLInt, 64, 1},
                          .shape = &length};
    int err = numbers ? dp_checkpoint_read(c, name, &out)
                      : dp_fail(DP_ENOMEM, "no memory for the numbers of a mixer");

    if (!err)
        err = dp_mixer_resume(d->slots[slot].mixer, numbers, length);
    free(numbers);
    return err;
}

static int read_state(struct sums *d, int slot, const struct dp_checkpoint *c)
{
    const struct dp_named_tensor *tensors;
    char name[SAVED_NAME];
    int32_t count = 0;
    int err = dp_mixer_state(d->slots[slot].mixer, &tensors, &count);

    for (int32_t i = 0; i < count && !err; i++)
        err = dp_checkpoint_read(c, state_name(d, slot, tensors[i].name, name), &tensors[i].tensor);
    return err;
}

int saved_mixing_read(struct sums *d, const struct dp_checkpoint *c)
{
    int err = 0;

    for (int i = 0; i < d->engine->part_count && !err; i++) {
        err = resume_mixer(d, i, c);
        if (!err)
            err = read_values(d, i, c);
        if (!err)
            err = read_state(d, i, c);
    }
    return err;
}

/* ---- is all of it there? --------------------------------------------------------------------- */

void saved_want(const struct saved_search *s, const char *name, const DLTensor *like)
{
    const int64_t missing = dp_checkpoint_missing(s->c, &(struct dp_named_tensor){name, *like});
    const int64_t elements = dp_tensor_numel(like);
    char text[384];

    if (missing < 0)
        snprintf(text, sizeof(text), "tensor '%s' is of another type or shape than the options say",
                 name);
    else if (missing < elements)
        snprintf(text, sizeof(text), "a part of '%s' (%" PRId64 " of %" PRId64 " elements) is missing",
                 name, missing, elements);
    else
        snprintf(text, sizeof(text), "tensor '%s' is missing", name);
    if (missing)
        s->fault(s->user, text);
}

static void verify_part(const struct sums *d, int slot, struct dp_optimizer *optimizer,
                        const struct saved_search *s)
{
    const struct engine_part *part = &d->engine->parts[slot];
    const struct dp_named_tensor *state = optimizer ? dp_optimizer_state(optimizer) : NULL;
    char name[SAVED_NAME];

    for (int32_t i = 0; i < part->count; i++) {
        saved_want(s, value_name(d, part->parameters[i].name, name), part->parameters[i].value);
        if (!d->engine->replica.index)
            saved_want(s, part->parameters[i].name, part->parameters[i].value);
    }
    for (int32_t i = 0; optimizer && i < dp_optimizer_state_count(optimizer); i++)
        saved_want(s, state_name(d, slot, state[i].name, name), &state[i].tensor);
    const struct dp_checkpoint_tensor *at =
        dp_checkpoint_find(s->c, state_name(d, slot, "mixer/numbers", name));
    int64_t length = at && at->ndim == 1 ? at->shape[0] : 1;
    saved_want(s, name, &(DLTensor){.ndim = 1, .dtype = {kDLInt, 64, 1}, .shape = &length});
}

void saved_mixing_verify(struct engine *e, struct dp_optimizer *const *optimizers, int replicas,
                         const struct saved_search *s)
{
    const struct sums d = {.engine = e};

    for (int r = 0; r < replicas; r++) {
        e->replica.index = r;
        for (int i = 0; i < e->part_count; i++)
            if (!e->parts[i].second_copy)
                verify_part(&d, i, optimizers[i], s);
    }
}
