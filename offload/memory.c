/* SPDX-License-Identifier: Apache-2.0
 *
 * memory.c - all memory of a streamed model, allocated once, as layout.c has counted it.
 *
 *      device   [slot 0 | slot 1 | ...] [activations] [two sets of gradients between shards] [sums]
 *               [shards that stay] [what their layers want] [gradients of one of them]
 */
#include "offload/state.h"

#include "base/fail.h"
#include <dualpipe/memory.h>

#include <stdlib.h>
#include <string.h>

/* ---- device ---------------------------------------------------------------------------------- */

static char *carve(char **at, size_t bytes)
{
    char *here = *at;

    *at += bytes;
    return here;
}

static int init_device(struct dp_offload *o)
{
    bool trains = !o->layout.config.forward_only;
    void *memory = NULL;

    int err = dp_device_alloc(o->streams.dev, DP_MEMORY_DEVICE, o->counts.device_bytes, &memory);
    if (err)
        return err;
    char *at = o->memory.all = memory;
    for (int32_t i = 0; i < o->layout.config.slots; i++) {
        o->memory.slots[i].values = carve(&at, o->layout.slot_values);
        o->memory.slots[i].grads = carve(&at, o->layout.slot_grads);
    }
    o->memory.activations = carve(&at, o->layout.activation_bytes);
    for (int32_t i = 0; i < o->layout.rings; i++)
        o->memory.ring[i] =
            (struct dpo_ring){.at = carve(&at, o->layout.boundary_stride), .holds = -1};
    for (int i = 0; i < 2 && trains; i++)
        o->memory.gradients[i] = carve(&at, o->layout.boundary_stride);
    o->memory.sums = carve(&at, o->counts.sums_bytes);
    o->memory.kept_memory = carve(&at, o->layout.kept_shard_bytes + o->layout.kept_state_bytes);
    o->memory.kept_grads = carve(&at, o->layout.kept_grad_bytes);
    return 0;
}

/* ---- host ------------------------------------------------------------------------------------ */

static int take(struct dp_offload *o, size_t bytes, char **out)
{
    void *ptr;
    int err = dp_pinned_take(o->pinned, bytes, &ptr);

    if (err)
        return err;
    o->counts.host_bytes += bytes;
    *out = ptr;
    return 0;
}

/* All that is taken below, so that it is one slab. */
static size_t host_bytes(const struct dp_offload *o)
{
    size_t bytes = 0;

    for (int32_t s = 0; s < o->layout.streamed; s++)
        bytes += dpo_layout_home_bytes(&o->layout, &o->layout.shards[s]);
    if (o->layout.rings)
        bytes += dpo_align((size_t)o->layout.shard_count * o->layout.boundary_stride);
    return bytes + 2 * o->layout.slot_grads + 4096;
}

static int init_pool(struct dp_offload *o)
{
    struct dp_pinned_config config = {.numa_node = -1, .slab_bytes = host_bytes(o)};

    return dp_pinned_new(o->streams.dev,
                         o->layout.config.pinned ? o->layout.config.pinned : &config, &o->pinned);
}

static void place_shard(struct dp_offload *o, struct dpo_shard *shard, size_t bytes)
{
    memset(shard->values, 0, bytes);
    shard->grads = shard->values + shard->host_value_bytes;
    shard->up =
        o->layout.images ? shard->values + bytes - dpo_align(shard->value_bytes) : shard->values;
}

/* The CPU reaches the device's memory. */
static void init_kept(struct dp_offload *o)
{
    char *at = o->memory.kept_memory;

    for (int32_t s = o->layout.streamed; s < o->layout.shard_count; s++) {
        struct dpo_shard *shard = &o->layout.shards[s];
        size_t bytes = dpo_layout_home_bytes(&o->layout, shard);
        shard->values = carve(&at, bytes);
        place_shard(o, shard, bytes);
        shard->slot = o->layout.config.slots + s - o->layout.streamed;
        o->memory.slots[shard->slot].values = shard->up;
        o->memory.slots[shard->slot].grads = o->memory.kept_grads;
    }
    if (o->layout.kept_state_bytes)
        memset(at, 0, o->layout.kept_state_bytes);
}

static int init_shards(struct dp_offload *o)
{
    int err = 0;

    for (int32_t s = 0; s < o->layout.streamed && !err; s++) {
        struct dpo_shard *shard = &o->layout.shards[s];
        size_t bytes = dpo_layout_home_bytes(&o->layout, shard);
        err = take(o, bytes, &shard->values);
        if (!err)
            place_shard(o, shard, bytes);
    }
    if (!err)
        init_kept(o);
    return err;
}

static int init_extras(struct dp_offload *o)
{
    int err = 0;

    for (int i = 0; i < 2 && !err && o->layout.slot_grads; i++)
        err = take(o, o->layout.slot_grads, &o->memory.staging[i].at);
    if (!err && o->layout.rings)
        err = take(o, (size_t)o->layout.shard_count * o->layout.boundary_stride,
                   &o->memory.boundaries);
    return err;
}

