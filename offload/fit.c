/* SPDX-License-Identifier: Apache-2.0
 *
 * fit.c - how to cut a model, and how much of it to keep on the device, so that a given amount of
 * its memory is enough. Every candidate is laid out as dp_offload_open would do it.
 */
#include "offload/state.h"

#include "base/fail.h"

/* What else there is to give up, in this order. */
static const struct mode {
    bool checkpoint, boundaries_down;
} modes[] = {{false, false}, {true, false}, {true, true}};

struct candidate {
    bool fits;
    double loads; /* of the whole model in a step; the fewer the better */
    struct dp_offload_config config;
    size_t least; /* bytes that would do, whatever fits */
};

static int count(const struct dp_offload_config *config, struct dp_offload_memory *out,
                 int32_t *shards)
{
    struct dp_offload *o;
    int err = dpo_count(config, &o);

    if (err)
        return err;
    dp_offload_memory(o, out);
    *shards = o->shard_count;
    dp_offload_close(o);
    return 0;
}

/* As many slots as there is room for. A step loads every shard in its forward, since it was changed
 * since, and in its backward those that are not there any more. */
static void consider(struct candidate *best, struct dp_offload_config *config,
                     const struct dp_offload_memory *m, int32_t shards, size_t device_bytes)
{
    size_t slot = m->slots_bytes / (size_t)config->slots, rest = m->device_bytes - m->slots_bytes;

    if (!best->least || rest + slot * (size_t)config->slots < best->least)
        best->least = rest + slot * (size_t)config->slots;
    if (device_bytes < m->device_bytes)
        return;
    size_t room = slot ? (device_bytes - rest) / slot : (size_t)shards;
    config->slots = room < (size_t)shards ? (int32_t)room : shards;
    if (config->distance >= config->slots)
        config->distance = config->slots - 1;
    double loads = 2 - (double)config->slots / shards;
    if (best->fits && loads > best->loads)
        return;
    best->fits = true;
    best->loads = loads;
    best->config = *config;
}

/* Every number of slices for a small model; for a large one steps of an eighth. */
static int32_t after(int32_t slices, int32_t layers)
{
    int32_t next = slices + 1 + slices / 8;

    return slices < layers && next > layers ? layers : next;
}

/* distance 1: the next shard is loaded while one is at work. 0: there is room for one alone. */
static int try_mode(const struct dp_offload_config *given, const struct mode *mode,
                    int32_t distance, size_t device_bytes, struct candidate *best)
{
    int err = 0;

    for (int32_t n = 1 + distance; n <= given->layer_count && !err;
         n = after(n, given->layer_count)) {
        struct dp_offload_config config = *given;
        struct dp_offload_memory m;
        int32_t shards;
        config.slices = n;
        config.slots = 1 + distance;
        config.distance = distance;
        config.checkpoint = mode->checkpoint;
        config.boundaries_down = mode->boundaries_down;
        err = count(&config, &m, &shards);
        if (!err)
            consider(best, &config, &m, shards, device_bytes);
    }
    return err;
}

int dp_offload_fit(struct dp_offload_config *config, bool boundaries)
{
    const int32_t count_of_modes = boundaries ? 3 : 2;
    struct candidate best = {0};
    struct dp_device_usage usage;
    int err = 0;

    if (!config->device)
        return dp_fail(DP_EINVAL, "offload: no device");
    if (config->first)
        return dp_fail(DP_EINVAL,
                       "offload: ready-made shards cannot be made to fit: first is not NULL");
    dp_device_usage(config->device, &usage);
    size_t left = usage.bytes < usage.limit_bytes ? usage.limit_bytes - usage.bytes : 0;
    for (int32_t distance = 1; distance >= 0 && !best.fits && !err; distance--)
        for (int32_t i = 0; i < count_of_modes && !best.fits && !err; i++)
            err = try_mode(config, &modes[i], distance, left, &best);
    if (err)
        return err;
    if (!best.fits)
        return dp_fail(DP_ENOMEM,
                       "offload: %zu bytes of device memory are too few, of which %zu are given: "
                       "expected at least %zu",
                       usage.limit_bytes, usage.bytes, usage.bytes + best.least);
    *config = best.config;
    return 0;
}
