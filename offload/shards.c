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
    const struct dp_copy_spec spec = {
        .direction = DP_COPY_UP,
        .dst = slot->values,
        .src = shard->up,
        .bytes = shard->value_bytes,
        .after = {slot->used, shard->updated, o->layout.shards[shard->wait_for].updated},
        .after_count = 3,
        .record = slot->loaded,
    };

    shard->slot = slot_index;
    o->counts.loads++;
    o->counts.loaded_bytes += shard->value_bytes;
    return dp_copy_begin(o->streams.copies, &spec, NULL);
}

static int poison(struct dp_offload *o, const struct dpo_slot *slot, char *at, size_t bytes)
{
    const struct dp_copy_spec spec = {
        .direction = DP_COPY_UP,
        .dst = at,
        .bytes = bytes,
        .after = {slot->used, slot->emptied},
        .after_count = 2,
        .record = slot->loaded,
    };

    return dp_copy_begin(o->streams.copies, &spec, NULL);
}

/* Nothing is copied back: the host has the values. Gradients that are on their way down are still
 * wanted. */
int dpo_shard_drop(struct dp_offload *o, int32_t index, int32_t slot_index)
{
    const struct dpo_slot *slot = &o->memory.slots[slot_index];

    o->layout.shards[index].slot = -1;
    if (!o->layout.config.check)
        return 0;
    int err = dpo_wait_queued(&o->streams, slot->emptied);
    if (!err)
        err = poison(o, slot, slot->values, o->layout.slot_values);
    return err ? err : poison(o, slot, slot->grads, o->layout.slot_grads);
}

/* ---- gradients, to the host ------------------------------------------------------------------ */

