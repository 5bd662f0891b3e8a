/* SPDX-License-Identifier: Apache-2.0
 *
 * kernel_ring.c - collectives around a ring: of each chunk, a rank passes on to the next what it
 * has from the one before, reduced with its own or as it is.
 */
#include "simcuda/kernel.h"

#include <string.h>

struct kernel_part kernel_part_of(const struct kernel_block *block,
                                  const struct nccl_collective *work, enum nccl_protocol protocol,
                                  size_t element_bytes)
{
    static const size_t grain_bytes[NCCL_PROTOCOLS] = {16, 1920, 512};
    const struct nccl_cut *cut = &work->cut;
    size_t grain = grain_bytes[protocol] / element_bytes;
    int index = block->channel_index, first = (int)work->first_channel,
        last = (int)work->last_channel;
    size_t between = last > first ? (size_t)(last - first - 1) : 0;
    struct kernel_part part = {.all = cut->first + cut->middle * between +
                                      (last > first ? cut->last : 0)};

    if (index == first) {
        part.count = cut->first;
        part.chunk = cut->first_grains * grain;
    } else if (index == last) {
        part.offset = cut->first + between * cut->middle;
        part.count = cut->last;
        part.chunk = cut->last_grains * grain;
    } else {
        part.offset = cut->first + (size_t)(index - first - 1) * cut->middle;
        part.count = cut->middle;
        part.chunk = cut->middle_grains * grain;
    }
    return part;
}

struct circle {
    struct kernel_flow flow;
    struct kernel_part part;
    struct nccl_ring ring;
    const char *in;
    char *out;
    int ranks, rank, root;
    bool is_copied; /* our own part is already in `out` */
};

/* Chunks from i on, of at most part.chunk elements. */
#define EACH_CHUNK(c, i, n)                                                                        \
    for (size_t i = 0, n; i < (c)->part.count && !atomic_load(&(c)->flow.block->is_aborted) &&     \
                          ((n) = kernel_min((c)->part.chunk, (c)->part.count - i), true);          \
         i += (c)->part.chunk)

enum { SEND = 1, RECEIVE = 2, INPUT = 4, RESULT = 8 };

/* One step: `in` and `out` are in elements, from the start of the user's buffers; -1: none. */
static void move(struct circle *c, int how, ptrdiff_t in, ptrdiff_t out, size_t count)
{
    ptrdiff_t bytes = (ptrdiff_t)c->flow.math.element_bytes;
    struct kernel_chunk chunk = {
        .in = in < 0 ? NULL : c->in + in * bytes,
        .out = out < 0 ? NULL : c->out + out * bytes,
        .count = count,
        .is_received = how & RECEIVE,
        .is_sent = how & SEND,
        .is_input = how & INPUT,
        .is_result = how & RESULT,
    };

    chunk.direct = chunk.out;
    kernel_flow_move(&c->flow, &chunk);
}

static void broadcast(struct circle *c)
{
    EACH_CHUNK(c, i, n)
    {
        ptrdiff_t at = (ptrdiff_t)(c->part.offset + i);
        if (c->rank == c->root)
            move(c, SEND, at, c->is_copied || c->in == c->out ? -1 : at, n);
        else if (c->ring.ranks[1] == c->root)
            move(c, RECEIVE, -1, at, n);
        else
            move(c, SEND | RECEIVE, -1, at, n);
    }
}

static void reduce(struct circle *c)
{
    EACH_CHUNK(c, i, n)
    {
        ptrdiff_t at = (ptrdiff_t)(c->part.offset + i);
        if (c->ring.ranks[c->ranks - 1] == c->root)
            move(c, SEND | INPUT, at, -1, n);
        else if (c->rank == c->root)
            move(c, RECEIVE | INPUT | RESULT, at, at, n);
        else
            move(c, SEND | RECEIVE | INPUT, at, -1, n);
    }
}

/* Where the block of a neighbour so many places on begins. */
static ptrdiff_t block_of(const struct circle *c, int places, size_t i)
{
    return (ptrdiff_t)(c->part.offset + i + (size_t)c->ring.ranks[places] * c->part.all);
}

static void all_gather(struct circle *c)
{
    EACH_CHUNK(c, i, n)
    {
        ptrdiff_t at = (ptrdiff_t)(c->part.offset + i), own = block_of(c, 0, i);
        bool is_in_place = c->in + at * (ptrdiff_t)c->flow.math.element_bytes ==
                           c->out + own * (ptrdiff_t)c->flow.math.element_bytes;
        move(c, SEND, at, is_in_place || c->is_copied ? -1 : own, n);
        for (int j = 1; j < c->ranks - 1; j++)
            move(c, SEND | RECEIVE, -1, block_of(c, c->ranks - j, i), n);
        move(c, RECEIVE, -1, block_of(c, 1, i), n);
    }
}

static void reduce_scatter(struct circle *c)
{
    EACH_CHUNK(c, i, n)
    {
        move(c, SEND | INPUT, block_of(c, c->ranks - 1, i), -1, n);
        for (int j = 2; j < c->ranks; j++)
            move(c, SEND | RECEIVE | INPUT, block_of(c, c->ranks - j, i), -1, n);
        move(c, RECEIVE | INPUT | RESULT, block_of(c, 0, i), (ptrdiff_t)(c->part.offset + i), n);
    }
}

/* One round of an all-reduce: every rank's chunk of it goes around twice, the first time reduced.
 */