/* ---- streams and events ---------------------------------------------------------------------- */

/* What a step may have in flight at most: of each shard two loads, two times poison for values and
 * gradients, gradients down, its input down and up. */
static int init_copies(struct dp_offload *o)
{
    const struct dp_copy_engine_config config = {
        .device = o->streams.dev,
        .copies = 16 * o->layout.shard_count + 64,
        .chunk_bytes = o->layout.config.check ? 64 << 10 : 0,
        .check = o->layout.config.check,
        .measure = o->layout.config.measure,
        .pace = o->layout.config.pace,
        .pace_user = o->layout.config.pace_user,
    };

    return dp_copy_engine_new(&config, &o->streams.copies);
}

static int32_t all_slots(const struct dp_offload *o)
{
    return o->layout.config.slots + o->layout.shard_count - o->layout.streamed;
}

/* Calls fn for every event. */
static int each_event(struct dp_offload *o,
                      int (*fn)(struct dp_offload *o, struct dp_device_event **event))
{
    struct dp_device_event **const single[] = {&o->streams.done, &o->memory.staging[0].done,
                                               &o->memory.staging[1].done, &o->memory.kept_taken};
    int err = 0;

    for (size_t i = 0; i < sizeof(single) / sizeof(single[0]) && !err; i++)
        err = fn(o, single[i]);
    for (int32_t i = 0; o->memory.slots && i < all_slots(o) && !err; i++) {
        err = fn(o, &o->memory.slots[i].loaded);
        err = err ? err : fn(o, &o->memory.slots[i].used);
        err = err ? err : fn(o, &o->memory.slots[i].emptied);
    }
    for (int32_t s = 0; o->layout.shards && s < o->layout.shard_count && !err; s++) {
        err = fn(o, &o->layout.shards[s].updated);
        err = err ? err : fn(o, &o->layout.shards[s].boundary_down);
    }
    for (int32_t i = 0; o->memory.ring && i < o->layout.rings && !err; i++) {
        err = fn(o, &o->memory.ring[i].filled);
        err = err ? err : fn(o, &o->memory.ring[i].used);
    }
    return err;
}

static int new_event(struct dp_offload *o, struct dp_device_event **event)
{
    return dp_device_event_new(o->streams.dev, event);
}

static int free_event(struct dp_offload *o, struct dp_device_event **event)
{
    (void)o;
    dp_device_event_free(*event);
    return 0;
}

/* ---- all ------------------------------------------------------------------------------------- */

static int new_lists(struct dp_offload *o)
{
    size_t shards = (size_t)o->layout.shard_count;

    o->memory.slots = calloc((size_t)all_slots(o), sizeof(*o->memory.slots));
    o->memory.ring = calloc((size_t)o->layout.rings + 1, sizeof(*o->memory.ring));
    o->updates.tasks = calloc(shards, sizeof(*o->updates.tasks));
    o->updates.pending = calloc(shards, sizeof(*o->updates.pending));
    if (!o->memory.slots || !o->memory.ring || !o->updates.tasks || !o->updates.pending)
        return dp_fail(DP_ENOMEM, "offload: no memory for %zu shards", shards);
    for (int32_t s = 0; s < o->layout.shard_count; s++)
        o->updates.tasks[s] = (struct dpo_task){o, &o->layout.shards[s]};
    return 0;
}

/* Copies and updates run next to the memory that they work on: where the system has put the pinned
 * memory of a device that has no node of its own. */
static void bind_threads(struct dp_offload *o)
{
    struct dp_pinned_report report;
    int node = -1;

    dp_pinned_report(o->pinned, &report);
    for (int32_t i = 0; i < o->layout.streamed && node < 0; i++)
        if (o->layout.shards[i].host_value_bytes)
            node = dp_memory_numa_node(o->layout.shards[i].values,
                                       o->layout.shards[i].host_value_bytes);
    dpo_streams_bind(&o->streams, report.numa_node >= 0 ? report.numa_node : node);
}

int dpo_memory_init(struct dp_offload *o)
{
    int err = new_lists(o);

    if (!err)
        err = init_pool(o);

    if (!err)
        err = init_device(o);
    if (!err)
        err = init_shards(o);
    if (!err)
        bind_threads(o);
    if (!err)
        err = init_extras(o);
    if (!err)
        err = dpo_streams_open(&o->streams);
    if (!err)
        err = init_copies(o);
    return err ? err : each_event(o, new_event);
}

void dpo_memory_fini(struct dp_offload *o)
{
    dp_device_stream_free(o->streams.compute);
    dp_copy_engine_free(o->streams.copies);
    dp_device_stream_free(o->streams.update);
    each_event(o, free_event);
    dp_device_free(o->streams.dev, DP_MEMORY_DEVICE, o->memory.all);
    dp_pinned_free(o->pinned);
    free(o->memory.slots);
    free(o->memory.ring);
    free(o->updates.tasks);
    free(o->updates.pending);
}
