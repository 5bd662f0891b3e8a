/* SPDX-License-Identifier: Apache-2.0
 *
 * memory.c - all memory of a streamed model, laid out and allocated once.
 *
 *      device   [slot 0 | slot 1 | ...] [activations] [two sets of gradients between shards] [sums]
 *               [shards that stay] [what their layers want] [gradients of one of them]
 *
 * Activations, plain: every layer's output and save areas, for all micro-batches. With checkpoints:
 * what crosses from shard to shard, and one piece of memory for the inside of any shard, for one
 * micro-batch.
 */
#include "offload/state.h"

#include "base/fail.h"

#include <stdlib.h>
#include <string.h>

static size_t align(size_t n)
{
    return (n + 255) / 256 * 256;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* ---- layout ---------------------------------------------------------------------------------- */

struct layout {
    size_t activations, inside, border, piece; /* the last three: the most of any shard */
};

static void lay_out_input(struct dp_offload *o, struct layout *at)
{
    at->border = dpo_border_init(&o->input, o->config.input, o->batch);
    if (o->config.boundaries_down)
        return;
    o->input_at = at->activations;
    at->activations += o->input.bytes;
}

/* Outputs that are there for all micro-batches. */
static void lay_out_whole(struct dp_offload *o, struct layout *at, int32_t shard, int32_t l)
{
    struct dpo_layer *layer = &o->layers[l];
    bool border = l + 1 == o->shards[shard].end, last = l + 1 == o->config.layer_count;

    if (border)
        at->border = larger(at->border, layer->whole.bytes);
    else
        at->piece = larger(at->piece, layer->piece.bytes);
    if (o->config.checkpoint && (!border || (o->config.boundaries_down && !last)))
        return;
    layer->whole_at = at->activations;
    at->activations += layer->whole.bytes;
}

/* The inside of a shard: save areas, and with checkpoints what layers hand on. Its size. */
static size_t lay_out_inside(struct dp_offload *o, struct layout *at, int32_t shard)
{
    bool checkpoint = o->config.checkpoint;
    size_t inside = 0;

    for (int32_t l = o->shards[shard].first; l < o->shards[shard].end; l++) {
        struct dpo_layer *layer = &o->layers[l];
        size_t save = align(layer->given->save_bytes);
        size_t *to = checkpoint ? &inside : &at->activations;
        layer->save_at = *to;
        *to += save * (checkpoint ? 1 : (size_t)o->microbatches);
        if (!checkpoint)
            continue;
        layer->piece_at = inside;
        inside += layer->piece.bytes;
    }
    return inside;
}

/* Offsets inside a shard begin where all that is there for good ends. */
static void place_inside(struct dp_offload *o, size_t begin)
{
    for (int32_t l = 0; o->config.checkpoint && l < o->config.layer_count; l++) {
        o->layers[l].save_at += begin;
        o->layers[l].piece_at += begin;
    }
}

static size_t lay_out(struct dp_offload *o)
{
    struct layout at = {0};

    lay_out_input(o, &at);
    for (int32_t s = 0; s < o->shard_count; s++)
        for (int32_t l = o->shards[s].first; l < o->shards[s].end; l++) {
            dpo_border_init(&o->layers[l].whole, o->layers[l].given->out, o->batch);
            dpo_border_init(&o->layers[l].piece, o->layers[l].given->out, o->rows[0]);
            lay_out_whole(o, &at, s, l);
        }
    for (int32_t s = 0; s < o->shard_count; s++)
        at.inside = larger(at.inside, lay_out_inside(o, &at, s));
    place_inside(o, at.activations);
    at.activations += at.inside;
    o->boundary_stride = at.border;
    for (int i = 0; i < 2 && !o->config.forward_only; i++) {
        o->piece_gradient[i] = at.activations;
        at.activations += at.piece;
    }
    return at.activations;
}

/* ---- device ---------------------------------------------------------------------------------- */

static char *carve(char **at, size_t bytes)
{
    char *here = *at;

    *at += bytes;
    return here;
}

static void count_device(struct dp_offload *o)
{
    size_t borders = (size_t)o->rings + (o->config.forward_only ? 0 : 2);
    struct dp_offload_memory *counts = &o->counts;

    counts->slots_bytes = (o->slot_values + o->slot_grads) * (size_t)o->config.slots;
    counts->activations_bytes = o->activation_bytes + borders * o->boundary_stride;
    counts->sums_bytes = (size_t)o->levels * o->sum_bytes;
    counts->kept = o->shard_count - o->streamed;
    counts->kept_bytes = o->kept_shard_bytes + o->kept_state_bytes + o->kept_grad_bytes;
    counts->device_bytes = counts->slots_bytes + counts->activations_bytes + counts->sums_bytes +
                           counts->kept_bytes;
}

static int init_device(struct dp_offload *o)
{
    bool trains = !o->config.forward_only;
    void *memory = NULL;

    int err = dp_device_alloc(o->dev, DP_MEMORY_DEVICE, o->counts.device_bytes, &memory);
    if (err)
        return err;
    char *at = o->memory = memory;
    for (int32_t i = 0; i < o->config.slots; i++) {
        o->slots[i].values = carve(&at, o->slot_values);
        o->slots[i].grads = carve(&at, o->slot_grads);
    }
    o->activations = carve(&at, o->activation_bytes);
    for (int32_t i = 0; i < o->rings; i++)
        o->ring[i] = (struct dpo_ring){.at = carve(&at, o->boundary_stride), .holds = -1};
    for (int i = 0; i < 2 && trains; i++)
        o->gradients[i] = carve(&at, o->boundary_stride);
    o->sums = carve(&at, o->counts.sums_bytes);
    o->kept_memory = carve(&at, o->kept_shard_bytes + o->kept_state_bytes);
    o->kept_grads = carve(&at, o->kept_grad_bytes);
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

/* Of a shard where it lives: values, gradients, and what layers are given if it is not these values. */
static size_t home_bytes_of(const struct dp_offload *o, const struct dpo_shard *shard)
{
    return align(shard->host_value_bytes + shard->host_grad_bytes) +
           (o->images ? align(shard->value_bytes) : 0);
}

/* All that is taken below, so that it is one slab. */
static size_t host_bytes(const struct dp_offload *o)
{
    size_t bytes = 0;

    for (int32_t s = 0; s < o->streamed; s++)
        bytes += home_bytes_of(o, &o->shards[s]);
    if (o->rings)
        bytes += align((size_t)o->shard_count * o->boundary_stride);
    return bytes + 2 * o->slot_grads + 4096;
}

static int init_pool(struct dp_offload *o)
{
    struct dp_pinned_config config = {.numa_node = -1, .slab_bytes = host_bytes(o)};

    return dp_pinned_new(o->dev, o->config.pinned ? o->config.pinned : &config, &o->pinned);
}

static void place_shard(struct dp_offload *o, struct dpo_shard *shard, size_t bytes)
{
    memset(shard->values, 0, bytes);
    shard->grads = shard->values + shard->host_value_bytes;
    shard->up = o->images ? shard->values + bytes - align(shard->value_bytes) : shard->values;
}

/* The CPU reaches the device's memory. */
static void init_kept(struct dp_offload *o)
{
    char *at = o->kept_memory;

    for (int32_t s = o->streamed; s < o->shard_count; s++) {
        struct dpo_shard *shard = &o->shards[s];
        size_t bytes = home_bytes_of(o, shard);
        shard->values = carve(&at, bytes);
        place_shard(o, shard, bytes);
        shard->slot = o->config.slots + s - o->streamed;
        o->slots[shard->slot].values = shard->up;
        o->slots[shard->slot].grads = o->kept_grads;
    }
    if (o->kept_state_bytes)
        memset(at, 0, o->kept_state_bytes);
}

static int init_shards(struct dp_offload *o)
{
    int err = 0;

    for (int32_t s = 0; s < o->streamed && !err; s++) {
        struct dpo_shard *shard = &o->shards[s];
        size_t bytes = home_bytes_of(o, shard);
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

    for (int i = 0; i < 2 && !err && o->slot_grads; i++)
        err = take(o, o->slot_grads, &o->staging[i].at);
    if (!err && o->rings)
        err = take(o, (size_t)o->shard_count * o->boundary_stride, &o->boundaries);
    return err;
}

/* ---- streams and events ---------------------------------------------------------------------- */

static int init_streams(struct dp_offload *o)
{
    int err = dp_device_stream_new(o->dev, DP_PRIORITY_HIGH, &o->compute);

    if (!err)
        err = dp_device_stream_new(o->dev, DP_PRIORITY_LOW, &o->update);
    if (!err)
        o->host = !dp_device_stream_native(o->compute);
    return err;
}

/* What a step may have in flight at most: of each shard two loads, two times poison for values and
 * gradients, gradients down, its input down and up. */
static int init_copies(struct dp_offload *o)
{
    const struct dp_copy_engine_config config = {
        .device = o->dev,
        .copies = 16 * o->shard_count + 64,
        .chunk_bytes = o->config.check ? 64 << 10 : 0,
        .check = o->config.check,
        .measure = o->config.measure,
        .pace = o->config.pace,
        .pace_user = o->config.pace_user,
    };

    return dp_copy_engine_new(&config, &o->copies);
}

static int32_t all_slots(const struct dp_offload *o)
{
    return o->config.slots + o->shard_count - o->streamed;
}

/* Calls fn for every event. */
static int each_event(struct dp_offload *o,
                      int (*fn)(struct dp_offload *o, struct dp_device_event **event))
{
    struct dp_device_event **const single[] = {
        &o->done,       &o->inputs_up,       &o->gouts_up,
        &o->gins_ready, &o->staging[0].done, &o->staging[1].done, &o->kept_taken};
    int err = 0;

    for (size_t i = 0; i < sizeof(single) / sizeof(single[0]) && !err; i++)
        err = fn(o, single[i]);
    for (int32_t i = 0; o->slots && i < all_slots(o) && !err; i++) {
        err = fn(o, &o->slots[i].loaded);
        err = err ? err : fn(o, &o->slots[i].used);
        err = err ? err : fn(o, &o->slots[i].emptied);
    }
    for (int32_t s = 0; o->shards && s < o->shard_count && !err; s++) {
        err = fn(o, &o->shards[s].updated);
        err = err ? err : fn(o, &o->shards[s].boundary_down);
    }
    for (int32_t i = 0; o->ring && i < o->rings && !err; i++) {
        err = fn(o, &o->ring[i].filled);
        err = err ? err : fn(o, &o->ring[i].used);
    }
    return err;
}

static int new_event(struct dp_offload *o, struct dp_device_event **event)
{
    return dp_device_event_new(o->dev, event);
}

static int free_event(struct dp_offload *o, struct dp_device_event **event)
{
    (void)o;
    dp_device_event_free(*event);
    return 0;
}

/* ---- all ------------------------------------------------------------------------------------- */

static void count_streamed(struct dp_offload *o, const struct dpo_shard *shard)
{
    o->slot_values = larger(o->slot_values, shard->value_bytes);
    o->slot_grads = larger(o->slot_grads, shard->grad_bytes);
    o->counts.largest_shard_bytes =
        larger(o->counts.largest_shard_bytes, shard->value_bytes + shard->grad_bytes);
}

static void count_kept(struct dp_offload *o, const struct dpo_shard *shard)
{
    o->kept_grad_bytes = larger(o->kept_grad_bytes, shard->grad_bytes);
    o->kept_shard_bytes += home_bytes_of(o, shard);
    for (int32_t l = shard->first; l < shard->end; l++)
        o->kept_state_bytes += align(o->layers[l].given->kept_bytes);
}

static int new_lists(struct dp_offload *o)
{
    size_t shards = (size_t)o->shard_count;

    o->rings = o->config.boundaries_down ? o->config.distance + 2 : 0;
    o->slots = calloc((size_t)all_slots(o), sizeof(*o->slots));
    o->ring = calloc((size_t)o->rings + 1, sizeof(*o->ring));
    o->tasks = calloc(shards, sizeof(*o->tasks));
    o->pending = calloc(shards, sizeof(*o->pending));
    if (!o->slots || !o->ring || !o->tasks || !o->pending)
        return dp_fail(DP_ENOMEM, "offload: no memory for %zu shards", shards);
    for (int32_t s = 0; s < o->shard_count; s++) {
        struct dpo_shard *shard = &o->shards[s];
        o->tasks[s] = (struct dpo_task){o, shard};
        o->sum_bytes = larger(o->sum_bytes, shard->grad_bytes);
        if (shard->kept)
            count_kept(o, shard);
        else
            count_streamed(o, shard);
    }
    o->activation_bytes = lay_out(o);
    return 0;
}

int dpo_memory_count(struct dp_offload *o)
{
    int err = new_lists(o);

    if (!err)
        count_device(o);
    return err;
}

int dpo_memory_init(struct dp_offload *o)
{
    int err = init_pool(o);

    if (!err)
        err = init_device(o);
    if (!err)
        err = init_shards(o);
    if (!err)
        dpo_threads_bind(o);
    if (!err)
        err = init_extras(o);
    if (!err)
        err = init_streams(o);
    if (!err)
        err = init_copies(o);
    return err ? err : each_event(o, new_event);
}

void dpo_memory_fini(struct dp_offload *o)
{
    dp_device_stream_free(o->compute);
    dp_copy_engine_free(o->copies);
    dp_device_stream_free(o->update);
    each_event(o, free_event);
    dp_device_free(o->dev, DP_MEMORY_DEVICE, o->memory);
    dp_pinned_free(o->pinned);
    free(o->slots);
    free(o->ring);
    free(o->tasks);
    free(o->pending);
}