void dpo_shard_add(const struct dp_offload *o, int32_t index, char *to, const char *from)
{
    for (int32_t i = 0; i < o->layout.parameter_count; i++) {
        const struct dpo_parameter *p = &o->layout.parameters[i];
        if (p->shard == index && !p->alias && p->grad != SIZE_MAX)
            dpo_add(p->grad_type, p->count, to + p->grad, from + p->grad);
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
            dpo_add_widened(p->grad_type, p->count, to, from);
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

/* In the update stream. */
static void update_shard(void *user)
{
    struct dpo_task *task = user;
    struct dp_offload *o = task->o;
    struct dpo_shard *shard = task->shard;
    dpo_thread_bind(&o->streams);
    int none = 0, err = o->layout.config.update(o->layout.config.update_user,
                                                (int32_t)(shard - o->layout.shards), shard->list,
                                                shard->list_count);

    if (err)
        atomic_compare_exchange_strong(&o->updates.failed, &none, err);
}

int dpo_shard_update(struct dp_offload *o)
{
    int err = 0;

    for (int32_t s = o->layout.shard_count - 1; s >= 0 && o->updates.due && !err; s--) {
        err = dpo_meter_begin(&o->streams, DPO_UPDATE);
        if (!err)
            err = dp_device_call(o->streams.update, update_shard, &o->updates.tasks[s]);
        if (!err)
            err = dpo_meter_end(&o->streams, DPO_UPDATE);
    }
    o->updates.due = false;
    return err;
}

/* In the update stream, when the gradients of the shard are there. What goes up is renewed only now,
 * when this step has done with it. */
static void finish_shard(void *user)
{
    struct dpo_task *task = user;
    struct dp_offload *o = task->o;
    struct dpo_shard *shard = task->shard;
    int32_t index = (int32_t)(shard - o->layout.shards);

    dpo_thread_bind(&o->streams);
    if (shard->arrived)
        take_arrived(o, index);
    add_copies(o, index);
    if (o->layout.config.update && !o->layout.config.delay)
        update_shard(task);
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
        err = dp_device_call(o->streams.update, renew_shard, &o->updates.tasks[s]);
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
    const struct dp_copy_spec spec = {
        .direction = DP_COPY_DOWN,
        .dst = staging ? staging->at : shard->grads,
        .src = slot->grads,
        .bytes = shard->grad_bytes,
        .after = {slot->used, shard->updated, staging ? staging->done : NULL},
        .after_count = staging ? 3 : 2,
        .record = slot->emptied,
    };

    shard->arrived = staging ? staging->at : NULL;
    shard->accumulates = o->grad_step->accumulate;
    return dp_copy_begin(o->streams.copies, &spec, NULL);
}

static int launch(struct dp_offload *o, const struct dpo_pending *p)
{
    struct dpo_slot *slot = &o->memory.slots[p->slot];
    int err = dpo_stream_wait(&o->streams, o->streams.update, slot->emptied);

    if (!err)
        err = dpo_meter_begin(&o->streams, DPO_UPDATE);
    if (!err)
        err = dp_device_call(o->streams.update, finish_shard, &o->updates.tasks[p->shard]);
    if (!err)
        err = dpo_meter_end(&o->streams, DPO_UPDATE);
    if (!err)
        err = dp_device_event_record(o->layout.shards[p->shard].updated, o->streams.update);
    if (!err && p->staging)
        err = dp_device_event_record(p->staging->done, o->streams.update);
    return err;
}

int dpo_shard_launch(struct dp_offload *o, int32_t left)
{
    int err = 0;

    while (o->updates.pending_first < o->updates.pending_count && !err) {
        const struct dpo_pending *p = &o->updates.pending[o->updates.pending_first];
        if (o->updates.pending_count - o->updates.pending_first <= left &&
            !dpo_copy_is_queued(o->streams.copies, o->memory.slots[p->slot].emptied))
            return 0;
        err = launch(o, p);
        o->updates.pending_first++;
    }
    if (o->updates.pending_first == o->updates.pending_count)
        o->updates.pending_first = o->updates.pending_count = 0;
    return err;
}

static void take_kept(void *user)
{
    struct dpo_task *task = user;

    take_arrived(task->o, (int32_t)(task->shard - task->o->layout.shards));
    task->shard->arrived = NULL;
}

/* Those of a shard that stays on the device: nothing is copied down, and its update may begin. */
static int grads_stay(struct dp_offload *o, struct dpo_shard *shard)
{
    struct dpo_task *task = &o->updates.tasks[shard - o->layout.shards];
    int err = dp_device_stream_wait(o->streams.update, o->memory.slots[shard->slot].used);

    shard->arrived = o->memory.kept_grads;
    shard->accumulates = o->grad_step->accumulate;
    if (!err)
        err = dpo_meter_begin(&o->streams, DPO_UPDATE);
    if (!err)
        err = dp_device_call(o->streams.update, take_kept, task);
    if (!err)
        err = dp_device_event_record(o->memory.kept_taken, o->streams.update);
    if (!err)
        err = dp_device_call(o->streams.update, finish_shard, task);
    if (!err)
        err = dpo_meter_end(&o->streams, DPO_UPDATE);
    return err ? err : dp_device_event_record(shard->updated, o->streams.update);
}

/* Before a place is filled again the update that empties it must have been launched. */
int dpo_shard_grads_down(struct dp_offload *o, int32_t index)
{
    struct dpo_shard *shard = &o->layout.shards[index];
    struct dpo_slot *slot = &o->memory.slots[shard->slot];
    if (shard->kept)
        return grads_stay(o, shard);
    int err = dpo_shard_launch(o, 1);
    const bool apart = o->grad_step->accumulate || o->layout.widens || o->layout.config.delay;
    struct dpo_staging *staging = apart ? &o->memory.staging[o->memory.staged++ % 2] : NULL;

    if (!err)
        err = copy_down(o, shard, slot, staging);
    o->updates.pending[o->updates.pending_count++] =
        (struct dpo_pending){index, shard->slot, staging};
    o->counts.down_bytes += shard->grad_bytes;
    return err ? err : dpo_shard_launch(o, o->layout.shard_count);
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
                              : dpo_stream_wait(&o->streams, o->streams.compute,
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
    return dp_copy_begin(o->streams.copies,
                         &(struct dp_copy_spec){.direction = DP_COPY_DOWN,
                                                .dst = on_host(o, shard),
                                                .src = ring->at,
                                                .bytes = boundary(o, shard)->bytes,
                                                .after = {ring->filled},
                                                .after_count = 1,
                                                .record = o->layout.shards[shard].boundary_down},
                         NULL);
}

/* Back to the device, if it is not there: what was in that place is one of a later shard, which the
 * backward has done with. */
int dpo_boundary_fetch(struct dp_offload *o, int32_t shard)
{
    struct dpo_ring *ring = o->layout.rings ? &o->memory.ring[shard % o->layout.rings] : NULL;

    if (!ring || ring->holds == shard)
        return 0;
    struct dp_copy_spec spec = {
        .direction = DP_COPY_UP,
        .priority = DP_PRIORITY_HIGH,
        .dst = ring->at,
        .src = on_host(o, shard),
        .bytes = boundary(o, shard)->bytes,
        .after = {ring->used, o->layout.shards[shard].boundary_down},
        .after_count = 2,
        .record = ring->filled,
    };
    int err = dpo_wait_queued(&o->streams, o->layout.shards[shard].boundary_down);
    if (!err && ring->holds >= 0) {
        spec.after[spec.after_count++] = o->layout.shards[ring->holds].boundary_down;
        err = dpo_wait_queued(&o->streams, o->layout.shards[ring->holds].boundary_down);
    }
    ring->holds = shard;
    return err ? err : dp_copy_begin(o->streams.copies, &spec, NULL);
}

int dpo_boundary_read(struct dp_offload *o, int32_t shard, char **out)
{
    struct dpo_ring *ring = o->layout.rings ? &o->memory.ring[shard % o->layout.rings] : NULL;

    *out = ring ? ring->at : fixed_place(o, shard);
    return ring ? dpo_stream_wait(&o->streams, o->streams.compute, ring->filled) : 0;
}
