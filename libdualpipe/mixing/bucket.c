/* SPDX-License-Identifier: Apache-2.0 */
#include "mixing/bucket.h"

#include "base/fail.h"

#include <stdlib.h>

enum { TYPES_MAX = 8, ALIGN_ELEMENTS = 32, ALIGN_BYTES = 256 };

/* A bucket that still takes parameters; there is one a type. */
struct open_bucket {
    int32_t type, number; /* number -1: none is open */
    double bytes;
};

static int64_t alignment(const struct dp_bucket_rule *rule, const struct dp_bucket_item *item)
{
    return rule->compat ? ALIGN_ELEMENTS : ALIGN_BYTES / item->element_bytes;
}

static int64_t padded(const struct dp_bucket_rule *rule, const struct dp_bucket_item *item)
{
    int64_t align = alignment(rule, item);

    return (item->elements + align - 1) / align * align;
}

static struct open_bucket *find_open(struct open_bucket *open, int32_t type)
{
    for (int i = 0; i < TYPES_MAX; i++) {
        if (open[i].type == type)
            return &open[i];
        if (open[i].type < 0) {
            open[i].type = type;
            return &open[i];
        }
    }
    return NULL;
}

/* Which bucket each item is of. */
static int assign(const struct dp_bucket_rule *rule, const struct dp_bucket_item *items,
                  const int32_t *trace, int32_t traced, struct dp_buckets *b)
{
    struct open_bucket open[TYPES_MAX];

    for (int i = 0; i < TYPES_MAX; i++)
        open[i] = (struct open_bucket){-1, -1, 0};
    for (int32_t i = 0; i < traced; i++) {
        const struct dp_bucket_item *item = &items[trace[i]];
        struct open_bucket *o = find_open(open, item->type);
        if (!o)
            return dp_fail(DP_EUNSUPPORTED, "parameters of more than %d element types", TYPES_MAX);
        if (o->number < 0)
            o->number = b->count++;
        b->bucket_of[trace[i]] = o->number;
        o->bytes += (double)padded(rule, item) * item->element_bytes;
        if (o->bytes >= rule->bytes)
            *o = (struct open_bucket){item->type, -1, 0};
    }
    return 0;
}

/* Items by bucket, in the order of the trace, with their places. */
static void place(const struct dp_bucket_rule *rule, const struct dp_bucket_item *items,
                  const int32_t *trace, int32_t traced, struct dp_buckets *b)
{
    int32_t at = 0;

    for (int32_t i = 0; i < traced; i++)
        b->cuts[b->bucket_of[trace[i]]].count++;
    for (int32_t k = 0; k < b->count; k++) {
        b->cuts[k].first = at;
        at += b->cuts[k].count;
        b->cuts[k].count = 0;
    }
    for (int32_t i = 0; i < traced; i++) {
        struct dp_bucket_cut *cut = &b->cuts[b->bucket_of[trace[i]]];
        b->order[cut->first + cut->count++] = trace[i];
        b->offset[trace[i]] = cut->block_elements;
        cut->block_elements += padded(rule, &items[trace[i]]);
    }
}

static bool length_is_taken(const struct dp_buckets *b, int32_t number)
{
    for (int32_t k = 0; k < number; k++)
        if (b->cuts[k].block_elements == b->cuts[number].block_elements)
            return true;
    return false;
}

int dp_buckets_cut(const struct dp_bucket_rule *rule, const struct dp_bucket_item *items,
                   int32_t count, const int32_t *trace, int32_t traced, struct dp_buckets *out)
{
    struct dp_buckets b = {.item_count = traced};
    const size_t room = (size_t)count + 1;

    b.cuts = calloc((size_t)traced + 1, sizeof(*b.cuts));
    b.order = calloc((size_t)traced + 1, sizeof(*b.order));
    b.bucket_of = malloc(room * sizeof(*b.bucket_of));
    b.offset = calloc(room, sizeof(*b.offset));
    if (!b.cuts || !b.order || !b.bucket_of || !b.offset) {
        dp_buckets_fini(&b);
        return dp_fail(DP_ENOMEM, "no memory for the buckets of %d parameters", count);
    }
    for (int32_t i = 0; i < count; i++)
        b.bucket_of[i] = -1;
    int err = assign(rule, items, trace, traced, &b);
    if (err) {
        dp_buckets_fini(&b);
        return err;
    }
    place(rule, items, trace, traced, &b);
    for (int32_t k = 0; k < b.count; k++)
        while (length_is_taken(&b, k))
            b.cuts[k].block_elements += alignment(rule, &items[b.order[b.cuts[k].first]]);
    *out = b;
    return 0;
}

void dp_buckets_fini(struct dp_buckets *b)
{
    free(b->cuts);
    free(b->order);
    free(b->bucket_of);
    free(b->offset);
    *b = (struct dp_buckets){0};
}
