/* SPDX-License-Identifier: Apache-2.0
 *
 * mixing_buckets.c - how the parameters of decentralized training are cut into buckets.
 */
#include "golden_check/golden.h"
#include "mixing/bucket.h"

#include <string.h>

enum { ITEMS_MAX = 4096 };

static bool is_decent_buckets(const json_t *value)
{
    return golden_all_have(value, KEYS("numel", "bucket_mb", "buckets"));
}

/* What a record says, in the words of the cutter. false: more than this program holds. */
struct bucket_case {
    int32_t count, traced;
    struct dp_bucket_item items[ITEMS_MAX];
    int32_t trace[ITEMS_MAX];
};

static bool read_bucket_case(const json_t *record, struct bucket_case *c)
{
    const json_t *numel = json_object_get(record, "numel");
    const json_t *trace = json_object_get(record, "trace");
    const char *dtype = golden_string(record, "dtype");
    const int bytes = dtype && !strcmp(dtype, "float64") ? 8
                      : dtype && !strcmp(dtype, "float32") ? 4 : 2;
    const json_t *item;
    size_t i;

    c->count = (int32_t)json_array_size(numel);
    c->traced = (int32_t)json_array_size(trace);
    if (c->count > ITEMS_MAX || c->traced > c->count)
        return false;
    json_array_foreach(numel, i, item)
        c->items[i] = (struct dp_bucket_item){json_integer_value(item), 0, bytes};
    json_array_foreach(trace, i, item) {
        c->trace[i] = (int32_t)json_integer_value(item);
        if (c->trace[i] < 0 || c->trace[i] >= c->count)
            return false;
    }
    return true;
}

static bool same_buckets(const json_t *record, const struct dp_buckets *ours)
{
    const json_t *buckets = json_object_get(record, "buckets"), *bucket;
    const json_t *lengths = json_object_get(record, "block_numel");
    bool same = json_array_size(buckets) == (size_t)ours->count;
    size_t i;

    json_array_foreach(buckets, i, bucket) {
        const struct dp_bucket_cut *cut = &ours->cuts[i];
        same = same && golden_same(bucket, ours->order + cut->first, cut->count) &&
               json_integer_value(json_array_get(lengths, i)) == cut->block_elements;
    }
    return same;
}

static bool check_record(struct golden *g, size_t i, const json_t *record)
{
    static struct bucket_case c;
    struct dp_buckets ours;
    const struct dp_bucket_rule rule = {golden_number(record, "bucket_mb") * 1024 * 1024, true};
    bool right = false;

    if (read_bucket_case(record, &c) &&
        !dp_buckets_cut(&rule, c.items, c.count, c.trace, c.traced, &ours)) {
        right = same_buckets(record, &ours);
        dp_buckets_fini(&ours);
    }
    return right || FAIL(g, "record %zu is cut otherwise by us", i);
}

static bool check_decent_buckets(struct golden *g)
{
    return golden_each(g, g->value, check_record) &&
           PASS(g, "all %zu lists of parameters", json_array_size(g->value));
}

const struct golden_kind golden_mixing_buckets = {is_decent_buckets, check_decent_buckets};
