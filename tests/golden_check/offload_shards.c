/* SPDX-License-Identifier: Apache-2.0
 *
 * offload_shards.c - how the layers of an offloaded model are cut into shards.
 */
#include "golden_check/golden.h"

#include <dualpipe/offload.h>

static bool is_offload_split(const json_t *value)
{
    return golden_all_have(value, KEYS("params_per_layer", "num_slices", "shards"));
}

/* Whether the lists are of the layers first[k] to first[k + 1] - 1. */
static bool same_shards(const json_t *lists, const int32_t *first, int32_t shards)
{
    bool same = (int32_t)json_array_size(lists) == shards;

    for (int32_t k = 0; k < shards && same; k++) {
        const json_t *list = json_array_get(lists, (size_t)k), *layer;
        size_t i;
        same = (int32_t)json_array_size(list) == first[k + 1] - first[k];
        json_array_foreach(list, i, layer)
            same = same && json_integer_value(layer) == first[k] + (int32_t)i;
    }
    return same;
}

enum { MOST_LAYERS = 4096 };

static bool offload_split_is_right(const json_t *record)
{
    static int64_t sizes[MOST_LAYERS];
    static int32_t first[MOST_LAYERS + 1];
    const json_t *layers = json_object_get(record, "params_per_layer"), *size;
    json_int_t slices = golden_integer(record, "num_slices");
    int32_t count = (int32_t)json_array_size(layers), shards;
    size_t i;

    if (count > MOST_LAYERS || slices > MOST_LAYERS)
        return false;
    json_array_foreach(layers, i, size)
        sizes[i] = json_integer_value(size);
    return !dp_offload_split(DP_OFFLOAD_SPLIT_COMPAT, sizes, count, (int32_t)slices, first,
                             &shards) &&
           same_shards(json_object_get(record, "shards"), first, shards);
}

static bool check_record(struct golden *g, size_t i, const json_t *record)
{
    return offload_split_is_right(record) ||
           FAIL(g, "record %zu: the shards differ, or it is not sound", i);
}

static bool check_offload_split(struct golden *g)
{
    return golden_each(g, g->value, check_record) &&
           PASS(g, "all %zu splits", json_array_size(g->value));
}

const struct golden_kind golden_offload_shards = {is_offload_split, check_offload_split};
