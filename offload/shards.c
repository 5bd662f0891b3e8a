/* SPDX-License-Identifier: Apache-2.0
 *
 * shards.c - the copies: parameters to the device, gradients and inputs of shards to the host and
 * back, and what the host does with gradients when they are there. Nothing here waits; every order
 * that matters is an event (state.h has them all).
 */
#include "offload/state.h"

#include "base/fail.h"
#include "base/tensor.h"
#include "optimizer/update.h"

#include <string.h>

/* ---- parameters, to the device --------------------------------------------------------------- */

int dpo_shard_load(struct dp_offload *o, int32_t index, int32_t slot_index)
{
    struct dpo_shard *shard = &o->layout.shards[index];
    struct dpo_slot *slot = &o->memory.slots[slot_index];
    const struct dpo_copy copy = {
        .stream = DPO_UP,
        .dst = slot->values,
        .src = shard->up,
        .bytes = shard->value_bytes,
        .after = {slot->used, shard->updated, o->layout.shards[shard->wait_for].updated},
        .record = slot->loaded,
    };

    shard->slot = slot_index;
    o->counts.loads++;
    o->counts.loaded_bytes += shard->value_bytes;
    return dpo_copy(&o->streams, &copy);
}

static int poison(struct dp_offload *o, const struct dpo_slot *slot, char *at, size_t bytes)
{
    const struct dpo_copy copy = {
        .stream = DPO_UP,
        .dst = at,
        .bytes = bytes,
        .after = {slot->used, slot->emptied},
        .record = slot->loaded,
    };

    return dpo_copy(&o->streams, &copy);
}

/* Nothing is copied back: the host has the values. Gradients that are on their way down are still
 * wanted. */
int dpo_shard_drop(struct dp_offload *o, int32_t index, int32_t slot_index)
{
    const struct dpo_slot *slot = &o->memory.slots[slot_index];

    o->layout.shards[index].slot = -1;
    if (!o->layout.config.check)
        return 0;
    int err = poison(o, slot, slot->values, o->layout.slot_values);
    return err ? err : poison(o, slot, slot->grads, o->layout.slot_grads);
}

/* ---- gradients, to the host ------------------------------------------------------------------ */

static void add_f32(float *to, const float *from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] += from[i];
}

static void add_f64(double *to, const double *from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] += from[i];
}

static size_t block_of(size_t left)
{
    return left < DP_UPDATE_BLOCK ? left : DP_UPDATE_BLOCK;
}

static void add_16(DLDataType type, size_t count, char *to, const char *from)
{
    float a[DP_UPDATE_BLOCK], b[DP_UPDATE_BLOCK];

    for (size_t at = 0, n; at < count; at += n) {
        n = block_of(count - at);
        dp_real_load(type, n, to + 2 * at, a, false);
        dp_real_load(type, n, from + 2 * at, b, false);
        add_f32(a, b, n);
        dp_real_store(type, n, to + 2 * at, a, false);
    }
}

void dpo_add(DLDataType type, size_t count, void *to, const void *from)
{
    if (type.bits == 64)
        add_f64(to, from, count);
    else if (type.bits == 32)
        add_f32(to, from, count);
    else
        add_16(type, count, to, from);
}

static void add_widened(DLDataType type, size_t count, float *to, const void *from)
{
    float x[DP_UPDATE_BLOCK];

    for (size_t at = 0, n; at < count; at += n) {
        n = block_of(count - at);
        dp_real_load(type, n, (const char *)from + at * dp_real_bytes(type), x, false);
        add_f32(to + at, x, n);
    }
}

