/* SPDX-License-Identifier: Apache-2.0
 *
 * kernel_flow.c - a flow of chunks, and the protocol Simple: data goes into a slot, then its size
 * is told to the proxy, then the tail moves; who has read a slot moves the head.
 *
 *      from: proxy moves tail >= step + slice     to: proxy or peer moves head >= step + slice - 8
 *            kernel reads the slot, moves head        kernel fills the slot, moves tail
 */
#include "simcuda/kernel.h"

#include <string.h>

/* A flow may begin in the middle of a slice's steps, where another protocol ended. */
static uint64_t round_up(uint64_t step, uint64_t unit)
{
    return (step + unit - 1) / unit * unit;
}

static struct nccl_slot *slot_of(const struct kernel_link *link)
{
    struct nccl_slot *slots = link->connection->slots;

    return slots ? &slots[link->step % NCCL_SLOTS] : NULL;
}

static void tell_bytes(const struct kernel_link *link, size_t bytes)
{
    struct nccl_slot *slot = slot_of(link);

    if (slot)
        __atomic_store_n(&slot->bytes, (int64_t)bytes, __ATOMIC_RELAXED);
}

/* Where the data of the current step lies. */
static char *data_of(const struct kernel_link *link)
{
    const struct nccl_connection *c = link->connection;
    const struct nccl_slot *slot = slot_of(link);

    if (slot && slot->mode == NCCL_SLOT_HAS_OFFSET)
        return c->buffers[NCCL_SIMPLE] + slot->offset;
    return c->buffers[NCCL_SIMPLE] + link->step % NCCL_SLOTS * (size_t)c->slot_bytes;
}

static struct kernel_link open_link(const struct kernel_flow *flow,
                                    struct nccl_connection *connection, bool is_direct)
{
    unsigned unit = (unsigned)(flow->slices * flow->slice_steps);

    return (struct kernel_link){
        .connection = connection,
        .step = round_up(connection->step, unit),
        .is_direct = is_direct && flow->protocol == NCCL_SIMPLE &&
                     (connection->flags & NCCL_FLAG_USER_BUFFERS),
    };
}

static void begin_receiving(struct kernel_flow *flow, const struct kernel_link *link)
{
    if (flow->protocol == NCCL_SIMPLE)
        kernel_store(link->connection->head, link->step);
    if (link->is_direct)
        tell_bytes(link, 0);
}

void kernel_flow_begin(struct kernel_flow *flow, const struct kernel_route *route)
{
    struct nccl_peer **peers = flow->block->peers;

    if (flow->protocol != NCCL_SIMPLE)
        flow->slices = flow->slice_steps = 1;
    flow->step_bytes = route->step_bytes;
    if (!flow->step_bytes)
        flow->step_bytes = (size_t)flow->block->comm->buffer_bytes[flow->protocol] / NCCL_SLOTS;
    for (int i = 0; i < route->from_count; i++) {
        struct kernel_link *link = &flow->from[flow->from_count];
        if (route->from[i] < 0)
            continue;
        *link =
            open_link(flow, &peers[route->from[i]]->recv[route->connection], route->is_recv_direct);
        begin_receiving(flow, link);
        flow->from_count++;
    }
    for (int i = 0; i < route->to_count; i++)
        if (route->to[i] >= 0)
            flow->to[flow->to_count++] = open_link(
                flow, &peers[route->to[i]]->send[route->connection], route->is_send_direct);
}

void kernel_flow_reduce(const struct kernel_flow *flow, const struct kernel_chunk *chunk,
                        const char *in, const char *const received[], int received_count, char *sum,
                        size_t count)
{
    const struct kernel_math *math = &flow->math;
    size_t bytes = count * math->element_bytes;
    int next = 0;

    if (in) {
        memmove(sum, in, bytes);
        if (chunk->is_input)
            kernel_math_before(math, sum, count);
    } else if (received_count) {
        memmove(sum, received[next++], bytes);
    }
    for (; next < received_count; next++)
        kernel_math_reduce(math, sum, received[next], count);
    if (chunk->is_result)
        kernel_math_after(math, sum, count);
}

/* ---- Simple: a slice ------------------------------------------------------------------------- */

struct slice {
    size_t offset, count; /* elements of the chunk */
    const char *received[KERNEL_NEIGHBOURS];
    char *sent[KERNEL_NEIGHBOURS];
    int received_count, sent_count;
};

