/* SPDX-License-Identifier: Apache-2.0
 *
 * kernel_p2p.c - send and receive: the messages of one group go at the same time, each in a thread,
 * as each has warps of its own on a GPU.
 */
#include "simcuda/kernel.h"

#include <pthread.h>
#include <string.h>

struct message {
    struct kernel_block *block;
    char *addr;
    size_t bytes, chunk_bytes;
    int peer;
    bool is_sent, is_ll, is_registered;
    pthread_t thread;
};

/* Chunk sizes are floats of 8 bits: 5 of exponent, 3 of mantissa. */
static size_t decode_chunk(uint8_t code)
{
    unsigned exponent = code >> 3, mantissa = code & 7u;

    return exponent ? (size_t)(mantissa | 8u) << (exponent - 1) : mantissa;
}

static void *run_message(void *arg)
{
    const struct message *m = arg;
    enum { INT8 = 0 };
    struct kernel_flow flow = {
        .block = m->block,
        .math = kernel_math_of(NCCL_SUM, INT8, 0),
        .protocol = m->is_ll ? NCCL_LL : NCCL_SIMPLE,
        .slices = 1,
        .slice_steps = 1,
    };
    struct kernel_route route = {
        .from = &m->peer,
        .from_count = !m->is_sent,
        .is_recv_direct = m->is_registered,
        .to = &m->peer,
        .to_count = m->is_sent,
        .is_send_direct = m->is_registered,
        .connection = 1,
        .step_bytes =
            m->is_registered ? NCCL_LONGEST_MESSAGE : (size_t)m->block->comm->p2p_chunk_bytes,
    };
    size_t done = 0;

    kernel_flow_begin(&flow, &route);
    do { /* a message of no bytes has a chunk too */
        size_t count = kernel_min(m->chunk_bytes, m->bytes - done);
        struct kernel_chunk chunk = {.in = m->is_sent ? m->addr + done : NULL,
                                     .out = m->is_sent ? NULL : m->addr + done,
                                     .count = count,
                                     .is_received = !m->is_sent,
                                     .is_sent = m->is_sent};
        kernel_flow_move(&flow, &chunk);
        done += count;
    } while (done < m->bytes && !atomic_load(&m->block->is_aborted));
    kernel_flow_end(&flow);
    return NULL;
}

/* A channel's part of a message: whole pages, but for the last. */
static void cut_part(struct message *m, int part, int part_count, size_t bytes)
{
    size_t share = (bytes + (size_t)part_count - 1) / (size_t)part_count;
    size_t begin, end;

    share = (share + 4095) & ~(size_t)4095;
    begin = kernel_min((size_t)part * share, bytes);
    end = kernel_min((size_t)(part + 1) * share, bytes);
    m->addr += begin;
    m->bytes = end - begin;
}

static int add_messages(struct kernel_block *block, const struct nccl_p2p *work,
                        struct message *out)
{
    int part = (block->channel_index - work->channel_base) & (work->channel_count - 1), count = 0;
    struct message send = {.block = block,
                           .addr = work->send_addr,
                           .peer = work->send_rank,
                           .is_sent = true,
                           .is_ll = work->is_send_ll,
                           .is_registered = work->is_send_registered};
    struct message recv = {.block = block,
                           .addr = work->recv_addr,
                           .peer = work->recv_rank,
                           .is_ll = work->is_recv_ll,
                           .is_registered = work->is_recv_registered};

    send.chunk_bytes = send.is_registered ? NCCL_LONGEST_MESSAGE : decode_chunk(work->send_chunk);
    recv.chunk_bytes = recv.is_registered ? NCCL_LONGEST_MESSAGE : decode_chunk(work->recv_chunk);
    if (part < work->send_channels) {
        cut_part(&send, part, work->send_channels, work->send_bytes);
        out[count++] = send;
    }
    if (part < work->recv_channels) {
        cut_part(&recv, part, work->recv_channels, work->recv_bytes);
        out[count++] = recv;
    }
    if (work->send_rank != block->comm->rank)
        return count;
    if (count == 2 && send.addr != recv.addr)
        memmove(recv.addr, send.addr, send.bytes);
    return 0;
}

void kernel_run_p2p(struct kernel_block *block, const struct nccl_p2p *works, int count)
{
    struct message messages[128];
    int total = 0;

    if (count > (int)(sizeof(messages) / sizeof(messages[0])) / 2)
        sim_die("a group of %d messages on one channel", count);
    for (int i = 0; i < count; i++)
        total += add_messages(block, &works[i], &messages[total]);
    for (int i = 0; i < total; i++) {
        sim_say("%s %d: %zu bytes, channel %d, LL %d, registered %d",
                messages[i].is_sent ? "to" : "from", messages[i].peer, messages[i].bytes,
                block->channel_index, messages[i].is_ll, messages[i].is_registered);
        if (pthread_create(&messages[i].thread, NULL, run_message, &messages[i]))
            sim_die("no thread for a message");
    }
    for (int i = 0; i < total; i++)
        pthread_join(messages[i].thread, NULL);
}
