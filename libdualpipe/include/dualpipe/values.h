/* SPDX-License-Identifier: Apache-2.0
 *
 * values.h - what stages hand each other besides a flat list of tensors: trees, and values that are
 * no tensors.
 *
 *      border     x float32 [4, 8], mask bool [4], note: a value of up to 100 bytes
 *      stage      struct dp_tree nodes[3], tree;
 *                 dp_tree_of(form, in, 3, nodes, 3, &tree);      form: (x, {mask: *, note: *})
 *                 ... tree.items[1].items[0].tensor is the mask ...
 *                 dp_value_get(&in[2], &bytes, &len);
 *
 * Nothing here allocates; all of it may be called in the callbacks of a stage, by any thread.
 */
#ifndef DUALPIPE_VALUES_H
#define DUALPIPE_VALUES_H

#include <dualpipe/stage.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- booleans ----------------------------------------------------------------------------------
 */

/* A boolean of one byte, as DLPack 0.8 and later have it (kDLBool). */
static inline DLDataType dp_bool_type(void)
{
    DLDataType type = {6, 8, 1};
    return type;
}

/* ---- values that are no tensors ----------------------------------------------------------------
 */

/* A tensor of a border that brings such a value: its bytes, `most` at most, or nothing at all. It
 * is sent in full length, and carries no gradient. What the bytes mean is the stages' business; a
 * pointer means nothing to a stage on another rank. */
DP_PUBLIC struct dp_tensor_spec dp_value_spec(size_t most);

/* Write bytes[len] to a tensor of that spec, or, with bytes NULL, that there is none. DP_EINVAL: a
 * tensor of another spec, or too many bytes; DP_EUNSUPPORTED: memory that the CPU does not reach. */
DP_PUBLIC int dp_value_put(const DLTensor *to, const void *bytes, size_t len);
/* What was put: *bytes points into the tensor, and is NULL where there is no value. Errors as above;
 * DP_EMISMATCH: it was never put. */
DP_PUBLIC int dp_value_get(const DLTensor *from, const void **bytes, size_t *len);

/* ---- trees --------------------------------------------------------------------------------------
 */

/* tensors[count] in the tree that `form` describes: each of its leaves stands for the next tensor,
 * but for those that are absent, which stay so. A form may be text: dp_spec_parse("(*, {a: *})").
 * nodes[room] takes all nodes but the root, *out; the tree refers to them, to the tensors and to
 * the form's names. Filling the tensors of `out` through it is filling the outputs. DP_EINVAL:
 * another number of leaves than tensors, too few nodes, a form that breaks the rules for trees. */
DP_PUBLIC int dp_tree_of(const struct dp_tree *form, const DLTensor *tensors, int32_t count,
                         struct dp_tree *nodes, int32_t room, struct dp_tree *out);

#ifdef __cplusplus
}
#endif
#endif