static bool await_received(struct kernel_flow *flow, const struct kernel_chunk *chunk,
                           struct slice *slice)
{
    for (int i = 0; i < flow->from_count; i++) {
        struct kernel_link *link = &flow->from[i];
        if (!kernel_await_tail(flow->block, link->connection,
                               link->step + (uint64_t)flow->slice_steps))
            return false;
        const char *at = data_of(link);
        if (link->is_direct)
            at = chunk->direct ? chunk->direct + slice->offset * flow->math.element_bytes : NULL;
        if (at)
            slice->received[slice->received_count++] = at;
    }
    return true;
}

static bool await_room(struct kernel_flow *flow, struct slice *slice)
{
    for (int i = 0; i < flow->to_count; i++) {
        struct kernel_link *link = &flow->to[i];
        if (!kernel_await_room(flow->block, link->connection,
                               link->step + (uint64_t)flow->slice_steps))
            return false;
        tell_bytes(link, slice->count * flow->math.element_bytes);
        /* What is passed on from a registered buffer already lies where the network takes it. */
        if (!link->is_direct)
            slice->sent[slice->sent_count++] = data_of(link);
    }
    return true;
}

static void move_data(const struct kernel_flow *flow, const struct kernel_chunk *chunk,
                      struct slice *slice)
{
    size_t at = slice->offset * flow->math.element_bytes;
    size_t bytes = slice->count * flow->math.element_bytes;
    char *out = chunk->out ? chunk->out + at : NULL;
    char *sum = out ? out : slice->sent_count ? slice->sent[0] : NULL;

    if (!bytes || !sum || flow->is_signal_only)
        return;
    kernel_flow_reduce(flow, chunk, chunk->in ? chunk->in + at : NULL, slice->received,
                       slice->received_count, sum, slice->count);
    for (int i = 0; i < slice->sent_count; i++)
        if (slice->sent[i] != sum)
            memcpy(slice->sent[i], sum, bytes);
}

static void step_on(struct kernel_flow *flow, const struct kernel_chunk *chunk)
{
    for (int i = 0; chunk->is_received && i < flow->from_count; i++) {
        struct kernel_link *link = &flow->from[i];
        link->step += (uint64_t)flow->slice_steps;
        kernel_store(link->connection->head, link->step);
    }
    for (int i = 0; chunk->is_sent && i < flow->to_count; i++) {
        struct kernel_link *link = &flow->to[i];
        link->step += (uint64_t)flow->slice_steps;
        kernel_store(link->connection->tail, link->step);
    }
}

/* Slices are equal, of whole 16 elements, and not shorter than a 32nd of what fits. */
static size_t slice_count(const struct kernel_flow *flow, size_t count)
{
    size_t slices = (size_t)flow->slices, fits = flow->step_bytes / flow->math.element_bytes;
    size_t equal = (count + 16 * slices - 1) / (16 * slices) * 16;
    size_t least = fits * (size_t)flow->slice_steps / 32;

    return equal > least ? equal : least;
}

/* Slices that came out empty are waited for and told like others. */
static void move_simple(struct kernel_flow *flow, const struct kernel_chunk *chunk)
{
    size_t most = slice_count(flow, chunk->count), offset = 0;

    for (int i = 0; i < flow->slices; i++) {
        struct slice slice = {.offset = offset, .count = kernel_min(most, chunk->count - offset)};
        if (chunk->is_received && !await_received(flow, chunk, &slice))
            return;
        if (chunk->is_sent && !await_room(flow, &slice))
            return;
        move_data(flow, chunk, &slice);
        step_on(flow, chunk);
        offset += slice.count;
    }
}

void kernel_flow_move(struct kernel_flow *flow, const struct kernel_chunk *chunk)
{
    if (atomic_load(&flow->block->is_aborted))
        return;
    if (flow->protocol == NCCL_SIMPLE)
        move_simple(flow, chunk);
    else
        kernel_lines_move(flow, chunk);
}

/* The user's memory may be used again only after the network has read it; the proxy then says -1.
 */
static void await_direct(struct kernel_flow *flow, struct kernel_link *link)
{
    struct kernel_link last = {.connection = link->connection,
                               .step = link->step - (uint64_t)flow->slice_steps};
    const struct nccl_slot *slot = slot_of(&last);
    unsigned looks = 0;

    if (link->is_direct && slot)
        while (__atomic_load_n(&slot->bytes, __ATOMIC_ACQUIRE) != -1)
            if (!kernel_pause(flow->block, &looks))
                return;
}

void kernel_flow_end(struct kernel_flow *flow)
{
    for (int i = 0; i < flow->from_count; i++)
        flow->from[i].connection->step = flow->from[i].step;
    for (int i = 0; i < flow->to_count; i++) {
        flow->to[i].connection->step = flow->to[i].step;
        await_direct(flow, &flow->to[i]);
    }
}
