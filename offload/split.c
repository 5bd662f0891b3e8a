/* SPDX-License-Identifier: Apache-2.0
 *
 * split.c - which layers make up which shard.
 */
#include <dualpipe/offload.h>

#include "base/fail.h"

static int sum_of(const int64_t *sizes, int32_t layers, int64_t *out)
{
    int64_t sum = 0;

    for (int32_t i = 0; i < layers; i++) {
        if (sizes[i] < 0)
            return dp_fail(DP_EINVAL, "layer %d has the size %lld, expected 0 or more", i,
                           (long long)sizes[i]);
        if (sizes[i] > INT64_MAX - sum)
            return dp_fail(DP_EINVAL, "the sizes of layers 0 to %d add up to more than 2^63 - 1",
                           i);
        sum += sizes[i];
    }
    *out = sum;
    return 0;
}

static void split_compat(const int64_t *sizes, int32_t layers, int32_t shards, int64_t sum,
                         int32_t *first)
{
    int64_t target = sum / shards, held = 0;
    int32_t shard = 0;

    first[0] = 0;
    for (int32_t i = 0; i < layers; i++) {
        if (held > 0 && sizes[i] > target - held && shard < shards - 1) {
            first[++shard] = i;
            held = 0;
        }
        held += sizes[i];
    }
    while (shard < shards)
        first[++shard] = layers;
}

/* Fill shards up to `most` from the left, each with a layer left for every later one. Whether all
 * layers found a place. */
static bool fill(const int64_t *sizes, int32_t layers, int32_t shards, int64_t most, int32_t *first)
{
    int32_t i = 0;

    for (int32_t shard = 0; shard < shards; shard++) {
        int32_t end = layers - (shards - 1 - shard);
        int64_t held = 0;
        first[shard] = i;
        for (; i < end && sizes[i] <= most - held; i++)
            held += sizes[i];
        if (i == first[shard])
            return false;
    }
    first[shards] = layers;
    return i == layers;
}

/* Whether `most` is enough only grows with it. */
static void split_balanced(const int64_t *sizes, int32_t layers, int32_t shards, int64_t sum,
                           int32_t *first)
{
    int64_t low = 0, high = sum; /* high is enough */

    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (fill(sizes, layers, shards, middle, first))
            high = middle;
        else
            low = middle + 1;
    }
    fill(sizes, layers, shards, high, first);
}

int dp_offload_split(enum dp_offload_split rule, const int64_t *sizes, int32_t layers,
                     int32_t slices, int32_t *first, int32_t *shards)
{
    int32_t count = layers < slices ? layers : slices;
    int64_t sum = 0;

    if (layers < 1)
        return dp_fail(DP_EINVAL, "a model of %d layers, expected at least 1", layers);
    if (slices < 1)
        return dp_fail(DP_EINVAL, "a model in %d slices, expected at least 1", slices);
    if (rule != DP_OFFLOAD_SPLIT_BALANCED && rule != DP_OFFLOAD_SPLIT_COMPAT)
        return dp_fail(DP_EINVAL, "split rule %d, expected balanced (0) or compat (1)", (int)rule);
    int err = sum_of(sizes, layers, &sum);
    if (err)
        return err;
    if (rule == DP_OFFLOAD_SPLIT_COMPAT)
        split_compat(sizes, layers, count, sum, first);
    else
        split_balanced(sizes, layers, count, sum, first);
    *shards = count;
    return 0;
}
