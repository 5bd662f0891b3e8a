/* SPDX-License-Identifier: Apache-2.0
 *
 * remote.c - tensors go between rank 0 and the last stage as bytes: how many, then each of them.
 *
 *      int32 count (-1: one that is no list) | struct wire_tensor, its elements | ...
 */
#include <dualpipe/asyncpipe.h>

#include "base/fail.h"
#include "microbatch/tree.h"
#include "pipeline/base.h"
#include "schedule/internal.h"

#include <stdlib.h>
#include <string.h>

enum { ALONE = -1 };

struct wire_tensor {
    DLDataType dtype;
    int32_t ndim; /* -1: absent */
    int64_t shape[DP_MAX_DIMS];
};

static bool is_list(const struct dp_tree *t)
{
    return t->kind == DP_TREE_TUPLE || t->kind == DP_TREE_LIST || t->kind == DP_TREE_DICT;
}

/* ---- to bytes ---------------------------------------------------------------------------------- */

typedef int put_fn(void *to, const void *bytes, size_t len);

static int put_tensor(put_fn *put, void *to, const struct dp_tree *leaf)
{
    const DLTensor *t = leaf->tensor;
    struct wire_tensor head = {.ndim = -1};
    int err;

    if (leaf->kind == DP_TREE_ABSENT)
        return put(to, &head, sizeof(head));
    if (leaf->kind != DP_TREE_TENSOR || dp_tensor_fault(t) || t->ndim > DP_MAX_DIMS ||
        !dp_tensor_on_host(t) || !dp_tensor_compact(t))
        return dp_fail(DP_EINVAL, "a remote pipeline: expected compact tensors of at most %d "
                                  "dimensions in memory that the CPU reaches",
                       DP_MAX_DIMS);
    head.dtype = t->dtype;
    head.ndim = t->ndim;
    for (int i = 0; i < t->ndim; i++)
        head.shape[i] = t->shape[i];
    err = put(to, &head, sizeof(head));
    return err ? err : put(to, dp_tensor_address(t), dp_tensor_bytes(t));
}

static int put_leaves(put_fn *put, void *to, const struct dp_tree *tree)
{
    int err = 0;

    if (!is_list(tree))
        return put_tensor(put, to, tree);
    for (int32_t i = 0; i < tree->count && !err; i++)
        err = put_leaves(put, to, &tree->items[i]);
    return err;
}

static int put_tree(put_fn *put, void *to, const struct dp_tree *tree)
{
    const int32_t count = is_list(tree) ? dp_tree_leaves(tree) : ALONE;
    int err = put(to, &count, sizeof(count));

    return err ? err : put_leaves(put, to, tree);
}

static int put_reply(void *to, const void *bytes, size_t len)
{
    return dp_reply_put(to, bytes, len);
}

struct bytes {
    char *data;
    size_t len;
};

static int put_bytes(void *to, const void *bytes, size_t len)
{
    struct bytes *b = to;
    char *data = realloc(b->data, b->len + len + 1);

    if (!data)
        return dp_fail(DP_ENOMEM, "no memory for %zu bytes of gradients", b->len + len);
    if (len)
        memcpy(data + b->len, bytes, len);
    b->data = data;
    b->len += len;
    return 0;
}

/* ---- from bytes -------------------------------------------------------------------------------- */

struct reader {
    const char *at;
    size_t left;
};

static int take(struct reader *r, void *to, size_t len)
{
    if (len > r->left)
        return dp_fail(DP_EMISMATCH, "a remote pipeline: %zu bytes of tensors, expected %zu more",
                       r->left, len - r->left);
    if (len)
        memcpy(to, r->at, len);
    r->at += len;
    r->left -= len;
    return 0;
}

static int take_tensor(struct reader *r, struct dp_arena *arena, struct dp_tree *out)
{
    struct wire_tensor head;
    int err = take(r, &head, sizeof(head));

    *out = dp_absent();
    if (err || head.ndim < 0)
        return err;
    DLTensor wanted = {.data = "", .ndim = head.ndim, .dtype = head.dtype, .shape = head.shape};
    if (head.ndim > DP_MAX_DIMS || dp_tensor_fault(&wanted) || dp_tensor_bytes(&wanted) > r->left)
        return dp_fail(DP_EMISMATCH, "a remote pipeline: bytes that are no tensor");
    DLTensor *t = dp_tensor_new(arena, head.dtype, head.ndim, head.shape);
    if (!t)
        return dp_fail(DP_ENOMEM, "no memory for a tensor of %zu bytes", dp_tensor_bytes(&wanted));
    *out = dp_tensor(t);
    return take(r, t->data, dp_tensor_bytes(t));
}

