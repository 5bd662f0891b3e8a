/* SPDX-License-Identifier: Apache-2.0
 *
 * memory.c - all memory of a streamed model, allocated once, as layout.c has counted it.
 *
 *      device   [slot 0 | slot 1 | ...] [activations] [two sets of gradients between shards]
 *      host     [shard 0] [shard 1] ... [two sets of gradients of a shard] [boundaries]
 */
#include "base/internal.h"
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
    return 0;
}

/* ---- host ------------------------------------------------------------------------------------ */

static size_t boundary_bytes(const struct dp_offload *o)
{
    return o->layout.rings ? (size_t)o->layout.shard_count * o->layout.boundary_stride : 0;
}

static int init_host(struct dp_offload *o)
{
    size_t bytes = 2 * o->layout.slot_grads + boundary_bytes(o);

    for (int32_t s = 0; s < o->layout.shard_count; s++)
        bytes += dpo_layout_home_bytes(&o->layout, &o->layout.shards[s]);
    int err = dpo_pinned_map(o->streams.dev, -1, bytes, &o->pinned);
    if (err)
        return err;
    o->counts.host_bytes = bytes;
    char *at = o->pinned.start;
    for (int32_t s = 0; s < o->layout.shard_count; s++) {
        struct dpo_shard *shard = &o->layout.shards[s];
        shard->values = carve(&at, dpo_layout_home_bytes(&o->layout, shard));
        shard->grads = shard->values + shard->host_value_bytes;
        shard->up = o->layout.images ? at - dpo_align(shard->value_bytes) : shard->values;
    }
    for (int i = 0; i < 2; i++)
        o->memory.staging[i].at = carve(&at, o->layout.slot_grads);
    o->memory.boundaries = carve(&at, boundary_bytes(o));
    return 0;
}

/* ---- streams and events ---------------------------------------------------------------------- */

/* Calls fn for every event. */
static int each_event(struct dp_offload *o,
                      int (*fn)(struct dp_offload *o, struct dp_device_event **event))
{
    int err = 0;

    for (int i = 0; i < 2 && !err; i++)
        err = fn(o, &o->memory.staging[i].done);
    for (int32_t i = 0; o->memory.slots && i < o->layout.config.slots && !err; i++) {
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

    o->memory.slots = calloc((size_t)o->layout.config.slots, sizeof(*o->memory.slots));
    o->memory.ring = calloc((size_t)o->layout.rings + 1, sizeof(*o->memory.ring));
    o->tasks = calloc(shards, sizeof(*o->tasks));
    if (!o->memory.slots || !o->memory.ring || !o->tasks)
        return dp_fail(DP_ENOMEM, "offload: no memory for %zu shards", shards);
    for (int32_t s = 0; s < o->layout.shard_count; s++)
        o->tasks[s] = (struct dpo_task){o, &o->layout.shards[s]};
    return 0;
}

/* Copies and updates run next to the memory that they work on: where the system has put the pinned
 * memory of a device that has no node of its own. */
static void bind_threads(struct dp_offload *o)
{
    const int node = o->pinned.node >= 0 ? o->pinned.node
                                         : dp_memory_numa_node(o->pinned.start, o->counts.host_bytes);

    dpo_streams_bind(&o->streams, node);
}

int dpo_memory_init(struct dp_offload *o)
{
    int err = new_lists(o);

    if (!err)
        err = init_device(o);
    if (!err)
        err = init_host(o);
    if (!err)
        bind_threads(o);
    if (!err)
        err = dpo_streams_open(&o->streams);
    return err ? err : each_event(o, new_event);
}

void dpo_memory_fini(struct dp_offload *o)
{
    dpo_streams_close(&o->streams);
    each_event(o, free_event);
    dp_device_free(o->streams.dev, DP_MEMORY_DEVICE, o->memory.all);
    dpo_pinned_unmap(&o->pinned);
    free(o->memory.slots);
    free(o->memory.ring);
    free(o->tasks);
}
