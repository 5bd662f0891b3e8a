/* SPDX-License-Identifier: Apache-2.0
 *
 * reduce.c - where the gradients of a rank are added up, and how.
 *
 * Gradients of a slot summed with its mirror's on another rank, in pieces of bounded size, two of
 * them under way.
 *
 *       piece      0            1            2
 *       messages   [0 both ways][1 both ways][2 ...
 *       sums                    [0 +=]       [1 +=]
 *
 * Both ranks compute own + other, which is the same to the last bit.
 *
 * On a stream-ordered communicator a launch hands all of this to a stream, and a REDUCE_WAIT makes
 * the compute stream wait for that one. There the device itself adds, if it can. Where the caller
 * has handed in operations of its own (dp_reduce_ops), these are called instead, once the gradients
 * are there, or, if it can queue, with a stream that they are complete in.
 *
 * Within a rank, those of one set are added to another's, and float32 sums become gradients of two
 * bytes. A device whose memory the CPU does not reach adds them itself, or, if it cannot, they pass
 * through pinned memory, piece by piece.
 */
#include "pipeline/state.h"
#include "pipeline/steps.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/fp16.h"
#include "base/tensor.h"
#include "device/device_ops.h"
#include "pipeline/reduce.h"
#include "pipeline/offsets.h"

#include <dualpipe/comm.h>

#include <stdlib.h>

enum { PIECE_BYTES = 256 << 10, WINDOW = DP_REDUCE_WINDOW };

