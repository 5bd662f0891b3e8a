/* SPDX-License-Identifier: Apache-2.0
 *
 * Buckets: what is exchanged together, and where it lies. The vectors of the seed are in the golden
 * files.
 */
#include "cmocka_all.h"

#include "mixing/bucket.h"

enum { FLOAT = 1, DOUBLE };
#define ITEM(n) {(n), FLOAT, 4}

static struct dp_buckets cut(const struct dp_bucket_rule *rule, const struct dp_bucket_item *items,
                             int32_t count, const int32_t *trace, int32_t traced)
{
    struct dp_buckets b;

    assert_int_equal(dp_buckets_cut(rule, items, count, trace, traced, &b), 0);
    return b;
}

CASE(parameters_begin_at_multiples_of_256_bytes)
{
    static const struct dp_bucket_item items[] = {ITEM(1), ITEM(65), {3, DOUBLE, 8}, ITEM(64)};
    static const int32_t trace[] = {1, 0, 3};
    struct dp_buckets b = cut(&(struct dp_bucket_rule){.bytes = 1e9}, items, 4, trace, 3);

    assert_int_equal(b.count, 1);
    assert_int_equal(b.offset[1], 0);
    assert_int_equal(b.offset[0], 128);
    assert_int_equal(b.offset[3], 192);
    assert_int_equal(b.cuts[0].block_elements, 256);
    assert_int_equal(b.bucket_of[2], -1);
    dp_buckets_fini(&b);
}

CASE(a_bucket_has_one_element_type_and_types_may_alternate)
{
    static const struct dp_bucket_item items[] = {ITEM(64), {32, DOUBLE, 8}, ITEM(64), {32, DOUBLE, 8},
                                                  ITEM(64)};
    static const int32_t trace[] = {4, 3, 2, 1, 0};
    struct dp_buckets b = cut(&(struct dp_bucket_rule){.bytes = 512}, items, 5, trace, 5);

    assert_int_equal(b.count, 3);
    assert_int_equal(b.bucket_of[4], 0);
    assert_int_equal(b.bucket_of[2], 0);
    assert_int_equal(b.bucket_of[3], 1);
    assert_int_equal(b.bucket_of[1], 1);
    assert_int_equal(b.bucket_of[0], 2);
    assert_int_equal(b.order[0], 4);
    assert_int_equal(b.order[1], 2);
    dp_buckets_fini(&b);
}

CASE(no_two_blocks_have_one_length)
{
    static const struct dp_bucket_item items[] = {ITEM(64), ITEM(64), ITEM(64), {0, FLOAT, 4}};
    static const int32_t trace[] = {0, 1, 2, 3};
    struct dp_buckets b = cut(&(struct dp_bucket_rule){.bytes = 1}, items, 4, trace, 4);

    assert_int_equal(b.count, 4);
    assert_int_equal(b.cuts[0].block_elements, 64);
    assert_int_equal(b.cuts[1].block_elements, 128);
    assert_int_equal(b.cuts[2].block_elements, 192);
    dp_buckets_fini(&b);
}

CASE(nothing_traced_is_no_bucket)
{
    static const struct dp_bucket_item items[] = {ITEM(64)};
    struct dp_buckets b = cut(&(struct dp_bucket_rule){.bytes = 1}, items, 1, NULL, 0);

    assert_int_equal(b.count, 0);
    dp_buckets_fini(&b);
}
