/* SPDX-License-Identifier: Apache-2.0
 *
 * block_mask.c - the samples of one micro-batch of a mask of attention: its tables are cut, and its
 * function goes on counting samples as in the whole batch.
 */
#include "microbatch/block_mask.h"

#include "microbatch/tensor.h"

#include <string.h>

enum { TABLES = 4 };

static const DLTensor *table_of(const struct dp_block_mask *mask, int i)
{
    const DLTensor *const tables[TABLES] = {mask->kv_num_blocks, mask->kv_indices,
                                            mask->full_kv_num_blocks, mask->full_kv_indices};
    return tables[i];
}

const char *dp_block_mask_fault(const struct dp_block_mask *mask)
{
    if (!mask)
        return "is NULL, expected a struct dp_block_mask";
    if (!mask->kv_num_blocks || !mask->kv_indices)
        return "has no kv_num_blocks or no kv_indices";
    if (!mask->full_kv_num_blocks != !mask->full_kv_indices)
        return "has one of full_kv_num_blocks and full_kv_indices, expected both or none";
    for (int i = 0; i < TABLES; i++) {
        const DLTensor *t = table_of(mask, i);
        if (!t)
            continue;
        if (dp_tensor_fault(t))
            return dp_tensor_fault(t);
        if (!t->ndim || !dp_tensor_element_bytes(t))
            return "has a table without dimensions, or of elements that are not whole bytes";
        if (t->shape[0] != mask->kv_num_blocks->shape[0])
            return "has tables of different numbers of samples";
    }
    return NULL;
}

int64_t dp_block_mask_samples(const struct dp_block_mask *mask)
{
    return mask->kv_num_blocks->shape[0];
}

bool dp_block_mask_is_out_of_reach(const struct dp_block_mask *mask)
{
    bool out = false;

    for (int i = 0; i < TABLES && !out; i++) {
        const DLTensor *t = table_of(mask, i);
        out = t && !dp_tensor_on_host(t) && !dp_tensor_compact(t);
    }
    return out;
}

static bool window_of(struct dp_arena *arena, const DLTensor *t, int64_t begin, int64_t size,
                      bool pack, const DLTensor **out)
{
    if (!t)
        return true;
    DLTensor *view = dp_arena_array(arena, 1, sizeof(*view));
    int64_t *dims = dp_arena_array(arena, 2 * (size_t)t->ndim, sizeof(*dims));
    if (!view || !dims)
        return false;
    dp_tensor_view(t, 0, begin, size, dims, view);
    *out = view;
    if (!pack || dp_tensor_compact(view))
        return true;
    DLTensor *copy = dp_tensor_new(arena, view->dtype, view->ndim, view->shape);
    if (copy)
        dp_tensor_copy_elements(copy, view);
    *out = copy;
    return copy != NULL;
}

const struct dp_block_mask *dp_block_mask_window(struct dp_arena *arena,
                                                 const struct dp_block_mask *mask, int64_t begin,
                                                 int64_t size, bool pack)
{
    struct dp_block_mask *window = dp_arena_array(arena, 1, sizeof(*window));

    if (!window)
        return NULL;
    *window = *mask;
    window->first_sample = mask->first_sample + begin;
    bool made =
        window_of(arena, mask->kv_num_blocks, begin, size, pack, &window->kv_num_blocks) &&
        window_of(arena, mask->kv_indices, begin, size, pack, &window->kv_indices) &&
        window_of(arena, mask->full_kv_num_blocks, begin, size, pack,
                  &window->full_kv_num_blocks) &&
        window_of(arena, mask->full_kv_indices, begin, size, pack, &window->full_kv_indices);
    return made ? window : NULL;
}
