/* SPDX-License-Identifier: Apache-2.0 */
#include "cmocka_all.h"
#include "microbatch/internal.h"

#include "microbatch/tree.h"

static DLTensor bytes_tensor(void *data, int ndim, int64_t *shape, int64_t *strides, int bytes)
{
    return (DLTensor){data, {kDLCPU, 0}, ndim, {kDLUInt, 8, (uint16_t)bytes}, shape, strides, 0};
}

static void expect_refused(int err, int expected, const char *sentence)
{
    assert_int_equal(err, expected);
    assert_string_equal(dp_last_error(), sentence);
}

/* ---- windows -------------------------------------------------------------------------------- */

CASE(a_window_is_the_same_memory)
{
    uint8_t data[24];
    int64_t shape[] = {4, 6}, dims[4];
    DLTensor t = bytes_tensor(data, 2, shape, NULL, 1), w;

    assert_int_equal(dp_tensor_window(&t, 0, 1, 2, dims, &w), 0);
    assert_ptr_equal(w.data, data + 6);
    assert_int_equal(w.shape[0], 2);
    assert_null(w.strides);
    assert_int_equal(dp_tensor_window(&t, -1, 5, 1, dims, &w), 0);
    assert_ptr_equal(w.data, data + 5);
    assert_int_equal(w.strides[0], 6);
    assert_int_equal(dp_tensor_window(&t, 0, 4, 0, dims, &w), 0);
    assert_int_equal(w.shape[0], 0);
}

CASE(a_window_of_unaligned_and_reversed_memory_is_where_it_should_be)
{
    uint8_t data[40];
    int64_t shape[] = {4, 2}, strides[] = {-2, 1}, dims[4];
    DLTensor t = bytes_tensor(data, 2, shape, strides, 4), w;

    t.byte_offset = 7 + 3 * 2 * 4;
    assert_int_equal(dp_tensor_window(&t, 0, 3, 1, dims, &w), 0);
    assert_ptr_equal(dp_tensor_address(&w), data + 7);
}

CASE(bad_windows_are_refused)
{
    uint8_t data[8];
    int64_t shape[] = {4, 2}, dims[4];
    DLTensor t = bytes_tensor(data, 2, shape, NULL, 1), w;

    expect_refused(dp_tensor_window(NULL, 0, 0, 0, dims, &w), DP_EINVAL, "the tensor is NULL");
    expect_refused(dp_tensor_window(&t, 2, 0, 1, dims, &w), DP_EINVAL,
                   "dim: 2, of a tensor with 2 dimensions");
    expect_refused(dp_tensor_window(&t, -3, 0, 1, dims, &w), DP_EINVAL,
                   "dim: -3, of a tensor with 2 dimensions");
    expect_refused(dp_tensor_window(&t, 0, 3, 2, dims, &w), DP_EINVAL,
                   "window: 2 rows from 3 on, of a tensor with 4");
    expect_refused(dp_tensor_window(&t, 0, -1, 2, dims, &w), DP_EINVAL,
                   "window: 2 rows from -1 on, of a tensor with 4");
    t.dtype.bits = 1;
    expect_refused(dp_tensor_window(&t, 0, 0, 1, dims, &w), DP_EUNSUPPORTED,
                   "elements of 1 bits, expected whole bytes");
    t.ndim = 65;
    expect_refused(dp_tensor_window(&t, 0, 0, 1, dims, &w), DP_EINVAL,
                   "the tensor has a number of dimensions outside 0 to 64");
    t.ndim = 2;
    t.shape = NULL;
    expect_refused(dp_tensor_window(&t, 0, 0, 1, dims, &w), DP_EINVAL, "the tensor has no shape");
}

/* ---- copies --------------------------------------------------------------------------------- */

enum { NDIM = 4, ROOM = 1 << 16 };

static uint32_t seed;

static int below(int n)
{
    seed = seed * 1664525 + 1013904223;
    return (int)((seed >> 16) % (uint32_t)n);
}

/* Strides of a dense tensor with its dimensions in any order in memory, and any of them reversed or
 * spread; *first is the element that its first index has. */
static void random_strides(const int64_t *shape, int64_t *strides, int64_t *first)
{
    int order[NDIM] = {0, 1, 2, 3};
    int64_t step = 1;

    for (int i = NDIM - 1; i > 0; i--) {
        int j = below(i + 1), o = order[i];
        order[i] = order[j];
        order[j] = o;
    }
    *first = 0;
    for (int i = 0; i < NDIM; i++) {
        int d = order[i];
        step *= below(4) ? 1 : 2;
        strides[d] = step;
        if (below(4) == 0) {
            strides[d] = -step;
            *first += step * (shape[d] - 1);
        }
        step *= shape[d];
    }
}

static uint8_t *element(const DLTensor *t, const int64_t *at)
{
    int64_t offset = 0;

    for (int i = 0; i < NDIM; i++)
        offset += at[i] * t->strides[i];
    return (uint8_t *)dp_tensor_address(t) + offset * (int64_t)dp_tensor_element_bytes(t);
}

