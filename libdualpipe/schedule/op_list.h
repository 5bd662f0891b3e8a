/* SPDX-License-Identifier: Apache-2.0
 *
 * op_list.h - a list of ops that grows. Zeroed memory is an empty one. A failed allocation is
 * remembered: a builder writes without looking, and its caller asks once, at the end.
 */
#ifndef DP_SCHEDULE_OP_LIST_H
#define DP_SCHEDULE_OP_LIST_H

#include <dualpipe/schedule.h>

struct dp_op_list {
    struct dp_op *ops;
    size_t count, capacity;
    bool borrowed; /* ops is not the list's own: grow elsewhere, do not free */
    bool failed;
};

bool dp_op_list_grow(struct dp_op_list *list, size_t more);
void dp_op_list_append(struct dp_op_list *list, const struct dp_op *ops, size_t count);
void dp_op_list_fini(struct dp_op_list *list);

/* Make room for `more` ops, so that as many dp_op_list_put may follow. False: no memory. */
static inline bool dp_op_list_reserve(struct dp_op_list *list, size_t more)
{
    return (more <= list->capacity - list->count && !list->failed) || dp_op_list_grow(list, more);
}

/* Write into room that was reserved. */
static inline void dp_op_list_put(struct dp_op_list *list, struct dp_op op)
{
    list->ops[list->count++] = op;
}

static inline void dp_op_list_add(struct dp_op_list *list, struct dp_op op)
{
    if (dp_op_list_reserve(list, 1))
        dp_op_list_put(list, op);
}

#endif
