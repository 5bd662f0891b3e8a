/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/late.h"

#include "base/tensor.h"

#include <stdlib.h>
#include <string.h>

enum { DUE, RATE, SCALE, SKIP }; /* of late.state */

const char late_name[] = "late/step", late_suffix[] = "/late";

/* Of its place among others. */
static size_t room_of(const DLTensor *t)
{
    return (dp_tensor_bytes(t) + 7) / 8 * 8;
}

/* Tensors like the gradients of a part, in memory of their own. */
static int keep(struct late *l, const struct engine_part *part, int slot)
{
    size_t bytes = 0;

    for (int32_t i = 0; i < part->count; i++)
        bytes += part->parameters[i].grad ? room_of(part->parameters[i].grad) : 0;
    char *at = l->block[slot] = calloc(bytes + 1, 1);
    l->kept[slot] = calloc((size_t)part->count + 1, sizeof(DLTensor));
    if (!at || !l->kept[slot])
        return dp_fail(DP_ENOMEM, "no memory for %zu bytes of gradients that are used late", bytes);
    for (int32_t i = 0; i < part->count; i++) {
        if (!part->parameters[i].grad)
            continue;
        DLTensor *kept = &l->kept[slot][i];
        *kept = *part->parameters[i].grad;
        kept->data = at;
        kept->byte_offset = 0;
        at += room_of(kept);
    }
    return 0;
}

int late_new(const struct engine_part *parts, int count, struct late **out)
{
    struct late *l = calloc(1, sizeof(*l));
    int err = l ? 0 : dp_fail(DP_ENOMEM, "no memory for late updates");

    for (int i = 0; i < count && !err; i++)
        err = keep(l, &parts[i], i);
    if (err)
        late_free(l);
    else
        *out = l;
    return err;
}

void late_free(struct late *l)
{
    for (int i = 0; i < DP_MAX_SLOTS && l; i++) {
        free(l->block[i]);
        free(l->kept[i]);
    }
    free(l);
}

static void swap(char *a, char *b, size_t bytes)
{
    char other[4096];

    for (size_t at = 0, n; at < bytes; at += n) {
        n = bytes - at < sizeof(other) ? bytes - at : sizeof(other);
        memcpy(other, a + at, n);
        memcpy(a + at, b + at, n);
        memcpy(b + at, other, n);
    }
}

void late_swap(struct late *l, const struct engine_part *parts, int count)
{
    for (int i = 0; i < count; i++)
        for (int32_t k = 0; k < parts[i].count; k++) {
            const DLTensor *grad = parts[i].parameters[k].grad;
            if (grad)
                swap((char *)grad->data + grad->byte_offset, l->kept[i][k].data,
                     dp_tensor_bytes(grad));
        }
}

bool late_is_due(const struct late *l)
{
    return l->state[DUE] > 0;
}

struct dp_mixer_update late_due(const struct late *l)
{
    return (struct dp_mixer_update){l->state[RATE], l->state[SCALE], l->state[SKIP] > 0};
}

void late_set(struct late *l, const struct dp_mixer_update *how)
{
    l->state[DUE] = how != NULL;
    if (!how)
        return;
    l->state[RATE] = how->rate;
    l->state[SCALE] = how->scale;
    l->state[SKIP] = how->skip;
}

const DLTensor *late_state(struct late *l)
{
    l->shape = 4;
    l->tensor = (DLTensor){.data = l->state,
                           .device = {kDLCPU, 0},
                           .ndim = 1,
                           .dtype = {kDLFloat, 64, 1},
                           .shape = &l->shape};
    return &l->tensor;
}

bool late_is_in(const struct dp_checkpoint *c)
{
    bool found = dp_checkpoint_find(c, late_name);

    for (int32_t i = 0; i < dp_checkpoint_count(c) && !found; i++) {
        const char *slash = strrchr(dp_checkpoint_at(c, i)->name, '/');
        found = slash && !strcmp(slash, late_suffix);
    }
    return found;
}