static bool next_index(const int64_t *shape, int64_t *at)
{
    for (int i = NDIM - 1; i >= 0; at[i--] = 0)
        if (++at[i] < shape[i])
            return true;
    return false;
}

static void copy_random(uint8_t *from, uint8_t *to)
{
    static const int sizes[] = {1, 2, 3, 4, 8, 12, 16};
    int64_t shape[NDIM], from_strides[NDIM], to_strides[NDIM], from_first, to_first;
    int64_t at[NDIM] = {0}, limit = below(8) ? 6 : 40;
    int bytes = sizes[below(7)], count = 0;

    for (int i = 0; i < NDIM; i++)
        shape[i] = 1 + below(i % 2 ? (int)limit : 3);
    random_strides(shape, from_strides, &from_first);
    random_strides(shape, to_strides, &to_first);
    DLTensor src = bytes_tensor(from + from_first * bytes + 1, NDIM, shape, from_strides, bytes);
    DLTensor dst = bytes_tensor(to, NDIM, shape, to_strides, bytes);
    dst.byte_offset = (uint64_t)(to_first * bytes + 3);

    memset(to, 0xee, ROOM * 16);
    assert_int_equal(dp_tensor_copy(&dst, &src), 0);
    assert_true(dp_tensor_same_elements(&dst, &src));
    do {
        assert_memory_equal(element(&dst, at), element(&src, at), (size_t)bytes);
        memset(element(&dst, at), 0xee, (size_t)bytes);
        count++;
    } while (next_index(shape, at));
    assert_int_equal(count, dp_tensor_numel(&dst));
    for (size_t i = 0; i < ROOM * 16; i++)
        if (to[i] != 0xee)
            fail_msg("byte %zu was written", i);
}

CASE(copies_between_any_strides_move_every_element_and_nothing_else)
{
    uint8_t *from = malloc(ROOM * 16), *to = malloc(ROOM * 16);

    seed = 20240229;
    for (size_t i = 0; i < ROOM * 16; i++)
        from[i] = (uint8_t)below(256);
    for (int i = 0; i < 300; i++)
        copy_random(from, to);
    free(from);
    free(to);
}

CASE(differences_are_found_in_any_element)
{
    uint8_t a[60], b[60];
    int64_t shape[] = {3, 4, 5}, transposed[] = {1, 3, 12}, compact[] = {20, 5, 1};

    for (int view = 0; view < 2; view++)
        for (int i = 0; i < 60; i++) {
            DLTensor x = bytes_tensor(a, 3, shape, view ? transposed : compact, 1);
            DLTensor y = bytes_tensor(b, 3, shape, NULL, 1);
            memset(a, 0, sizeof(a));
            memset(b, 0, sizeof(b));
            assert_true(dp_tensor_same_elements(&x, &y));
            b[i] = 1;
            assert_false(dp_tensor_same_elements(&x, &y));
        }
}

CASE(bad_copies_are_refused)
{
    uint8_t data[16];
    int64_t shape[] = {4, 2}, other[] = {2, 4};
    DLTensor t = bytes_tensor(data, 2, shape, NULL, 1);
    DLTensor u = bytes_tensor(data + 8, 2, other, NULL, 1);

    expect_refused(dp_tensor_copy(&t, NULL), DP_EINVAL, "the tensor to copy from is NULL");
    expect_refused(dp_tensor_copy(NULL, &t), DP_EINVAL, "the tensor to copy to is NULL");
    expect_refused(dp_tensor_copy(&t, &u), DP_EMISMATCH,
                   "copy of uint8[2, 4] to uint8[4, 2], expected the same dtype and shape");
    u = t;
    u.dtype.code = kDLInt;
    expect_refused(dp_tensor_copy(&t, &u), DP_EMISMATCH,
                   "copy of int8[4, 2] to uint8[4, 2], expected the same dtype and shape");
    u = t;
    u.device.device_type = kDLCUDA;
    expect_refused(dp_tensor_copy(&t, &u), DP_EUNSUPPORTED,
                   "copy from device type 2 to 1, expected memory that the CPU reaches");
    t.dtype.bits = 4;
    expect_refused(dp_tensor_copy(&t, &t), DP_EUNSUPPORTED,
                   "copy of uint4[4, 2], expected elements of whole bytes");
}

CASE(a_tensor_with_many_dimensions_is_described_briefly)
{
    uint8_t data[1];
    int64_t shape[64];
    char text[DP_TENSOR_TEXT];

    for (int i = 0; i < 64; i++)
        shape[i] = INT64_MAX;
    DLTensor t = bytes_tensor(data, 64, shape, NULL, 300);
    assert_int_equal(strlen(dp_tensor_text(&t, text)), DP_TENSOR_TEXT - 1);
    assert_int_equal(strncmp(text, "uint8x300[9223372036854775807, ", 31), 0);
    t.dtype = (DLDataType){200, 5, 1};
    t.ndim = 0;
    assert_string_equal(dp_tensor_text(&t, text), "type200-5[]");
}
