/* SPDX-License-Identifier: Apache-2.0 */
#include "schedule/op_list.h"

#include <stdlib.h>
#include <string.h>

bool dp_op_list_grow(struct dp_op_list *list, size_t more)
{
    if (list->failed)
        return false;

    size_t capacity = 2 * list->capacity + more + 64;
    struct dp_op *ops = realloc(list->borrowed ? NULL : list->ops, capacity * sizeof(*ops));
    if (!ops) {
        list->failed = true;
        return false;
    }
    if (list->borrowed)
        memcpy(ops, list->ops, list->count * sizeof(*ops));
    list->borrowed = false;
    list->ops = ops;
    list->capacity = capacity;
    return true;
}

void dp_op_list_append(struct dp_op_list *list, const struct dp_op *ops, size_t count)
{
    if (!count || !dp_op_list_reserve(list, count))
        return;
    memcpy(list->ops + list->count, ops, count * sizeof(*ops));
    list->count += count;
}

void dp_op_list_fini(struct dp_op_list *list)
{
    if (!list->borrowed)
        free(list->ops);
    *list = (struct dp_op_list){0};
}
