/* SPDX-License-Identifier: Apache-2.0
 *
 * kernel_lines.c - the protocols that need no tail: who receives watches flags among the data.
 *
 *      LL      a line of 16 bytes:   4 data, 4 flag, 4 data, 4 flag; each 8 arrive at once
 *      LL128   a line of 128 bytes:  120 data, 8 flag; the flag arrives last
 *
 * As NCCL's kernel does, a line of LL128 is read again once its flag is there. If the network
 * brought the flag before the data, this reads the data of eight steps ago.
 */
#include "simcuda/kernel.h"

#include <string.h>

enum { LL_LINE = 16, LL_DATA = 8, LL128_LINE = 128, LL128_DATA = 120, LL128_LINES_AT_ONCE = 16 };

struct format {
    size_t line_bytes, data_bytes, step_bytes;
    size_t line_elements, line_count;
    bool is_ll128;
};

static struct format format_of(const struct kernel_flow *flow, size_t count)
{
    bool is_ll128 = flow->protocol == NCCL_LL128;
    struct format f = {
        .line_bytes = is_ll128 ? LL128_LINE : LL_LINE,
        .data_bytes = is_ll128 ? LL128_DATA : LL_DATA,
        .step_bytes = (size_t)flow->block->comm->buffer_bytes[flow->protocol] / NCCL_SLOTS,
        .is_ll128 = is_ll128,
    };

    f.line_elements = f.data_bytes / flow->math.element_bytes;
    f.line_count = (count + f.line_elements - 1) / f.line_elements;
    if (is_ll128)
        f.line_count =
            (f.line_count + LL128_LINES_AT_ONCE - 1) / LL128_LINES_AT_ONCE * LL128_LINES_AT_ONCE;
    return f;
}

static uint64_t *line_of(const struct kernel_flow *flow, const struct kernel_link *link,
                         const struct format *f, size_t index)
{
    return (uint64_t *)(void *)(link->connection->buffers[flow->protocol] +
                                link->step % NCCL_SLOTS * f->step_bytes + index * f->line_bytes);
}

/* Now and then NCCL clears whole steps, so that a flag of long ago is not taken for a new one. */
static bool is_cleaning(const struct format *f, uint64_t step)
{
    return !f->is_ll128 && (step & NCCL_CLEANING_STEPS) == NCCL_CLEANING_STEPS;
}

static void write_line(uint64_t *line, const struct format *f, uint64_t step, const char *data)
{
    uint64_t words[LL128_LINE / 8];

    memcpy(words, data, f->data_bytes);
    if (f->is_ll128) {
        for (int i = 0; i < LL128_DATA / 8; i++)
            __atomic_store_n(&line[i], words[i], __ATOMIC_RELAXED);
        kernel_store(&line[LL128_DATA / 8], step + 1);
        return;
    }
    uint64_t flag = (uint64_t)(uint32_t)(step + 1) << 32;
    kernel_store(&line[0], (words[0] & UINT32_MAX) | flag);
    kernel_store(&line[1], words[0] >> 32 | flag);
}

static bool is_there(const uint64_t *line, const struct format *f, uint64_t step)
{
    uint32_t flag = (uint32_t)(step + 1);

    if (f->is_ll128)
        return kernel_load(&line[LL128_DATA / 8]) == step + 1;
    return kernel_load(&line[0]) >> 32 == flag && kernel_load(&line[1]) >> 32 == flag;
}

static void read_line(const uint64_t *line, const struct format *f, char *out)
{
    uint64_t words[LL128_DATA / 8];

    if (f->is_ll128)
        for (int i = 0; i < LL128_DATA / 8; i++)
            words[i] = __atomic_load_n(&line[i], __ATOMIC_RELAXED);
    else
        words[0] = (kernel_load(&line[0]) & UINT32_MAX) | kernel_load(&line[1]) << 32;
    memcpy(out, words, f->data_bytes);
}

static bool await_line(struct kernel_flow *flow, const struct kernel_link *link,
                       const struct format *f, size_t index, char *out)
{
    const uint64_t *line = line_of(flow, link, f, index);
    unsigned looks = 0;

    while (!is_there(line, f, link->step))
        if (!kernel_pause(flow->block, &looks))
            return false;
    read_line(line, f, out);
    return true;
}

static bool move_line(struct kernel_flow *flow, const struct kernel_chunk *chunk,
                      const struct format *f, size_t index)
{
    char received[KERNEL_NEIGHBOURS][LL128_DATA], sum[LL128_LINE] = {0};
    const char *list[KERNEL_NEIGHBOURS];
    size_t first = index * f->line_elements, at = first * flow->math.element_bytes;
    size_t count = first < chunk->count ? kernel_min(f->line_elements, chunk->count - first) : 0;
    int from_count = chunk->is_received ? flow->from_count : 0;

    for (int i = 0; i < from_count; i++) {
        if (!await_line(flow, &flow->from[i], f, index, received[i]))
            return false;
        list[i] = received[i];
    }
    kernel_flow_reduce(flow, chunk, chunk->in ? chunk->in + at : NULL, list, from_count, sum,
                       count);
    for (int i = 0; chunk->is_sent && i < flow->to_count; i++)
        write_line(line_of(flow, &flow->to[i], f, index), f, flow->to[i].step, sum);
    if (chunk->out)
        memcpy(chunk->out + at, sum, count * flow->math.element_bytes);
    return true;
}

static bool await_room(struct kernel_flow *flow, const struct format *f)
{
    for (int i = 0; i < flow->to_count; i++) {
        struct kernel_link *link = &flow->to[i];
        const struct nccl_connection *c = link->connection;
        size_t bytes = is_cleaning(f, link->step) ? f->step_bytes : f->line_count * f->line_bytes;
        if (!kernel_await_room(flow->block, c, link->step + 1))
            return false;
        if (c->slots)
            __atomic_store_n(&c->slots[link->step % NCCL_SLOTS].bytes, (int64_t)bytes,
                             __ATOMIC_RELAXED);
    }
    return true;
}

static void step_on(struct kernel_flow *flow, const struct kernel_chunk *chunk,
                    const struct format *f)
{
    static const char nothing[LL128_DATA];

    for (int i = 0; chunk->is_received && i < flow->from_count; i++)
        kernel_store(flow->from[i].connection->head, ++flow->from[i].step);
    for (int i = 0; chunk->is_sent && i < flow->to_count; i++) {
        struct kernel_link *link = &flow->to[i];
        size_t end = is_cleaning(f, link->step) ? f->step_bytes / f->line_bytes : 0;
        for (size_t k = f->line_count; k < end; k++)
            write_line(line_of(flow, link, f, k), f, link->step, nothing);
        link->step++;
        if (f->is_ll128)
            kernel_store(link->connection->tail, link->step);
    }
}

void kernel_lines_move(struct kernel_flow *flow, const struct kernel_chunk *chunk)
{
    struct format f = format_of(flow, chunk->count);

    if (chunk->is_sent && !await_room(flow, &f))
        return;
    for (size_t i = 0; i < f.line_count; i++)
        if (!move_line(flow, chunk, &f, i))
            return;
    step_on(flow, chunk, &f);
}