static int take_tree(const void *data, size_t len, struct dp_tree **out)
{
    struct reader r = {data, len};
    struct dp_arena *arena;
    int32_t count = 0;
    int err = take(&r, &count, sizeof(count));

    if (err)
        return err;
    const int32_t leaves = count == ALONE ? 1 : count;
    if (leaves < 0 || leaves > DP_TREE_MAX_NODES)
        return dp_fail(DP_EMISMATCH, "a remote pipeline: %d tensors", leaves);
    struct dp_tree *root = dp_arena_object_new(sizeof(*root), &arena);
    struct dp_tree *items =
        root ? dp_arena_array(arena, (size_t)leaves + 1, sizeof(*items)) : NULL;
    if (!items)
        err = dp_fail(DP_ENOMEM, "no memory for %d tensors", leaves);
    for (int32_t i = 0; i < leaves && !err; i++)
        err = take_tensor(&r, arena, &items[i]);
    if (err) {
        dp_tree_free(root);
        return err;
    }
    *root = count == ALONE ? items[0] : dp_tuple(count, items);
    *out = root;
    return 0;
}

/* ---- on every rank ----------------------------------------------------------------------------- */

static int forward(void *user, const void *arg, size_t len, struct dp_reply *reply)
{
    struct dp_remote *remote = user;
    struct reader r = {arg, len};
    int err = take(&r, &remote->batch.rows, sizeof(remote->batch.rows));

    if (err)
        return err;
    const bool last = dp_base_of(remote->pipe)->last_slot >= 0;
    remote->batch.outputs = last ? &remote->outputs : NULL;
    err = dp_pipeline_forward_batch(remote->pipe, &remote->batch);
    if (!err && last)
        err = put_tree(put_reply, reply, remote->outputs);
    dp_tree_free(remote->outputs);
    remote->outputs = NULL;
    return err;
}

static int backward(void *user, const void *arg, size_t len, struct dp_reply *reply)
{
    struct dp_remote *remote = user;
    struct dp_tree *grads = NULL;
    int err = 0;

    (void)reply;
    if (len && dp_base_of(remote->pipe)->last_slot >= 0)
        err = take_tree(arg, len, &grads);
    remote->batch.output_grads = grads;
    if (!err)
        err = dp_pipeline_backward_batch(remote->pipe, &remote->batch);
    remote->batch.output_grads = NULL;
    dp_tree_free(grads);
    return err;
}

static const char forward_name[] = "dp.forward", backward_name[] = "dp.backward";

void dp_remote_functions(struct dp_remote *remote,
                         struct dp_worker_function functions[DP_REMOTE_FUNCTIONS])
{
    functions[0] = (struct dp_worker_function){forward_name, forward, remote};
    functions[1] = (struct dp_worker_function){backward_name, backward, remote};
}

/* ---- on rank 0 ------------------------------------------------------------------------------- */

static int take_answer(const struct dp_remote *remote, const struct dp_answer *answers,
                       struct dp_tree **out)
{
    const int ranks = dp_base_of(remote->pipe)->config.schedule->ranks;

    for (int rank = 0; rank < ranks; rank++)
        if (answers[rank].len)
            return take_tree(answers[rank].data, answers[rank].len, out);
    return dp_fail(DP_EMISMATCH, "a remote pipeline: no rank answered with outputs");
}

int dp_remote_forward(struct dp_controller *c, struct dp_remote *remote, int64_t deadline_ns,
                      struct dp_tree **outputs)
{
    const struct dp_schedule *s = dp_base_of(remote->pipe)->config.schedule;
    struct dp_answer *answers;

    if (s->streams > 1)
        return dp_fail(DP_EUNSUPPORTED, "a remote pipeline: schedule '%s', expected one stream",
                       dp_schedule_kind_name(s->kind));
    answers = calloc((size_t)s->ranks, sizeof(*answers));
    if (!answers)
        return dp_fail(DP_ENOMEM, "no memory for %d answers", s->ranks);
    /* A copy: this rank writes its own while this one is still on its way to the others. */
    const int64_t rows = remote->batch.rows;
    int err = dp_controller_foreach(c, forward_name, &rows, sizeof(rows), true, deadline_ns, answers);
    if (!err)
        err = take_answer(remote, answers, outputs);
    free(answers);
    return err;
}

int dp_remote_backward(struct dp_controller *c, struct dp_remote *remote,
                       const struct dp_tree *output_grads, int64_t deadline_ns)
{
    struct bytes grads = {0};
    int err = 0;

    (void)remote;
    if (output_grads && !is_list(output_grads))
        return dp_fail(DP_EINVAL, "output_grads: expected a tuple or list");
    if (output_grads)
        err = put_tree(put_bytes, &grads, output_grads);
    if (!err)
        err = dp_controller_foreach(c, backward_name, grads.data, grads.len, true, deadline_ns,
                                    NULL);
    free(grads.data);
    return err;
}