static void all_reduce_round(struct circle *c, size_t begin, size_t count, size_t chunk)
{
    int ranks = c->ranks, own = c->ring.index;

    for (int j = 1; j < 2 * ranks; j++) {
        size_t first = (size_t)((own + 2 * ranks - j) % ranks) * chunk;
        size_t n = first < count ? kernel_min(chunk, count - first) : 0;
        ptrdiff_t at = (ptrdiff_t)(c->part.offset + begin + first);
        if (j == 1)
            move(c, SEND | INPUT, at, -1, n);
        else if (j < ranks)
            move(c, SEND | RECEIVE | INPUT, at, -1, n);
        else if (j == ranks)
            move(c, SEND | RECEIVE | INPUT | RESULT, at, at, n);
        else if (j < 2 * ranks - 1)
            move(c, SEND | RECEIVE, -1, at, n);
        else
            move(c, RECEIVE, -1, at, n);
    }
}

/* The last round is shared out evenly, in whole 16 bytes. */
static void all_reduce(struct circle *c)
{
    size_t round = (size_t)c->ranks * c->part.chunk, unit = 16 / c->flow.math.element_bytes;

    for (size_t i = 0; i < c->part.count && !atomic_load(&c->flow.block->is_aborted); i += round) {
        size_t left = c->part.count - i, chunk = c->part.chunk;
        if (left < round) {
            chunk = (left + (size_t)c->ranks - 1) / (size_t)c->ranks;
            chunk = (chunk + unit - 1) / unit * unit;
        }
        all_reduce_round(c, i, kernel_min(left, round), chunk);
    }
}

/* With registered buffers the network takes our part from the user's input, so nobody copies it to
 * the output in passing; other warps do it. */
static void copy_own_part(struct circle *c, bool is_gathered)
{
    size_t bytes = c->flow.math.element_bytes, at = c->part.offset * bytes;
    char *out = c->out + at + (is_gathered ? (size_t)c->rank * c->part.all * bytes : 0);

    if ((is_gathered || c->rank == c->root) && c->in + at != out)
        memmove(out, c->in + at, c->part.count * bytes);
    c->is_copied = true;
}

static void (*const collectives[])(struct circle *c) = {
    [NCCL_BROADCAST] = broadcast,   [NCCL_REDUCE] = reduce,
    [NCCL_ALL_GATHER] = all_gather, [NCCL_REDUCE_SCATTER] = reduce_scatter,
    [NCCL_ALL_REDUCE] = all_reduce,
};

static uint64_t argument(const struct nccl_collective *work, size_t bytes)
{
    uint64_t arg = work->arg;

    if (work->is_arg_pointer) {
        arg = 0;
        memcpy(&arg, (const void *)(uintptr_t)work->arg, bytes);
    }
    return arg;
}

static struct kernel_math math_of(const struct kernel_function *function,
                                  const struct nccl_collective *work)
{
    enum { UINT8 = 1 };
    bool is_copy = function->function == NCCL_ALL_GATHER || function->function == NCCL_BROADCAST;
    struct kernel_math math =
        kernel_math_of(is_copy ? NCCL_SUM : function->op, is_copy ? UINT8 : function->type, 0);

    math.arg = argument(work, math.element_bytes);
    return math;
}

static struct circle circle_of(struct kernel_block *block, const struct kernel_function *function,
                               const struct nccl_collective *work)
{
    enum nccl_function what = function->function;
    bool is_long =
        what == NCCL_ALL_GATHER || what == NCCL_ALL_REDUCE || what == NCCL_REDUCE_SCATTER;
    struct circle c = {
        .flow = {.block = block,
                 .math = math_of(function, work),
                 .protocol = function->protocol,
                 .slices = is_long ? 2 : 1,
                 .slice_steps = is_long ? 2 : 1},
        .ring = block->release->ring(block->channel),
        .in = work->in,
        .out = work->out,
        .ranks = block->comm->rank_count,
        .rank = block->comm->rank,
        .root = (int)work->root,
    };

    c.part = kernel_part_of(block, work, function->protocol, c.flow.math.element_bytes);
    return c;
}

/* Where every rank is a node the network moves what is registered from user to user; an all-gather
 * then goes in the longest messages that there are, and the kernel gives signals only. */
static void use_registered(struct circle *c, struct kernel_route *route, bool is_gathered)
{
    copy_own_part(c, is_gathered);
    if (!is_gathered)
        return;
    c->part.chunk = route->step_bytes = NCCL_LONGEST_MESSAGE;
    c->flow.slices = c->flow.slice_steps = 1;
    c->flow.is_signal_only = true;
}

static void refuse_what_is_not_simulated(enum nccl_function what,
                                         const struct nccl_collective *work)
{
    if (work->is_registered)
        sim_die("collectives on buffers registered with NVLink are not simulated");
    if (work->is_net_registered && what == NCCL_ALL_REDUCE)
        sim_die("a ring all-reduce on registered buffers is not simulated");
}

void kernel_run_ring(struct kernel_block *block, const struct kernel_function *function,
                     const struct nccl_collective *work)
{
    enum nccl_function what = function->function;
    struct circle c = circle_of(block, function, work);
    bool is_passed_on = what == NCCL_ALL_GATHER || what == NCCL_BROADCAST;
    bool is_direct = work->is_net_registered && is_passed_on;
    struct kernel_route route = {.from = &c.ring.prev,
                                 .to = &c.ring.next,
                                 .from_count = 1,
                                 .to_count = 1,
                                 .is_recv_direct = is_direct,
                                 .is_send_direct = is_direct};

    refuse_what_is_not_simulated(what, work);
    if (is_direct && work->is_rank_a_node)
        use_registered(&c, &route, what == NCCL_ALL_GATHER);
    sim_say("ring: collective %d, protocol %d, channel %d, %zu elements, registered %d", what,
            function->protocol, block->channel_index, c.part.count, (int)work->is_net_registered);
    kernel_flow_begin(&c.flow, &route);
    collectives[what](&c);
    kernel_flow_end(&c.flow);
}
