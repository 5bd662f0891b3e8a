/* SPDX-License-Identifier: Apache-2.0
 *
 * fit.c - how to cut a model, and how much of it to keep on the device, so that a given amount of
 * its memory is enough. Every candidate is laid out as dp_offload_open would do it.
 */
#include "offload/layout.h"

#include "base/fail.h"
#include "base/sized.h"

#include <stdlib.h>

/* What else there is to give up, in this order. */
static const struct mode {
    bool checkpoint, boundaries_down;
} modes[] = {{false, false}, {true, false}, {true, true}};

struct candidate {
    bool fits;
    double worth; /* the less the better: loads of the whole model in a step */
    struct dp_offload_config config;
    size_t least; /* bytes that would do, whatever fits */
};

/* What is looked for. */
struct search {
    const struct dp_offload_config *given;
    size_t device_bytes;
    struct candidate best;
};

/* ---- candidates ------------------------------------------------------------------------------- */

/* As many slots as there is room for. A step loads every shard in its forward, since it was changed
 * since, and in its backward those that are not there any more. */
static void fill_room(struct search *search, struct dp_offload_config config,
                      const struct dpo_layout *layout, int32_t room)
{
    if (!search->given->slots)
        config.slots = room;
    if (config.distance >= config.slots)
        config.distance = config.slots - 1;
    const double worth = (2.0 * layout->shard_count - config.slots) / layout->shard_count;
    if (search->best.fits && worth > search->best.worth)
        return;
    search->best.fits = true;
    search->best.worth = worth;
    search->best.config = config;
}

/* layout is config, laid out with the fewest slots, or with fewer where there are not as many shards. */
static void consider(struct search *search, const struct dpo_layout *layout,
                    struct dp_offload_config config)
{
    const struct dp_offload_memory *m = &layout->counts;
    const int32_t shards = layout->shard_count;
    size_t slot = m->slots_bytes / (size_t)layout->config.slots,
           rest = m->device_bytes - m->slots_bytes;
    struct candidate *best = &search->best;

    config.slots = layout->config.slots;
    config.distance = layout->config.distance;

    if (!best->least || m->device_bytes < best->least)
        best->least = m->device_bytes;
    if (search->device_bytes < m->device_bytes)
        return;
    size_t room = slot ? (search->device_bytes - rest) / slot : (size_t)shards;
    fill_room(search, config, layout, room < (size_t)shards ? (int32_t)room : shards);
}

/* Every number of slices for a small model; for a large one steps of an eighth. */
static int32_t after(int32_t slices, int32_t layers)
{
    int32_t next = slices + 1 + slices / 8;

    return slices < layers && next > layers ? layers : next;
}

/* distance 1: the next shard is loaded while one is at work. 0: there is room for one alone. */
static int try_mode(struct search *search, const struct mode *mode, int32_t distance)
{
    const struct dp_offload_config *given = search->given;
    int err = 0;

    for (int32_t n = 1 + distance; n <= given->layer_count && !err;
         n = after(n, given->layer_count)) {
        struct dp_offload_config config = *given;
        struct dpo_layout layout;
        config.slices = n;
        if (!given->slots) {
            config.slots = 1 + distance;
            config.distance = distance;
        }
        config.checkpoint = mode->checkpoint;
        config.boundaries_down = mode->boundaries_down;
        err = dpo_layout_init(&layout, &config);
        if (err)
            break;
        consider(search, &layout, config);
        dpo_layout_fini(&layout);
    }
    return err;
}

static int check(const struct dp_offload_config *config)
{
    if (!config->device)
        return dp_fail(DP_EINVAL, "offload: no device");
    if (config->first)
        return dp_fail(DP_EINVAL,
                       "offload: ready-made shards cannot be made to fit: first is not NULL");
    return 0;
}

static int fit(struct dp_offload_config *config, bool boundaries)
{
    const int32_t count_of_modes = boundaries ? 3 : 2;
    struct search search = {.given = config};
    struct dp_device_usage usage;
    int err = check(config);
    if (err)
        return err;

    dp_device_usage(config->device, &usage);
    search.device_bytes = usage.bytes < usage.limit_bytes ? usage.limit_bytes - usage.bytes : 0;
    for (int32_t distance = 1; distance >= 0 && !search.best.fits && !err; distance--)
        for (int32_t i = 0; i < count_of_modes && !search.best.fits && !err; i++)
            err = try_mode(&search, &modes[i], distance);
    if (err)
        return err;
    if (!search.best.fits)
        return dp_fail(DP_ENOMEM,
                       "offload: %zu bytes of device memory are too few: expected at least %zu, with "
                       "the %zu that are in use already",
                       usage.limit_bytes, usage.bytes + search.best.least, usage.bytes);
    *config = search.best.config;
    return 0;
}

int dp_offload_fit_sized(struct dp_offload_config *config, bool boundaries, size_t size)
{
    struct dp_offload_config own;
    int err = dp_sized_take(&own, sizeof(own), config, size, "struct dp_offload_config");

    if (!err)
        err = fit(&own, boundaries);
    if (!err)
        dp_sized_give(config, size, &own, sizeof(own));
    return err;
}
