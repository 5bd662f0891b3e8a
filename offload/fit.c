/* SPDX-License-Identifier: Apache-2.0
 *
 * fit.c - how to cut a model, and how much of it to keep on the device, so that a given amount of
 * its memory is enough. Every candidate is laid out as dp_offload_open would do it.
 */
#include "offload/layout.h"

#include "base/fail.h"

#include <stdlib.h>

/* What else there is to give up, in this order. */
static const struct mode {
    bool checkpoint, boundaries_down;
} modes[] = {{false, false}, {true, false}, {true, true}};

struct candidate {
    bool fits;
    double worth; /* the less the better: loads of the whole model in a step, or its time in ns */
    struct dp_offload_config config;
    size_t least; /* bytes that would do, whatever fits */
};

/* What is looked for. */
struct search {
    const struct dp_offload_config *given;
    const struct dp_offload_cost *cost; /* NULL: the fewest copies */
    size_t device_bytes;
    struct candidate best;
};

/* ---- what a candidate takes ------------------------------------------------------------------- */

static int64_t copy_ns(size_t bytes, double bytes_per_s)
{
    return (int64_t)((double)bytes / bytes_per_s * 1e9);
}

static struct dp_offload_shard_cost cost_of(const struct dpo_layout *layout, int32_t s,
                                            const struct dp_offload_cost *cost)
{
    const struct dpo_shard *shard = &layout->shards[s];
    const struct dpo_border *in = s ? &layout->layers[shard->first - 1].whole : &layout->input;
    size_t boundary = layout->config.boundaries_down ? in->bytes : 0;
    struct dp_offload_shard_cost c = {
        .up_ns = copy_ns(shard->value_bytes, cost->up_bytes_per_s),
        .down_ns = copy_ns(shard->grad_bytes, cost->down_bytes_per_s),
        .boundary_down_ns = copy_ns(boundary, cost->down_bytes_per_s),
        .boundary_up_ns = copy_ns(boundary, cost->up_bytes_per_s),
    };

    for (int32_t l = shard->first; l < shard->end; l++) {
        c.forward_ns += cost->forward_ns[l];
        c.backward_ns += cost->backward_ns[l];
    }
    if (layout->config.checkpoint)
        c.backward_ns += c.forward_ns;
    return c;
}

static int predict(const struct search *search, const struct dpo_layout *layout,
                   const struct dp_offload_config *config, double *out)
{
    struct dp_offload_shard_cost *costs = calloc((size_t)layout->shard_count, sizeof(*costs));
    struct dp_offload_plan plan = dpo_layout_plan(layout, config->forward_only);
    int64_t ns = 0;

    plan.slots = config->slots;
    plan.distance = config->distance;
    if (!costs)
        return dp_fail(DP_ENOMEM, "offload: no memory for the costs of %d shards",
                       layout->shard_count);
    for (int32_t s = 0; s < layout->shard_count; s++)
        costs[s] = cost_of(layout, s, search->cost);
    int err = dp_offload_predict(&plan, costs, &ns);
    free(costs);
    *out = (double)ns;
    return err;
}

/* ---- candidates ------------------------------------------------------------------------------- */

static void take_better(struct candidate *best, const struct dp_offload_config *config, double worth,
                        bool or_equal)
{
    if (best->fits && (worth > best->worth || (worth >= best->worth && !or_equal)))
        return;
    best->fits = true;
    best->worth = worth;
    best->config = *config;
}

/* As many slots as there is room for. A step loads every shard in its forward, since it was changed
 * since, and in its backward those that are not there any more. */
static void fill_room(struct search *search, struct dp_offload_config config,
                      const struct dpo_layout *layout, int32_t room)
{
    if (!search->given->slots)
        config.slots = room;
    if (config.distance >= config.slots)
        config.distance = config.slots - 1;
    take_better(&search->best, &config,
                (2.0 * layout->shard_count - config.slots) / layout->shard_count, true);
}

static int32_t more_slots(int32_t slots, int32_t room)
{
    int32_t next = slots + 1 + slots / 2;

    return slots < room && next > room ? room : next;
}

static int try_distances(struct search *search, const struct dpo_layout *layout,
                         struct dp_offload_config *config)
{
    const int32_t last = config->slots - 1, distances[] = {last < 1 ? last : 1, 2, last};
    double ns = 0;
    int err = 0;

    for (int i = 0; i < 3 && !err; i++) {
        if (!search->given->slots)
            config->distance = distances[i];
        if (config->distance > last || (i && config->distance <= distances[i - 1]))
            continue;
        err = predict(search, layout, config, &ns);
        if (!err)
            take_better(&search->best, config, ns, false);
    }
    return err;
}

static int try_slots(struct search *search, const struct dpo_layout *layout,
                     struct dp_offload_config config, int32_t room)
{
    int err = 0;

    if (search->given->slots)
        return try_distances(search, layout, &config);
    for (int32_t k = config.slots; k <= room && !err; k = more_slots(k, room)) {
        config.slots = k;
        err = try_distances(search, layout, &config);
    }
    return err;
}

/* layout is config, laid out with the fewest slots, or with fewer where there are not as many shards. */
static int consider(struct search *search, const struct dpo_layout *layout,
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
        return 0;
    size_t room = slot ? (search->device_bytes - rest) / slot : (size_t)shards;
    int32_t most = room < (size_t)shards ? (int32_t)room : shards;
    if (search->cost)
        return try_slots(search, layout, config, most);
    fill_room(search, config, layout, most);
    return 0;
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
        err = consider(search, &layout, config);
        dpo_layout_fini(&layout);
    }
    return err;
}

static int check(const struct dp_offload_config *config, const struct dp_offload_cost *cost)
{
    if (!config->device)
        return dp_fail(DP_EINVAL, "offload: no device");
    if (config->first)
        return dp_fail(DP_EINVAL,
                       "offload: ready-made shards cannot be made to fit: first is not NULL");
    if (cost && !(cost->up_bytes_per_s > 0 && cost->down_bytes_per_s > 0))
        return dp_fail(DP_EINVAL, "offload: a cost of copies at %g and %g bytes/s, expected more than 0",
                       cost->up_bytes_per_s, cost->down_bytes_per_s);
    return 0;
}

int dp_offload_fit(struct dp_offload_config *config, bool boundaries,
                   const struct dp_offload_cost *cost)
{
    const int32_t count_of_modes = boundaries ? 3 : 2;
    struct search search = {.given = config, .cost = cost};
    struct dp_device_usage usage;
    int err = check(config, cost);
    if (err)
        return err;

    dp_device_usage(config->device, &usage);
    search.device_bytes = usage.bytes < usage.limit_bytes ? usage.limit_bytes - usage.bytes : 0;
    for (int32_t distance = 1; distance >= 0 && (cost || !search.best.fits) && !err; distance--)
        for (int32_t i = 0; i < count_of_modes && (cost || !search.best.fits) && !err; i++)
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