/* What has arrived in a place of its own, to where gradients live. */
static void take_arrived(const struct dp_offload *o, int32_t index)
{
    const struct dpo_shard *shard = &o->layout.shards[index];

    for (int32_t i = 0; i < o->layout.parameter_count; i++) {
        const struct dpo_parameter *p = &o->layout.parameters[i];
        if (p->shard != index || p->alias || p->grad == SIZE_MAX)
            continue;
        void *to = dp_tensor_address(&p->host_grad);
        const char *from = shard->arrived + p->grad;
        const bool widens = p->grad_type.bits != p->host_grad.dtype.bits;
        if (widens && shard->accumulates)
            add_widened(p->grad_type, p->count, to, from);
        else if (widens)
            dp_real_load(p->grad_type, p->count, from, to, false);
        else if (shard->accumulates)
            dpo_add(p->grad_type, p->count, to, from);
        else
            memcpy(to, from, p->grad_bytes);
    }
}

/* Copies in later shards, whose gradients have come before: add them to the owner's. */
static void add_copies(struct dp_offload *o, int32_t index)
{
    for (int32_t i = 0; i < o->layout.parameter_count; i++) {
        struct dpo_parameter *p = &o->layout.parameters[i];
        if (p->owner->shard == index && p->shard != index && !p->alias && p->grad != SIZE_MAX)
            dpo_add(p->host_grad.dtype, p->count, dp_tensor_address(&p->owner->host_grad),
                    dp_tensor_address(&p->host_grad));
    }
}

/* In the update stream, when the gradients of the shard are there. What goes up is renewed only now,
 * when this step has done with it. */
static void finish_shard(void *user)
{
    struct dpo_task *task = user;
    struct dp_offload *o = task->o;
    struct dpo_shard *shard = task->shard;
    int32_t index = (int32_t)(shard - o->layout.shards);
    int none = 0, err = 0;

    dpo_thread_bind(&o->streams);
    if (shard->arrived)
        take_arrived(o, index);
    add_copies(o, index);
    if (o->layout.config.update)
        err = o->layout.config.update(o->layout.config.update_user, index, shard->list,
                                      shard->list_count);
    if (err)
        atomic_compare_exchange_strong(&o->failed, &none, err);
    dpo_parameters_renew_owned(&o->layout, index);
}

static void renew_shard(void *user)
{
    struct dpo_task *task = user;

    dpo_parameters_renew(&task->o->layout, (int32_t)(task->shard - task->o->layout.shards));
}

int dpo_shard_renew(struct dp_offload *o)
{
    int err = 0;

    for (int32_t s = 0; s < o->layout.shard_count && !err; s++) {
        err = dp_device_call(o->streams.update, renew_shard, &o->tasks[s]);
        if (!err)
            err = dp_device_event_record(o->layout.shards[s].updated, o->streams.update);
    }
    return err;
}

/* Gradients that are to be added to what is there, or widened, come to one of two places first. Its
 * event for the slot, and that for the update, are the same moment. */
static int copy_down(struct dp_offload *o, struct dpo_shard *shard, const struct dpo_slot *slot,
                     struct dpo_staging *staging)
{
    const struct dpo_copy copy = {
        .stream = DPO_DOWN,
        .dst = staging ? staging->at : shard->grads,
        .src = slot->grads,
        .bytes = shard->grad_bytes,
        .after = {slot->used, shard->updated, staging ? staging->done : NULL},
        .record = slot->emptied,
    };

    shard->arrived = staging ? staging->at : NULL;
    shard->accumulates = o->grad_step->accumulate;
    return dpo_copy(&o->streams, &copy);
}

static int launch_update(struct dp_offload *o, int32_t index, const struct dpo_slot *slot,
                         struct dpo_staging *staging)
{
    int err = dp_device_stream_wait(o->streams.update, slot->emptied);

    if (!err)
        err = dp_device_call(o->streams.update, finish_shard, &o->tasks[index]);
    if (!err)
        err = dp_device_event_record(o->layout.shards[index].updated, o->streams.update);
    if (!err && staging)
        err = dp_device_event_record(staging->done, o->streams.update);
    return err;
}

