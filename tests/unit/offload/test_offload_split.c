/* SPDX-License-Identifier: Apache-2.0
 *
 * The rules that split a model into shards. tests/golden has the vectors of the compat rule.
 */
#include "cmocka_all.h"

#include "base/fail.h"
#include <dualpipe/offload.h>

enum { MOST = 12 };

struct split {
    int32_t layers, slices;
    int64_t sizes[MOST];
    int32_t shards, first[MOST + 1];
};

static void check_rule(enum dp_offload_split rule, const struct split *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct split *c = &cases[i];
        int32_t first[MOST + 1] = {0}, shards = 0;

        assert_int_equal(dp_offload_split(rule, c->sizes, c->layers, c->slices, first, &shards), 0);
        assert_int_equal(shards, c->shards);
        for (int32_t k = 0; k <= shards; k++)
            if (first[k] != c->first[k])
                fail_msg("case %zu: shard %d begins at layer %d, expected %d", i, k, first[k],
                         c->first[k]);
    }
}

CASE(compat_is_the_rule_of_the_table)
{
    static const struct split cases[] = {
        {6, 3, {10, 10, 10, 10, 10, 10}, 3, {0, 2, 4, 6}},
        {7, 3, {10, 10, 10, 10, 10, 10, 10}, 3, {0, 2, 4, 7}},
        {3, 3, {10, 0, 0}, 3, {0, 1, 3, 3}},
        {4, 3, {1, 1, 1, 100}, 3, {0, 3, 4, 4}},
        {4, 2, {100, 1, 1, 1}, 2, {0, 1, 4}},
        {12, 2, {60, 420, 420, 420, 420, 420, 420, 420, 420, 420, 420, 42}, 2, {0, 5, 12}},
        {8, 4, {1, 2, 3, 4, 5, 6, 7, 8}, 4, {0, 3, 5, 6, 8}},
        {8, 4, {8, 7, 6, 5, 4, 3, 2, 1}, 4, {0, 1, 2, 3, 8}},
        {5, 2, {0, 0, 5, 0, 5}, 2, {0, 4, 5}},
        {1, 4, {5}, 1, {0, 1}},
    };
    check_rule(DP_OFFLOAD_SPLIT_COMPAT, cases, sizeof(cases) / sizeof(cases[0]));
}

CASE(balanced_has_the_smallest_largest_shard_and_no_empty_one)
{
    static const struct split cases[] = {
        {3, 3, {10, 0, 0}, 3, {0, 1, 2, 3}},
        {4, 3, {1, 1, 1, 100}, 3, {0, 2, 3, 4}},
        {8, 4, {8, 7, 6, 5, 4, 3, 2, 1}, 4, {0, 1, 2, 4, 8}},
        {8, 4, {1, 2, 3, 4, 5, 6, 7, 8}, 4, {0, 4, 6, 7, 8}},
        {4, 2, {0, 0, 0, 0}, 2, {0, 3, 4}},
        {1, 4, {5}, 1, {0, 1}},
    };
    check_rule(DP_OFFLOAD_SPLIT_BALANCED, cases, sizeof(cases) / sizeof(cases[0]));
}

static int64_t largest(const int64_t *sizes, const int32_t *first, int32_t shards)
{
    int64_t most = 0;

    for (int32_t k = 0; k < shards; k++) {
        int64_t sum = 0;
        for (int32_t i = first[k]; i < first[k + 1]; i++)
            sum += sizes[i];
        most = sum > most ? sum : most;
    }
    return most;
}

/* The smallest largest shard of sizes[from .. layers), by trying every first cut. */
static int64_t try_all(const int64_t *sizes, int32_t from, int32_t layers, int32_t shards)
{
    int64_t sum = 0, best = INT64_MAX;

    for (int32_t end = from + 1; end <= layers - (shards - 1); end++) {
        sum += sizes[end - 1];
        if (shards == 1 && end < layers)
            continue;
        int64_t rest = shards > 1 ? try_all(sizes, end, layers, shards - 1) : 0;
        int64_t most = rest > sum ? rest : sum;
        best = most < best ? most : best;
    }
    return best;
}

CASE(balanced_is_the_best_of_all_ways)
{
    uint64_t seed = 1;

    for (int round = 0; round < 300; round++) {
        int64_t sizes[MOST];
        int32_t layers = round % 9 + 1, slices = round % 5 + 1, first[MOST + 1], shards;
        for (int32_t i = 0; i < layers; i++) {
            seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
            sizes[i] = (int64_t)((seed >> 33) % 7 ? (seed >> 40) % 50 : 0);
        }
        assert_int_equal(
            dp_offload_split(DP_OFFLOAD_SPLIT_BALANCED, sizes, layers, slices, first, &shards), 0);
        for (int32_t k = 0; k < shards; k++)
            assert_true(first[k] < first[k + 1]);
        assert_int_equal(first[shards], layers);
        assert_int_equal(largest(sizes, first, shards), try_all(sizes, 0, layers, shards));
    }
}

CASE(what_cannot_be_split_is_refused)
{
    int64_t sizes[2] = {1, -1}, huge[2] = {INT64_MAX, 1};
    int32_t first[4], shards = 7;

    assert_int_equal(dp_offload_split(0, sizes, 0, 1, first, &shards), DP_EINVAL);
    assert_non_null(strstr(dp_last_error(), "a model of 0 layers"));
    expect_error(dp_offload_split(0, sizes, 1, 0, first, &shards), DP_EINVAL, "in 0 slices");
    assert_int_equal(dp_offload_split(1, sizes, 1, -3, first, &shards), DP_EINVAL);
    assert_int_equal(dp_offload_split(0, sizes, 2, 2, first, &shards), DP_EINVAL);
    assert_non_null(strstr(dp_last_error(), "layer 1 has the size -1"));
    expect_error(dp_offload_split(0, huge, 2, 2, first, &shards), DP_EINVAL, "add up to more");
    assert_int_equal(dp_offload_split((enum dp_offload_split)2, sizes, 1, 1, first, &shards),
                     DP_EINVAL);
    assert_int_equal(shards, 7);
}
