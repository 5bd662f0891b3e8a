/* SPDX-License-Identifier: Apache-2.0
 *
 * values.c - trees of the tensors that stages hand each other, and values that are no tensors.
 */
#include <dualpipe/asyncpipe.h>

#include "base/fail.h"
#include "base/tensor.h"

#include <string.h>

/* ---- values that are no tensors ----------------------------------------------------------------
 *
 *      0         8         16
 *      | known   | len     | bytes ...       len UINT64_MAX: there is none
 */
enum { HEADER = 16 };
static const uint64_t known = UINT64_C(0x65756c6176207064), none = UINT64_MAX;

struct dp_tensor_spec dp_value_spec(size_t most)
{
    return (struct dp_tensor_spec){.dtype = {kDLUInt, 8, 1},
                                   .ndim = 1,
                                   .shape = {(int64_t)most + HEADER},
                                   .no_grad = true};
}

static int check_value(const DLTensor *t)
{
    if (!t || dp_tensor_fault(t) || t->ndim != 1 || t->dtype.code != kDLUInt ||
        t->dtype.bits != 8 || t->dtype.lanes != 1 || t->shape[0] < HEADER || !dp_tensor_compact(t))
        return dp_fail(DP_EINVAL, "a value that is no tensor: expected a tensor of dp_value_spec");
    return dp_tensor_on_host(t)
               ? 0
               : dp_fail(DP_EUNSUPPORTED, "a value that is no tensor on device type %d, expected "
                                          "memory that the CPU reaches",
                         (int)t->device.device_type);
}

int dp_value_put(const DLTensor *to, const void *bytes, size_t len)
{
    const uint64_t head[] = {known, bytes ? len : none};
    int err = check_value(to);

    if (err)
        return err;
    const size_t room = (size_t)to->shape[0] - HEADER;
    if (bytes ? len > room : len > 0)
        return dp_fail(DP_EINVAL, "a value of %zu bytes%s, expected at most %zu", len,
                       bytes ? "" : " at NULL", bytes ? room : 0);
    char *data = dp_tensor_address(to);
    memcpy(data, head, HEADER);
    if (len)
        memcpy(data + HEADER, bytes, len);
    memset(data + HEADER + len, 0, room - len);
    return 0;
}

int dp_value_get(const DLTensor *from, const void **bytes, size_t *len)
{
    uint64_t head[2];
    int err = check_value(from);

    if (err)
        return err;
    const char *data = dp_tensor_address(from);
    memcpy(head, data, HEADER);
    if (head[0] != known || (head[1] != none && head[1] > (uint64_t)from->shape[0] - HEADER))
        return dp_fail(DP_EMISMATCH, "a value that is no tensor: expected what dp_value_put wrote");
    *bytes = head[1] == none ? NULL : data + HEADER;
    *len = head[1] == none ? 0 : (size_t)head[1];
    return 0;
}

/* ---- trees ----------------------------------------------------------------------------------- */

struct filling {
    const DLTensor *tensors;
    int32_t count, taken; /* tensors */
    struct dp_tree *nodes;
    int32_t room, used;
};

static int fill_node(struct filling *f, const struct dp_tree *form, int depth, struct dp_tree *out)
{
    const bool leaf = form->kind != DP_TREE_TUPLE && form->kind != DP_TREE_LIST &&
                      form->kind != DP_TREE_DICT;
    int err = 0;

    if (leaf && form->kind == DP_TREE_ABSENT) {
        *out = dp_absent();
        return 0;
    }
    if (leaf) {
        if (f->taken < f->count)
            *out = dp_tensor(&f->tensors[f->taken]);
        f->taken++;
        return 0;
    }
    if (depth == DP_TREE_MAX_DEPTH || form->count < 0 || (form->count && !form->items) ||
        (form->kind == DP_TREE_DICT && form->count && !form->names))
        return dp_fail(DP_EINVAL, "a form: a node of %d items at depth %d, expected at most %d "
                                  "levels and an array of items",
                       form->count, depth, DP_TREE_MAX_DEPTH);
    if (form->count > f->room - f->used)
        return dp_fail(DP_EINVAL, "a form: more than %d nodes below its root, as there is room for",
                       f->room);
    struct dp_tree *items = &f->nodes[f->used];
    f->used += form->count;
    for (int32_t i = 0; i < form->count && !err; i++)
        err = fill_node(f, &form->items[i], depth + 1, &items[i]);
    *out = dp_tree_node(form->kind, form->count, items, form->names);
    return err;
}

int dp_tree_of(const struct dp_tree *form, const DLTensor *tensors, int32_t count,
               struct dp_tree *nodes, int32_t room, struct dp_tree *out)
{
    struct filling f = {.tensors = tensors, .count = count, .nodes = nodes, .room = room};
    struct dp_tree root;

    if (!form || !out || count < 0 || (count && !tensors) || (room > 0 && !nodes))
        return dp_fail(DP_EINVAL, "a tree of %d tensors: expected a form, tensors and nodes",
                       count);
    int err = fill_node(&f, form, 0, &root);
    if (!err && f.taken != count)
        err = dp_fail(DP_EINVAL, "a form of %d leaves for %d tensors, expected as many", f.taken,
                      count);
    if (!err)
        *out = root;
    return err;
}
