/* SPDX-License-Identifier: Apache-2.0
 *
 * kernel.h - a stand-in, on the CPU, for the kernels of NCCL: it reads the same work from memory
 * and moves the same data through the same buffers, hand in hand with NCCL's own proxy threads.
 *
 *   kernel.c        a launch: blocks, batches of work                kernel_table.c  what a number
 * of a kernel_ring.c   a collective around a ring                                       function
 * stands for kernel_tree.c   an all-reduce up and down a tree                 kernel_math.c
 * reductions kernel_p2p.c    send and receive kernel_flow.c   from one's neighbours, through the
 * reduction, to others; and its protocols: kernel_flow.c Simple, kernel_lines.c LL and LL128
 */
#ifndef DP_TESTS_SIMCUDA_KERNEL_H
#define DP_TESTS_SIMCUDA_KERNEL_H

#include "simcuda/nccl_device.h"
#include "simcuda/sim.h"

#include <stdatomic.h>

/* ---- kernel.c: a block, which works for one channel ------------------------------------------ */

struct kernel_block {
    const struct nccl_comm *comm;
    const struct nccl_release *release;
    void *channel;
    struct nccl_peer **peers;
    int channel_index;
    atomic_bool is_aborted;
};

/* Between two looks at memory that another thread writes: let it run. False: NCCL aborts. */
bool kernel_pause(struct kernel_block *block, unsigned *looks);
/* Until all before step was received, or may be written to. False: NCCL aborts. */
bool kernel_await_tail(struct kernel_block *block, const struct nccl_connection *from,
                       uint64_t step);
bool kernel_await_room(struct kernel_block *block, const struct nccl_connection *to, uint64_t step);

static inline uint64_t kernel_load(const uint64_t *at)
{
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

static inline void kernel_store(uint64_t *at, uint64_t value)
{
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
}

/* ---- kernel_table.c -------------------------------------------------------------------------- */

struct kernel_function {
    bool is_known;
    enum nccl_function function;
    enum nccl_device_op op;
    int type; /* ncclDataType_t */
    enum nccl_algorithm algorithm;
    enum nccl_protocol protocol;
};
struct kernel_function kernel_function_of(unsigned id, const struct nccl_release *release);

/* ---- kernel_math.c --------------------------------------------------------------------------- */

struct kernel_math {
    enum nccl_device_op op;
    int type;
    size_t element_bytes;
    uint64_t arg;
};
/* Dies when the type is not one it can do. */
struct kernel_math kernel_math_of(enum nccl_device_op op, int type, uint64_t arg);
/* sum = sum OP in, element by element. */
void kernel_math_reduce(const struct kernel_math *math, void *sum, const void *in, size_t count);
/* To the inputs before, and to the result after: what averages need. */
void kernel_math_before(const struct kernel_math *math, void *inout, size_t count);
void kernel_math_after(const struct kernel_math *math, void *inout, size_t count);

/* ---- kernel_flow.c --------------------------------------------------------------------------- */

enum { KERNEL_NEIGHBOURS = 3 };

struct kernel_link {
    struct nccl_connection *connection;
    uint64_t step;
    bool is_direct; /* the network moves the user's memory itself */
};

struct kernel_flow {
    struct kernel_block *block;
    struct kernel_math math;
    enum nccl_protocol protocol;
    int slices, slice_steps; /* a chunk goes in so many slices of so many steps */
    size_t step_bytes;
    int from_count, to_count;
    struct kernel_link from[KERNEL_NEIGHBOURS], to[KERNEL_NEIGHBOURS];
    bool is_signal_only; /* nothing to copy here: the network moves user's memory on both sides */
};

/* One chunk: out and what is sent are the reduction of in (if any) and what is received. */
struct kernel_chunk {
    const char *in; /* NULL: only what is received */
    char *out;      /* NULL: only sent */
    size_t count;   /* elements */
    bool is_received, is_sent;
    bool is_input;  /* `in` is the user's, not yet prepared for the operation */
    bool is_result; /* the reduction is complete with this step */
    char *direct;   /* where the network puts the chunk if links are direct */
};

/* What a flow is made of. Ranks of -1 are left out. */
struct kernel_route {
    const int *from, *to;
    int from_count, to_count, connection;
    bool is_recv_direct, is_send_direct;
    size_t step_bytes; /* 0: as the protocol says */
};
void kernel_flow_begin(struct kernel_flow *flow, const struct kernel_route *route);
void kernel_flow_move(struct kernel_flow *flow, const struct kernel_chunk *chunk);
void kernel_flow_end(struct kernel_flow *flow);

/* kernel_lines.c: the same for LL and LL128. */
void kernel_lines_move(struct kernel_flow *flow, const struct kernel_chunk *chunk);

/* The reduction for some elements: from `in` and `received` into `sum`. */
void kernel_flow_reduce(const struct kernel_flow *flow, const struct kernel_chunk *chunk,
                        const char *in, const char *const received[], int received_count, char *sum,
                        size_t count);

/* ---- kinds of work --------------------------------------------------------------------------- */

void kernel_run_p2p(struct kernel_block *block, const struct nccl_p2p *works, int count);
void kernel_run_ring(struct kernel_block *block, const struct kernel_function *function,
                     const struct nccl_collective *work);
void kernel_run_tree(struct kernel_block *block, const struct kernel_function *function,
                     const struct nccl_collective *work);

/* A channel's part of a collective, in elements. */
struct kernel_part {
    size_t all, offset, count, chunk;
};
struct kernel_part kernel_part_of(const struct kernel_block *block,
                                  const struct nccl_collective *work, enum nccl_protocol protocol,
                                  size_t element_bytes);

static inline size_t kernel_min(size_t a, size_t b)
{
    return a < b ? a : b;
}

#endif
