/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients added up: those of a slot with its mirror's on another rank, and in fixed order the
 * second half of a slot's with the first. In pieces of bounded size, two of them under way.
 *
 *      piece      0            1            2
 *      messages   [0 both ways][1 both ways][2 ...
 *      sums                    [0 +=]       [1 +=]
 *
 * Both ranks compute own + other, which is the same to the last bit.
 */
#include "pipeline/steps.h"

#include "base/fail.h"
#include <dualpipe/comm.h>

enum { PIECE_BYTES = 256 << 10, WINDOW = 2 };

/* One piece of a slot's gradients. */
struct piece {
    const DLTensor *grad;
    size_t offset, len; /* bytes, in the tensor */
    uint32_t number;    /* of the piece, over all tensors */
    struct dp_request send, recv;
};

/* Walks the pieces of a list of tensors, in order. */
struct walk {
    DLTensor *const *grads;
    int32_t count, tensor;
    size_t offset;
    uint32_t number;
};

static bool next_piece(struct walk *walk, struct piece *piece)
{
    while (walk->tensor < walk->count) {
        const DLTensor *grad = walk->grads[walk->tensor];
        size_t left = dp_tensor_bytes(grad) - walk->offset;
        if (left) {
            *piece = (struct piece){.grad = grad,
                                    .offset = walk->offset,
                                    .len = left < PIECE_BYTES ? left : PIECE_BYTES,
                                    .number = walk->number++};
            walk->offset += piece->len;
            return true;
        }
        walk->tensor++;
        walk->offset = 0;
    }
    return false;
}

static char *own_bytes(const struct piece *piece)
{
    return (char *)piece->grad->data + piece->grad->byte_offset + piece->offset;
}

/* ---- sums ----------------------------------------------------------------------------------- */

/* In blocks of a length that compilers turn into vector instructions by themselves. */
enum { BLOCK = 16 };

static void add_floats(float *restrict to, const float *restrict from, size_t n)
{
    size_t i = 0;

    for (; i + BLOCK <= n; i += BLOCK)
        for (int k = 0; k < BLOCK; k++)
            to[i + (size_t)k] += from[i + (size_t)k];
    for (; i < n; i++)
        to[i] += from[i];
}

static void add_doubles(double *restrict to, const double *restrict from, size_t n)
{
    size_t i = 0;

    for (; i + BLOCK <= n; i += BLOCK)
        for (int k = 0; k < BLOCK; k++)
            to[i + (size_t)k] += from[i + (size_t)k];
    for (; i < n; i++)
        to[i] += from[i];
}

static void add_bytes(const struct piece *piece, void *to, const void *from)
{
    if (piece->grad->dtype.bits == 32)
        add_floats(to, from, piece->len / sizeof(float));
    else
        add_doubles(to, from, piece->len / sizeof(double));
}

/* ---- memory --------------------------------------------------------------------------------- */

/* Where a piece of the mirror's arrives; and, staged, where the own piece is while it is on the
 * host. */
static char *arrival(const struct dp_pipeline *pipe, const struct piece *piece)
{
    return pipe->reduce_memory + (size_t)(piece->number % WINDOW) * PIECE_BYTES;
}

static char *own_on_host(const struct dp_pipeline *pipe, const struct piece *piece)
{
    if (!pipe->staged)
        return own_bytes(piece);
    return pipe->reduce_memory + (size_t)(WINDOW + piece->number % WINDOW) * PIECE_BYTES;
}

size_t dp_reduce_memory_bytes(const struct dp_pipeline *pipe)
{
    return (size_t)PIECE_BYTES * WINDOW * (pipe->staged ? 2 : 1);
}

/* Copy to or from the device and wait for it: gradients are at rest by now. */
static int copy_now(struct dp_pipeline *pipe, void *dst, const void *src, size_t len)
{
    const struct dp_device_ops *device = pipe->device->ops;
    int err = device->copy(pipe->compute, dst, src, len);

    if (!err)
        err = device->event_record(pipe->done, pipe->compute);
    return err ? err : device->event_wait(pipe->done, pipe->deadline_ns);
}

static int fetch_own(struct dp_pipeline *pipe, const struct piece *piece)
{
    if (!pipe->staged)
        return 0;
    return copy_now(pipe, own_on_host(pipe, piece), own_bytes(piece), piece->len);
}

static int put_own(struct dp_pipeline *pipe, const struct piece *piece)
{
    if (!pipe->staged)
        return 0;
    return copy_now(pipe, own_bytes(piece), own_on_host(pipe, piece), piece->len);
}

/* ---- with the mirror ------------------------------------------------------------------------- */

static int start_piece(struct dp_pipeline *pipe, const struct dp_slot *slot, struct piece *piece)
{
    struct dp_comm *comm = pipe->config.comm;
    int peer = pipe->config.schedule->group_rank[slot->mirror];
    uint64_t tag = dp_messages_tag(pipe, DP_CHANNEL_REDUCE, slot->stage, piece->number & 0xFFFFF);

    int err = dp_comm_irecv(comm, peer, DP_CHANNEL_REDUCE, tag, arrival(pipe, piece), piece->len,
                            &piece->recv);
    if (!err)
        err = fetch_own(pipe, piece);
    if (!err)
        err = dp_comm_isend(comm, peer, DP_CHANNEL_REDUCE, tag, own_on_host(pipe, piece),
                            piece->len, &piece->send);
    return err;
}

static int finish_piece(struct dp_pipeline *pipe, const struct dp_slot *slot, struct piece *piece)
{
    int err = dp_messages_wait_request(pipe, &piece->recv, slot->mirror);

    if (!err)
        err = dp_messages_wait_request(pipe, &piece->send, slot->mirror);
    if (err)
        return err;
    add_bytes(piece, own_on_host(pipe, piece), arrival(pipe, piece));
    return put_own(pipe, piece);
}

int dp_reduce_run(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    const struct dp_slot *slot = dp_pipeline_slot(pipe, op->slot);
    const struct dp_stage *stage = &pipe->stages[op->slot];
    struct walk walk = {.grads = stage->grads, .count = stage->grad_count};
    struct piece pieces[WINDOW];
    uint32_t started = 0, finished = 0;
    int err = 0;

    while (!err) {
        while (started - finished < WINDOW && !err && next_piece(&walk, &pieces[started % WINDOW]))
            err = start_piece(pipe, slot, &pieces[started++ % WINDOW]);
        if (started == finished || err)
            break;
        err = finish_piece(pipe, slot, &pieces[finished++ % WINDOW]);
    }
    return err;
}

/* ---- with the other half -------------------------------------------------------------------- */

static int merge_piece(struct dp_pipeline *pipe, const struct piece *to, const struct piece *from)
{
    char *other = pipe->staged ? arrival(pipe, from) : own_bytes(from);
    int err = fetch_own(pipe, to);

    if (!err && pipe->staged)
        err = copy_now(pipe, other, own_bytes(from), from->len);
    if (err)
        return err;
    add_bytes(to, own_on_host(pipe, to), other);
    return put_own(pipe, to);
}

int dp_reduce_merge(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    const struct dp_stage *stage = &pipe->stages[op->slot];
    struct walk first = {.grads = stage->grads, .count = stage->grad_count};
    struct walk second = {.grads = pipe->halves.grads[op->slot], .count = stage->grad_count};
    struct piece to, from;
    int err = 0;

    while (!err && next_piece(&first, &to) && next_piece(&second, &from))
        err = merge_piece(pipe, &to, &from);
    return err;
}