int dpo_shard_grads_down(struct dp_offload *o, int32_t index)
{
    struct dpo_shard *shard = &o->layout.shards[index];
    const struct dpo_slot *slot = &o->memory.slots[shard->slot];
    const bool apart = o->grad_step->accumulate || o->layout.widens;
    struct dpo_staging *staging = apart ? &o->memory.staging[o->memory.staged++ % 2] : NULL;
    int err = copy_down(o, shard, slot, staging);

    o->counts.down_bytes += shard->grad_bytes;
    return err ? err : launch_update(o, index, slot, staging);
}

/* ---- what crosses from shard to shard -------------------------------------------------------- */

/* The layer whose output is the input of shard 1 or more, or behind the last one. */
static const struct dpo_layer *layer_before(const struct dp_offload *o, int32_t shard)
{
    return &o->layout.layers[o->layout.shards[shard - 1].end - 1];
}

static const struct dpo_border *boundary(const struct dp_offload *o, int32_t shard)
{
    return shard ? &layer_before(o, shard)->whole : &o->layout.input;
}

/* Without a ring every boundary has its place on the device for good. */
static char *fixed_place(struct dp_offload *o, int32_t shard)
{
    return o->memory.activations + (shard ? layer_before(o, shard)->whole_at : o->layout.input_at);
}

static char *on_host(const struct dp_offload *o, int32_t shard)
{
    return o->memory.boundaries + (size_t)shard * o->layout.boundary_stride;
}

int dpo_boundary_write(struct dp_offload *o, int32_t shard, char **out)
{
    struct dpo_ring *ring = o->layout.rings ? &o->memory.ring[shard % o->layout.rings] : NULL;

    if (!ring || shard == o->layout.shard_count) {
        *out = fixed_place(o, shard);
        return 0;
    }
    /* Its old contents are read by compute, in order, and by the copy down. */
    int err = ring->holds < 0 ? 0
                              : dp_device_stream_wait(o->streams.compute,
                                                      o->layout.shards[ring->holds].boundary_down);
    ring->holds = shard;
    *out = ring->at;
    return err;
}

int dpo_boundary_written(struct dp_offload *o, int32_t shard)
{
    struct dpo_ring *ring = o->layout.rings ? &o->memory.ring[shard % o->layout.rings] : NULL;

    if (!ring || shard == o->layout.shard_count)
        return 0;
    int err = dp_device_event_record(ring->filled, o->streams.compute);
    if (err || !o->step->training)
        return err;
    return dpo_copy(&o->streams, &(struct dpo_copy){.stream = DPO_DOWN,
                                                    .dst = on_host(o, shard),
                                                    .src = ring->at,
                                                    .bytes = boundary(o, shard)->bytes,
                                                    .after = {ring->filled},
                                                    .record = o->layout.shards[shard].boundary_down});
}

/* Back to the device, if it is not there: what was in that place is one of a later shard, which the
 * backward has done with. */
int dpo_boundary_fetch(struct dp_offload *o, int32_t shard)
{
    struct dpo_ring *ring = o->layout.rings ? &o->memory.ring[shard % o->layout.rings] : NULL;

    if (!ring || ring->holds == shard)
        return 0;
    const struct dpo_copy copy = {
        .stream = DPO_UP_URGENT,
        .dst = ring->at,
        .src = on_host(o, shard),
        .bytes = boundary(o, shard)->bytes,
        .after = {ring->used, o->layout.shards[shard].boundary_down,
                  ring->holds >= 0 ? o->layout.shards[ring->holds].boundary_down : NULL},
        .record = ring->filled,
    };
    ring->holds = shard;
    return dpo_copy(&o->streams, &copy);
}

int dpo_boundary_read(struct dp_offload *o, int32_t shard, char **out)
{
    struct dpo_ring *ring = o->layout.rings ? &o->memory.ring[shard % o->layout.rings] : NULL;

    *out = ring ? ring->at : fixed_place(o, shard);
    return ring ? dp_device_stream_wait(o->streams.compute, ring->filled) : 0;
}