static bool next_piece(struct dp_reduce_walk *walk, struct dp_reduce_piece *piece)
{
    while (walk->tensor < walk->count) {
        const DLTensor *grad = walk->grads[walk->tensor];
        size_t left = grad ? dp_tensor_bytes(grad) - walk->offset : 0;
        if (left) {
            *piece = (struct dp_reduce_piece){.grad = grad,
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

static char *own_bytes(const struct dp_reduce_piece *piece)
{
    return (char *)piece->grad->data + piece->grad->byte_offset + piece->offset;
}

/* ---- memory --------------------------------------------------------------------------------- */

/* Behind what sums within a rank need. */
static char *pieces(const struct dp_pipeline *pipe)
{
    return pipe->sums_there ? pipe->arrivals : pipe->reduce_memory + dp_sum_memory_bytes(pipe);
}

/* The own piece is to be on the host while it is added to. */
static bool passes_host(const struct dp_pipeline *pipe)
{
    return pipe->base.out_of_reach && !pipe->sums_there;
}

/* Where a piece of the mirror's arrives; and, staged, where the own piece is while it is on the
 * host. */
static char *arrival(const struct dp_pipeline *pipe, const struct dp_reduce_piece *piece)
{
    return pieces(pipe) + (size_t)(piece->number % WINDOW) * PIECE_BYTES;
}

static char *own_on_host(const struct dp_pipeline *pipe, const struct dp_reduce_piece *piece)
{
    if (!passes_host(pipe))
        return own_bytes(piece);
    return pieces(pipe) + (size_t)(WINDOW + piece->number % WINDOW) * PIECE_BYTES;
}

size_t dp_reduce_pieces_bytes(const struct dp_pipeline *pipe)
{
    return (size_t)PIECE_BYTES * WINDOW * (passes_host(pipe) ? 2 : 1);
}

/* Of all gradients of this rank. */
static size_t count_pieces(const struct dp_pipeline *pipe)
{
    struct dp_reduce_piece piece;
    size_t count = 0;

    for (int slot = 0; slot < pipe->base.slots; slot++) {
        struct dp_reduce_walk walk = {.grads = dp_accumulator_set(&pipe->accumulator, slot, 0),
                                      .count = pipe->base.stages[slot].parameter_count};
        while (next_piece(&walk, &piece))
            count++;
    }
    return count;
}

int dp_reduce_init(struct dp_pipeline *pipe)
{
    const size_t count = pipe->ordered ? count_pieces(pipe) + 1 : WINDOW;

    pipe->reductions.pieces = calloc(count, sizeof(*pipe->reductions.pieces));
    return pipe->reductions.pieces ? 0 : dp_fail(DP_ENOMEM, "no memory for sums with mirrors");
}

/* A copy between device and host: done when this returns, or, ordered, in the stream. */
static int copy(struct dp_pipeline *pipe, void *dst, const void *src, size_t len)
{
    return pipe->ordered ? dp_device_copy(pipe->summing, dst, src, len)
                         : dp_compute_copy(pipe, dst, src, len);
}

static int fetch_own(struct dp_pipeline *pipe, const struct dp_reduce_piece *piece)
{
    if (!passes_host(pipe))
        return 0;
    return copy(pipe, own_on_host(pipe, piece), own_bytes(piece), piece->len);
}

static int put_own(struct dp_pipeline *pipe, const struct dp_reduce_piece *piece)
{
    if (!passes_host(pipe))
        return 0;
    return copy(pipe, own_bytes(piece), own_on_host(pipe, piece), piece->len);
}

/* ---- with the mirror ------------------------------------------------------------------------- */

static int start_piece(struct dp_pipeline *pipe, const struct dp_slot *slot,
                       struct dp_reduce_piece *piece)
{
    struct dp_comm *comm = pipe->base.config.comm;
    int peer = pipe->base.config.schedule->group_rank[slot->mirror];
    uint64_t tag = dp_messages_tag(pipe, DP_CHANNEL_REDUCE, slot->stage, piece->number & 0xFFFFF);

    int err = pipe->ordered ? dp_comm_after(comm, pipe->summing) : 0;

    if (!err)
        err = dp_comm_irecv(comm, peer, DP_CHANNEL_REDUCE, tag, arrival(pipe, piece), piece->len,
                            &piece->recv);
    if (!err)
        err = fetch_own(pipe, piece);
    if (!err && pipe->ordered)
        err = dp_comm_after(comm, pipe->summing);
    if (!err)
        err = dp_comm_isend(comm, peer, DP_CHANNEL_REDUCE, tag, own_on_host(pipe, piece),
                            piece->len, &piece->send);
    return err;
}

static int test_or_wait(struct dp_pipeline *pipe, struct dp_request *request, bool *done, int peer,
                        bool wait)
{
    int err = 0;

    if (!*done)
        err = wait ? dp_messages_wait_request(pipe, request, peer)
                   : dp_comm_test(pipe->base.config.comm, request);
    *done |= !err;
    return err;
}

static void add_piece(void *user)
{
    const struct dp_reduce_piece *piece = user;

    dp_sum_add(piece->grad->dtype.bits, piece->own, piece->arrival,
               piece->len / (piece->grad->dtype.bits / 8));
}

/* In the stream: wait for the messages, add, put the sum back. */
static int queue_piece(struct dp_pipeline *pipe, struct dp_reduce_piece *piece)
{
    struct dp_comm *comm = pipe->base.config.comm;
    int err = dp_comm_stream_wait(comm, &piece->recv, pipe->summing);

    if (!err)
        err = dp_comm_stream_wait(comm, &piece->send, pipe->summing);
    if (!err && pipe->sums_there)
        return dp_device_add(pipe->summing, piece->grad->dtype, piece->own, piece->grad->dtype,
                             piece->arrival, piece->len / (piece->grad->dtype.bits / 8));
    if (!err)
        err = dp_device_call(pipe->summing, add_piece, piece);
    return err ? err : put_own(pipe, piece);
}

static int finish_piece(struct dp_pipeline *pipe, const struct dp_slot *slot,
                        struct dp_reduce_piece *piece, bool wait)
{
    piece->own = own_on_host(pipe, piece);
    piece->arrival = arrival(pipe, piece);
    if (pipe->ordered)
        return queue_piece(pipe, piece);
    int err = test_or_wait(pipe, &piece->recv, &piece->received, slot->mirror, wait);

    if (!err)
        err = test_or_wait(pipe, &piece->send, &piece->sent, slot->mirror, wait);
    if (err)
        return err;
    add_piece(piece);
    return put_own(pipe, piece);
}

/* ---- one sum after the other, in the order of their launches --------------------------------- */

static int go_on_outside(struct dp_pipeline *pipe, bool wait)
{
    const struct dp_reduce_ops *ops = pipe->base.config.reduce;
    const int slot = pipe->reductions.queue[pipe->reductions.first].slot;
    int err = ops->test(pipe->base.config.reduce_user, slot);

    if (err == DP_EAGAIN && wait) {
        const int64_t start = dp_now_ns();
        err = dp_messages_send_all(pipe);
        if (!err)
            err = ops->wait(pipe->base.config.reduce_user, slot);
        dp_messages_note_wait(pipe, dp_now_ns() - start, dp_pipeline_slot(pipe, slot)->mirror);
    }
    pipe->reductions.first += !err;
    return err;
}

static int launch_outside(struct dp_pipeline *pipe, int slot)
{
    int err = dp_compute_finish(pipe);

    return err ? err : pipe->base.config.reduce->launch(pipe->base.config.reduce_user, slot);
}

/* It needs no progress: the stream carries it out. */
static int queue_outside(struct dp_pipeline *pipe, int slot)
{
    int err = dp_compute_join(pipe, pipe->summing, pipe->base.compute);

    if (!err)
        err = pipe->base.config.reduce->queue(pipe->base.config.reduce_user, slot, pipe->summing);
    pipe->reductions.first += !err;
    return err;
}

static int finish_outside(struct dp_pipeline *pipe)
{
    const struct dp_mirror_sums *all = &pipe->reductions;
    int err = 0;

    for (int i = 0; i < all->count && !err; i++)
        err = pipe->base.config.reduce->wait(pipe->base.config.reduce_user, all->queue[i].slot);
    return err;
}

static struct dp_reduce_piece *piece_at(const struct dp_pipeline *pipe,
                                        const struct dp_mirror_sum *sum, uint32_t number)
{
    const struct dp_mirror_sums *all = &pipe->reductions;
    return &all->pieces[pipe->ordered ? sum->first + number : number % WINDOW];
}

static int go_on_with_mirror(struct dp_pipeline *pipe, bool wait)
{
    struct dp_mirror_sums *all = &pipe->reductions;
    struct dp_mirror_sum *now = &all->queue[all->first];
    const struct dp_slot *slot = dp_pipeline_slot(pipe, now->slot);
    int err = 0;

    while (now->started - now->finished < WINDOW && !err &&
           next_piece(&now->walk, piece_at(pipe, now, now->started)))
        err = start_piece(pipe, slot, piece_at(pipe, now, now->started++));
    if (err)
        return err;
    if (now->started == now->finished) {
        all->first++;
        all->used += now->finished;
        return 0;
    }
    err = finish_piece(pipe, slot, piece_at(pipe, now, now->finished), wait);
    now->finished += !err;
    return err;
}

/* Go on with the first sum that is not done. DP_EAGAIN: it waits for other ranks. */
static int go_on(struct dp_pipeline *pipe, bool wait)
{
    return pipe->base.config.reduce ? go_on_outside(pipe, wait) : go_on_with_mirror(pipe, wait);
}

bool dp_reduce_is_queued(const struct dp_pipeline *pipe)
{
    return pipe->native_stream && pipe->base.config.reduce && pipe->base.config.reduce->queue;
}

int dp_reduce_launch(struct dp_pipeline *pipe, int slot)
{
    struct dp_mirror_sums *all = &pipe->reductions;

    all->queue[all->count++] = (struct dp_mirror_sum){
        .slot = slot,
        .first = all->used,
        .walk = {.grads = dp_accumulator_set(&pipe->accumulator, slot, 0),
                 .count = pipe->base.stages[slot].parameter_count}};
    int err = 0;
    if (dp_reduce_is_queued(pipe))
        return queue_outside(pipe, slot);
    if (pipe->base.config.reduce)
        err = launch_outside(pipe, slot);
    else if (pipe->ordered)
        err = dp_compute_join(pipe, pipe->summing, pipe->base.compute);
    return err ? err : dp_reduce_progress(pipe);
}

int dp_reduce_progress(struct dp_pipeline *pipe)
{
    int err = 0;

    while (!err && dp_reduce_is_open(&pipe->reductions))
        err = go_on(pipe, false);
    return err == DP_EAGAIN ? 0 : err;
}

static bool is_done(const struct dp_mirror_sums *all, int slot)
{
    for (int i = all->first; i < all->count; i++)
        if (all->queue[i].slot == slot)
            return false;
    return true;
}

int dp_reduce_wait(struct dp_pipeline *pipe, int slot)
{
    int err = 0;

    while (!err && !is_done(&pipe->reductions, slot))
        err = go_on(pipe, true);
    return err || !pipe->summing ? err : dp_compute_join(pipe, pipe->base.compute, pipe->summing);
}

int dp_reduce_finish(struct dp_pipeline *pipe)
{
    const struct dp_mirror_sums *all = &pipe->reductions;
    int err = 0;

    if (dp_reduce_is_queued(pipe))
        return finish_outside(pipe);
    for (int i = 0; i < all->count; i++) {
        const struct dp_mirror_sum *sum = &all->queue[i];
        const int peer = dp_pipeline_slot(pipe, sum->slot)->mirror;
        for (uint32_t k = 0; k < sum->finished && !err; k++)
            err = dp_messages_wait_request(pipe, &piece_at(pipe, sum, k)->recv, peer);
        for (uint32_t k = 0; k < sum->finished && !err; k++)
            err = dp_messages_wait_request(pipe, &piece_at(pipe, sum, k)->send, peer);
    }
    return err;
}

/* ---- sums within a rank ---------------------------------------------------------------------- */

enum { PIECE_ELEMENTS = 32 << 10 };

/* ---- arithmetic ----------------------------------------------------------------------------- */

/* In blocks of a length that compilers turn into vector instructions by themselves. */
enum { BLOCK = 16 };

#define ADD_LOOP(REAL)                                                                             \
    static void add_##REAL##s(REAL *restrict to, const REAL *restrict from, size_t n)              \
    {                                                                                              \
        size_t i = 0;                                                                              \
                                                                                                   \
        for (; i + BLOCK <= n; i += BLOCK)                                                         \
            for (int k = 0; k < BLOCK; k++)                                                        \
                to[i + (size_t)k] += from[i + (size_t)k];                                          \
        for (; i < n; i++)                                                                         \
            to[i] += from[i];                                                                      \
    }
ADD_LOOP(float)
ADD_LOOP(double)

void dp_sum_add(int bits, void *to, const void *from, size_t n)
{
    if (bits == 32)
        add_floats(to, from, n);
    else
        add_doubles(to, from, n);
}

static void add_to_bfloat16(uint16_t *to, const float *from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = dp_bfloat16_store(dp_bfloat16_load(to[i]) + from[i]);
}

static void add_to_float16(uint16_t *to, const float *from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = dp_float16_store(dp_float16_load(to[i]) + from[i]);
}

static void add(const DLTensor *to, void *sum, const void *from, size_t n)
{
    if (!dp_gradient_is_narrow(to))
        dp_sum_add(to->dtype.bits, sum, from, n);
    else if (to->dtype.code == kDLBfloat)
        add_to_bfloat16(sum, from, n);
    else
        add_to_float16(sum, from, n);
}

/* ---- pieces --------------------------------------------------------------------------------- */

/* Elements first .. first + n - 1, through the host. */
static int add_piece_on_host(struct dp_pipeline *pipe, const DLTensor *to, const DLTensor *from,
                             size_t first, size_t n)
{
    size_t to_bytes = dp_tensor_element_bytes(to), from_bytes = dp_tensor_element_bytes(from);
    char *sum = pipe->reduce_memory, *other = sum + PIECE_ELEMENTS * sizeof(double);
    char *there = dp_tensor_address(to) + first * to_bytes;

    int err = dp_compute_copy(pipe, sum, there, n * to_bytes);
    if (!err)
        err = dp_compute_copy(pipe, other, dp_tensor_address(from) + first * from_bytes,
                              n * from_bytes);
    if (err)
        return err;
    add(to, sum, other, n);
    return dp_compute_copy(pipe, there, sum, n * to_bytes);
}

size_t dp_sum_memory_bytes(const struct dp_pipeline *pipe)
{
    return pipe->base.out_of_reach ? 2 * PIECE_ELEMENTS * sizeof(double) : 0;
}

static int add_tensor(struct dp_pipeline *pipe, const DLTensor *to, const DLTensor *from)
{
    size_t count = (size_t)dp_tensor_numel(to);
    int err = 0;

    if (!pipe->base.out_of_reach) {
        add(to, dp_tensor_address(to), dp_tensor_address(from), count);
        return 0;
    }
    if (pipe->native_stream) {
        err = dp_device_add(pipe->base.compute, to->dtype, dp_tensor_address(to), from->dtype,
                            dp_tensor_address(from), count);
        if (err != DP_EUNSUPPORTED)
            return err;
        err = 0;
    }
    for (size_t first = 0; first < count && !err; first += PIECE_ELEMENTS) {
        size_t left = count - first;
        err =
            add_piece_on_host(pipe, to, from, first, left < PIECE_ELEMENTS ? left : PIECE_ELEMENTS);
    }
    return err;
}

static int clear(struct dp_pipeline *pipe, const DLTensor *t)
{
    return dp_device_zero(pipe->base.compute, dp_tensor_address(t),
                                   (size_t)dp_tensor_numel(t) * dp_tensor_element_bytes(t));
}

static const DLTensor *target(const struct dp_pipeline *pipe, int slot, enum dp_plan_kind kind,
                              int set, int32_t k)
{
    const DLTensor *grad = pipe->base.stages[slot].parameters[k].grad;

    if (kind == DP_PLAN_ROUND)
        return grad && dp_gradient_is_narrow(grad) ? grad : NULL;
    return dp_accumulator_set(&pipe->accumulator, slot, set)[k];
}

int dp_sum_run(struct dp_pipeline *pipe, int slot, enum dp_plan_kind kind, int set, int from_set)
{
    DLTensor **from = dp_accumulator_set(&pipe->accumulator, slot, from_set);
    int err = 0;

    for (int32_t k = 0; k < pipe->base.stages[slot].parameter_count && !err; k++) {
        const DLTensor *to = target(pipe, slot, kind, set, k);
        if (!to)
            continue;
        err = add_tensor(pipe, to, from[k]);
        if (!err && kind == DP_PLAN_ADD)
            err = clear(pipe, from[k]);
    }
    return err ? err : dp_compute_sync(pipe);
}

/* ---- sets of gradients ----------------------------------------------------------------------- */

bool dp_gradient_is_narrow(const DLTensor *grad)
{
    return grad->dtype.bits == 16;
}

/* What a set's copy of a gradient looks like. */
static DLTensor wide_tensor(const DLTensor *grad, char *memory)
{
    DLTensor t = *grad;

    t.data = memory;
    t.byte_offset = 0;
    if (dp_gradient_is_narrow(grad))
        t.dtype = (DLDataType){kDLFloat, 32, 1};
    return t;
}

static size_t wide_bytes(const DLTensor *grad)
{
    DLTensor t = wide_tensor(grad, NULL);
    return dp_offset_align((size_t)dp_tensor_numel(&t) * dp_tensor_element_bytes(&t));
}

static bool is_callers(const DLTensor *grad, int set)
{
    return !set && !dp_gradient_is_narrow(grad);
}

/* Count tensors and bytes; once there is memory, fill it in too. */
static size_t lay_out(struct dp_accumulator *a, const struct dp_stage *stages, const uint8_t *sets,
                      int slots)
{
    size_t count = 0, offset = 0;

    for (int slot = 0; slot < slots; slot++) {
        const struct dp_stage *stage = &stages[slot];
        a->parameters[slot] = stage->parameter_count;
        if (a->list)
            a->grads[slot] = a->list + count;
        for (int set = 0; set < sets[slot]; set++)
            for (int32_t k = 0; k < stage->parameter_count; k++, count++) {
                const DLTensor *grad = stage->parameters[k].grad;
                bool callers = grad && is_callers(grad, set);
                if (a->list && grad) {
                    a->tensors[count] = callers ? *grad : wide_tensor(grad, a->memory + offset);
                    a->list[count] = &a->tensors[count];
                }
                offset += grad && !callers ? wide_bytes(grad) : 0;
            }
    }
    a->bytes = offset;
    return count;
}

size_t dp_accumulator_bytes(const struct dp_stage *stages, const uint8_t *sets, int slots)
{
    struct dp_accumulator a = {0};

    lay_out(&a, stages, sets, slots);
    return a.bytes;
}

int dp_accumulator_init(struct dp_accumulator *accumulator, struct dp_device *device,
                        const struct dp_stage *stages, const uint8_t *sets, int slots)
{
    size_t count = lay_out(accumulator, stages, sets, slots);
    void *memory = NULL;

    if (!count)
        return 0;
    if (accumulator->bytes) {
        int err = dp_device_alloc(device, accumulator->kind, accumulator->bytes, &memory);
        if (err)
            return err;
    }
    accumulator->memory = memory;
    accumulator->tensors = calloc(count, sizeof(*accumulator->tensors));
    accumulator->list = calloc(count, sizeof(*accumulator->list));
    if (!accumulator->list || !accumulator->tensors)
        return dp_fail(DP_ENOMEM, "no memory for %zu gradients", count);
    lay_out(accumulator, stages, sets, slots);
    return 0;
}

void dp_accumulator_bind(struct dp_accumulator *accumulator, int slot, const struct dp_stage *stage)
{
    for (int32_t k = 0; k < stage->parameter_count && accumulator->grads[slot]; k++) {
        const DLTensor *grad = stage->parameters[k].grad;
        if (grad && is_callers(grad, 0))
            *accumulator->grads[slot][k] = *grad;
    }
}

void dp_accumulator_fini(struct dp_accumulator *accumulator, struct dp_device *device)
{
    dp_device_free(device, accumulator->kind, accumulator->memory);
    free(accumulator->tensors);
    free(accumulator->list);
    *accumulator = (struct dp_accumulator){0};
}
