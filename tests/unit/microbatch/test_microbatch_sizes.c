/* SPDX-License-Identifier: Apache-2.0 */
#include "cmocka_all.h"

#include <dualpipe/microbatch.h>

#include <jansson.h>

static json_t *load(const char *name)
{
    char path[4096];
    json_error_t why;
    const char *data = getenv("DP_TEST_DATA");

    assert_non_null(data);
    snprintf(path, sizeof(path), "%s/golden/%s", data, name);
    json_t *doc = json_load_file(path, 0, &why);
    if (!doc)
        fail_msg("%s: %s", path, why.text);
    return doc;
}

static void assert_sizes(const json_t *row, size_t column, const int64_t *sizes, size_t count)
{
    const json_t *expected = json_array_get(row, column);

    assert_int_equal(json_array_size(expected), count);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(json_integer_value(json_array_get(expected, i)), sizes[i]);
}

CASE(both_rules_agree_with_every_row_of_the_vectors)
{
    json_t *doc = load("chunk_size_vectors.json"), *row;
    size_t i, rows = json_array_size(json_object_get(doc, "rows"));

    assert_true(rows > 200);
    json_array_foreach(json_object_get(doc, "rows"), i, row) {
        int64_t extent = json_integer_value(json_array_get(row, 0)), sizes[64];
        int32_t count = (int32_t)json_integer_value(json_array_get(row, 1)), made = 0;
        assert_in_range(count, 1, 64);
        assert_int_equal(dp_cut_sizes(DP_CUT_TENSOR_SPLIT, extent, count, sizes, &made), 0);
        assert_sizes(row, 2, sizes, (size_t)count);
        assert_int_equal(dp_cut_sizes(DP_CUT_CHUNK, extent, count, sizes, &made), 0);
        assert_sizes(row, 3, sizes, (size_t)made);
    }
    json_decref(doc);
}

CASE(windows_are_the_sizes_laid_side_by_side)
{
    for (int64_t extent = 0; extent < 40; extent++)
        for (int32_t count = 1; count < 20; count++) {
            int64_t sizes[20], end = 0;
            int32_t made;
            assert_int_equal(dp_cut_sizes(DP_CUT_TENSOR_SPLIT, extent, count, sizes, &made), 0);
            for (int32_t i = 0; i < count; i++) {
                int64_t begin = -1, size = -1;
                assert_int_equal(dp_cut_window(DP_CUT_TENSOR_SPLIT, extent, count, i, &begin, &size), 0);
                assert_int_equal(begin, end);
                assert_int_equal(size, sizes[i]);
                end += size;
            }
            assert_int_equal(end, extent);
        }
}

CASE(windows_of_the_chunk_rule_are_its_sizes_laid_side_by_side)
{
    for (int64_t extent = 0; extent < 40; extent++)
        for (int32_t count = 1; count < 20; count++) {
            int64_t sizes[20], end = 0, begin, size;
            int32_t made;
            assert_int_equal(dp_cut_sizes(DP_CUT_CHUNK, extent, count, sizes, &made), 0);
            for (int32_t i = 0; i < count; i++) { /* by the number asked for, and by that made */
                assert_int_equal(dp_cut_window(DP_CUT_CHUNK, extent, count, i, &begin, &size), 0);
                assert_int_equal(begin, end);
                assert_int_equal(size, i < made ? sizes[i] : 0);
                end += size;
                if (i >= made)
                    continue;
                assert_int_equal(dp_cut_window(DP_CUT_CHUNK, extent, made, i, &begin, &size), 0);
                assert_int_equal(begin + size, end);
                assert_int_equal(size, sizes[i]);
            }
            assert_int_equal(end, extent);
        }
}

CASE(the_largest_extent_does_not_overflow)
{
    int64_t sizes[3], begin, size;
    int32_t made;

    assert_int_equal(dp_cut_window(DP_CUT_TENSOR_SPLIT, INT64_MAX, 3, 2, &begin, &size), 0);
    assert_true(begin + size == INT64_MAX);
    assert_int_equal(dp_cut_window(DP_CUT_CHUNK, INT64_MAX, 2, 1, &begin, &size), 0);
    assert_true(begin + size == INT64_MAX && begin == INT64_MAX / 2 + 1);
    assert_int_equal(dp_cut_sizes(DP_CUT_CHUNK, INT64_MAX, 2, sizes, &made), 0);
    assert_int_equal(made, 2);
    assert_true(sizes[0] == INT64_MAX / 2 + 1 && sizes[1] == INT64_MAX / 2);
}

CASE(nothing_cut_by_the_chunk_rule_is_as_many_nothings)
{
    int64_t sizes[3] = {7, 7, 7};
    int32_t made = 0;

    assert_int_equal(dp_cut_sizes(DP_CUT_CHUNK, 0, 3, sizes, &made), 0);
    assert_int_equal(made, 3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(sizes[i], 0);
}

static void expect_refused(int err, const char *sentence)
{
    assert_int_equal(err, DP_EINVAL);
    assert_string_equal(dp_last_error(), sentence);
}

CASE(bad_numbers_are_named)
{
    int64_t sizes[1], begin, size;
    int32_t made;

    expect_refused(dp_cut_sizes(DP_CUT_TENSOR_SPLIT, -1, 1, sizes, &made),
                   "extent: -1, expected 0 or more");
    expect_refused(dp_cut_sizes(DP_CUT_TENSOR_SPLIT, 4, 0, sizes, &made),
                   "number of pieces: 0, expected at least 1");
    expect_refused(dp_cut_sizes(DP_CUT_CHUNK, -7, 1, sizes, &made), "extent: -7, expected 0 or more");
    expect_refused(dp_cut_sizes(DP_CUT_CHUNK, 4, -2, sizes, &made),
                   "number of pieces: -2, expected at least 1");
    expect_refused(dp_cut_window(DP_CUT_TENSOR_SPLIT, 4, 0, 0, &begin, &size),
                   "number of pieces: 0, expected at least 1");
    expect_refused(dp_cut_window(DP_CUT_TENSOR_SPLIT, 4, 2, 2, &begin, &size),
                   "piece: 2, expected 0 to 1");
    expect_refused(dp_cut_window(DP_CUT_CHUNK, 4, 2, 2, &begin, &size),
                   "piece: 2, expected 0 to 1");
    expect_refused(dp_cut_window(DP_CUT_TENSOR_SPLIT, 4, 2, -1, &begin, &size),
                   "piece: -1, expected 0 to 1");
}
