/* SPDX-License-Identifier: Apache-2.0
 *
 * microbatch_sizes.c - how batches are cut into micro-batches.
 */
#include "golden_check/golden.h"

#include <dualpipe/microbatch.h>

#include <string.h>

static bool is_chunk_sizes(const json_t *value)
{
    static const char *const names[] = {"size", "chunks", "tensor_split_sizes", "chunk_sizes"};
    const json_t *columns = json_object_get(value, "columns");
    bool same = json_array_size(columns) == 4 && json_is_array(json_object_get(value, "rows"));

    for (size_t i = 0; i < 4 && same; i++) {
        const char *name = json_string_value(json_array_get(columns, i));
        same = name && !strcmp(name, names[i]);
    }
    return same;
}

static bool same_sizes(const json_t *list, const int64_t *sizes, int32_t count)
{
    bool same = json_is_array(list) && (int32_t)json_array_size(list) == count;

    for (int32_t i = 0; i < count && same; i++) {
        const json_t *size = json_array_get(list, (size_t)i);
        same = json_is_integer(size) && json_integer_value(size) == sizes[i];
    }
    return same;
}

static bool row_is_right(const json_t *row)
{
    static int64_t sizes[DP_MAX_MICROBATCHES];
    int64_t extent = json_integer_value(json_array_get(row, 0));
    int32_t count = (int32_t)json_integer_value(json_array_get(row, 1)), made;

    return !dp_cut_sizes(DP_CUT_TENSOR_SPLIT, extent, count, sizes, &made) &&
           same_sizes(json_array_get(row, 2), sizes, count) &&
           !dp_cut_sizes(DP_CUT_CHUNK, extent, count, sizes, &made) &&
           same_sizes(json_array_get(row, 3), sizes, made);
}

static bool row_is_sound(const json_t *row)
{
    const json_t *size = json_array_get(row, 0), *chunks = json_array_get(row, 1);

    return json_array_size(row) == 4 && json_is_integer(size) && json_is_integer(chunks) &&
           json_integer_value(size) >= 0 && json_integer_value(chunks) >= 1 &&
           json_integer_value(chunks) <= DP_MAX_MICROBATCHES;
}

static bool check_row(struct golden *g, size_t i, const json_t *row)
{
    if (!row_is_sound(row))
        return FAIL(g, "row %zu is not size, chunks and two lists", i);
    return row_is_right(row) ||
           FAIL(g, "row %zu: %lld rows in %lld chunks are cut otherwise by us", i,
                (long long)json_integer_value(json_array_get(row, 0)),
                (long long)json_integer_value(json_array_get(row, 1)));
}

static bool check_chunk_sizes(struct golden *g)
{
    const json_t *rows = json_object_get(g->value, "rows");

    if (!json_array_size(rows))
        return FAIL(g, "no rows");
    return golden_each(g, rows, check_row) &&
           PASS(g, "both rules, all %zu rows", json_array_size(rows));
}

const struct golden_kind golden_microbatch_sizes = {is_chunk_sizes, check_chunk_sizes};
