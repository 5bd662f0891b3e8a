/* SPDX-License-Identifier: Apache-2.0
 *
 * kernel_tree.c - an all-reduce up a tree and down again, both ways at once.
 */
#include "simcuda/kernel.h"

#include <pthread.h>
#include <string.h>

struct way {
    struct kernel_block *block;
    const struct kernel_function *function;
    const struct nccl_collective *work;
    struct kernel_route route;
    bool is_down; /* what comes from above is the result */
};

static void run_way(const struct way *way)
{
    const struct nccl_collective *work = way->work;
    struct kernel_flow flow = {
        .block = way->block,
        .math = kernel_math_of(way->function->op, way->function->type, work->arg),
        .protocol = way->function->protocol,
        .slices = 1,
        .slice_steps = 1,
    };
    size_t bytes = flow.math.element_bytes;
    struct kernel_part part = kernel_part_of(way->block, work, flow.protocol, bytes);
    bool is_root = way->block->release->tree(way->block->channel).up < 0;

    kernel_flow_begin(&flow, &way->route);
    for (size_t i = 0; i < part.count && !atomic_load(&way->block->is_aborted); i += part.chunk) {
        size_t at = (part.offset + i) * bytes;
        struct kernel_chunk chunk = {
            .in = way->is_down ? NULL : work->in + at,
            .out = way->is_down || is_root ? work->out + at : NULL,
            .count = kernel_min(part.chunk, part.count - i),
            .is_received = flow.from_count > 0,
            .is_sent = flow.to_count > 0,
            .is_input = !way->is_down,
            .is_result = is_root,
        };
        kernel_flow_move(&flow, &chunk);
    }
    kernel_flow_end(&flow);
}

static void *run_down(void *arg)
{
    run_way(arg);
    return NULL;
}

static void run_both(const struct way *up, struct way *down)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, run_down, down))
        sim_die("no thread for a tree");
    run_way(up);
    pthread_join(thread, NULL);
}

void kernel_run_tree(struct kernel_block *block, const struct kernel_function *function,
                     const struct nccl_collective *work)
{
    struct nccl_tree tree = block->release->tree(block->channel);
    struct way up = {.block = block,
                     .function = function,
                     .work = work,
                     .route = {.from = tree.down, .from_count = 3, .to = &tree.up, .to_count = 1}};
    struct way down = {
        .block = block,
        .function = function,
        .work = work,
        .is_down = true,
        .route = {.from = &tree.up, .from_count = 1, .to = tree.down, .to_count = 3}};

    if (work->is_registered || work->is_net_registered || work->is_arg_pointer)
        sim_die("a tree on registered buffers, or with an operation of the user, is not simulated");
    sim_say("tree: protocol %d, channel %d, up %d, down %d %d %d", function->protocol,
            block->channel_index, tree.up, tree.down[0], tree.down[1], tree.down[2]);
    if (tree.up >= 0) {
        run_both(&up, &down);
        return;
    }
    /* At the root the way up is also the way down. */
    up.route.to = tree.down;
    up.route.to_count = 3;
    run_way(&up);
}
