/* SPDX-License-Identifier: Apache-2.0
 *
 * copy.c - elements from one strided tensor to another: runs by memcpy, the rest element by
 * element, transpositions in tiles that stay in the cache.
 */
#include "microbatch/internal.h"
#include "microbatch/tree.h"

#include "base/fail.h"

#include <stdlib.h>
#include <string.h>

/* A tile: as many rows as there are elements in a cache line of src, and so many columns. */
enum { LINE = 64, COLUMNS = 32, LARGEST = 16 };

static inline int64_t min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Each of these is compiled anew for every `bytes` that copy_elements names, so that a memcpy is
 * one load and one store. */
#define FOR_EACH_SIZE static inline __attribute__((always_inline))

FOR_EACH_SIZE void copy_run(char *dst, int64_t dst_step, const char *src, int64_t src_step,
                            int64_t n, size_t bytes)
{
    for (int64_t i = 0; i < n; i++)
        memcpy(dst + i * dst_step, src + i * src_step, bytes);
}

FOR_EACH_SIZE void copy_rows(const struct dp_walk *w, size_t bytes)
{
    for (int64_t r = 0; r < w->rows; r++)
        copy_run(w->a + r * w->a_row, w->a_column, w->b + r * w->b_row, w->b_column, w->columns,
                 bytes);
}

/* Through a buffer: src is read line by line and dst written run by run. Without it, lines a power
 * of two apart would push each other out of the cache before they are used up. */
FOR_EACH_SIZE void copy_tile(const struct dp_walk *w, int64_t row, int64_t column, size_t bytes)
{
    int64_t rows = min(LINE / (int64_t)bytes, w->rows - row);
    int64_t columns = min(COLUMNS, w->columns - column);
    int64_t step = (int64_t)bytes, pitch = COLUMNS * step;
    char tile[LINE * COLUMNS];

    for (int64_t c = 0; c < columns; c++)
        copy_run(tile + c * step, pitch, w->b + row * w->b_row + (column + c) * w->b_column,
                 w->b_row, rows, bytes);
    for (int64_t r = 0; r < rows; r++) {
        char *dst = w->a + (row + r) * w->a_row + column * w->a_column;
        if (w->a_column == step)
            memcpy(dst, tile + r * pitch, (size_t)(columns * step));
        else
            copy_run(dst, w->a_column, tile + r * pitch, step, columns, bytes);
    }
}

FOR_EACH_SIZE void copy_tiles(const struct dp_walk *w, size_t bytes)
{
    if (bytes > LARGEST || llabs(w->b_row) >= llabs(w->b_column)) {
        copy_rows(w, bytes);
        return;
    }
    for (int64_t r = 0; r < w->rows; r += LINE / (int64_t)bytes)
        for (int64_t c = 0; c < w->columns; c += COLUMNS)
            copy_tile(w, r, c, bytes);
}

static void copy_elements(const struct dp_walk *w)
{
    switch (w->bytes) {
    case 1:
        copy_tiles(w, 1);
        break;
    case 2:
        copy_tiles(w, 2);
        break;
    case 4:
        copy_tiles(w, 4);
        break;
    case 8:
        copy_tiles(w, 8);
        break;
    case 16:
        copy_tiles(w, 16);
        break;
    default:
        copy_tiles(w, w->bytes);
    }
}

static void copy_plane(const struct dp_walk *w)
{
    int64_t bytes = (int64_t)w->bytes, run = w->columns * bytes;

    if (w->columns > 1 && (w->a_column != bytes || w->b_column != bytes)) {
        copy_elements(w);
    } else if (run <= 16) {
        /* Short runs are long elements: no call for each. */
        struct dp_walk wide = {.a = w->a, .b = w->b, .rows = 1, .columns = w->rows,
                               .a_column = w->a_row, .b_column = w->b_row, .bytes = (size_t)run};
        copy_elements(&wide);
    } else {
        for (int64_t r = 0; r < w->rows; r++)
            memcpy(w->a + r * w->a_row, w->b + r * w->b_row, (size_t)run);
    }
}

void dp_tensor_copy_elements(const DLTensor *dst, const DLTensor *src)
{
    struct dp_walk w;

    for (bool more = dp_walk_begin(&w, dst, src); more; more = dp_walk_next(&w))
        copy_plane(&w);
}

static bool same_plane(const struct dp_walk *w)
{
    bool run = w->columns == 1 ||
               (w->a_column == (int64_t)w->bytes && w->b_column == (int64_t)w->bytes);

    for (int64_t r = 0; r < w->rows; r++) {
        const char *a = w->a + r * w->a_row, *b = w->b + r * w->b_row;
        if (run && memcmp(a, b, (size_t)w->columns * w->bytes))
            return false;
        for (int64_t c = 0; !run && c < w->columns; c++)
            if (memcmp(a + c * w->a_column, b + c * w->b_column, w->bytes))
                return false;
    }
    return true;
}

bool dp_tensor_same_elements(const DLTensor *a, const DLTensor *b)
{
    struct dp_walk w;

    for (bool more = dp_walk_begin(&w, a, b); more; more = dp_walk_next(&w))
        if (!same_plane(&w))
            return false;
    return true;
}

int dp_tensor_copy(const DLTensor *dst, const DLTensor *src)
{
    char to[DP_TENSOR_TEXT], from[DP_TENSOR_TEXT];
    const char *dst_fault = dst ? dp_tensor_fault(dst) : "is NULL";
    const char *src_fault = src ? dp_tensor_fault(src) : "is NULL";

    if (dst_fault || src_fault)
        return dp_fail(DP_EINVAL, "the tensor to copy %s %s", dst_fault ? "to" : "from",
                       dst_fault ? dst_fault : src_fault);
    if (!dp_tensor_same_dtype(dst, src) || !dp_tensor_same_shape(dst, src))
        return dp_fail(DP_EMISMATCH, "copy of %s to %s, expected the same dtype and shape",
                       dp_tensor_text(src, from), dp_tensor_text(dst, to));
    if (!dp_tensor_element_bytes(src))
        return dp_fail(DP_EUNSUPPORTED, "copy of %s, expected elements of whole bytes",
                       dp_tensor_text(src, from));
    if (!dp_tensor_on_host(dst) || !dp_tensor_on_host(src))
        return dp_fail(DP_EUNSUPPORTED,
                       "copy from device type %d to %d, expected memory that the CPU reaches",
                       (int)src->device.device_type, (int)dst->device.device_type);
    dp_tensor_copy_elements(dst, src);
    return 0;
}
