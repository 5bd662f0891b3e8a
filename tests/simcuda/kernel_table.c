/* SPDX-License-Identifier: Apache-2.0
 *
 * kernel_table.c - NCCL numbers its device functions when it is built. Its library holds a table
 * from all combinations, in a fixed order, to the number that carries each out, or -1; we read it
 * backwards.
 */
#include "simcuda/kernel.h"

#include <pthread.h>

enum { MOST_FUNCTIONS = 4096 };

static struct kernel_function functions[MOST_FUNCTIONS];
static pthread_once_t once = PTHREAD_ONCE_INIT;
static const int *next_row;
static const struct nccl_release *the_release;

static const enum nccl_algorithm gathering[] = {NCCL_RING, NCCL_COLLNET_DIRECT, NCCL_NVLS,
                                                NCCL_PAT};
static const enum nccl_algorithm reducing[] = {
    NCCL_TREE, NCCL_RING, NCCL_COLLNET_DIRECT, NCCL_COLLNET_CHAIN, NCCL_NVLS, NCCL_NVLS_TREE,
};
static const enum nccl_algorithm ring_only[] = {NCCL_RING};

/* Several combinations may share a number; the first is the one that is named. */
static void add(struct kernel_function function)
{
    int id = *next_row++;

    if (id >= MOST_FUNCTIONS)
        sim_die("function %d is out of the table", id);
    if (id < 0 || functions[id].is_known)
        return;
    function.is_known = true;
    functions[id] = function;
}

static void add_protocols(struct kernel_function function, const enum nccl_algorithm *algorithms,
                          int count)
{
    for (int a = 0; a < count; a++)
        for (int p = 0; p < NCCL_PROTOCOLS; p++) {
            function.algorithm = algorithms[a];
            function.protocol = (enum nccl_protocol)p;
            add(function);
        }
}

static void add_types(enum nccl_function which, const enum nccl_algorithm *algorithms, int count)
{
    for (int op = 0; op < NCCL_DEVICE_OPS; op++)
        for (int type = 0; type < NCCL_TYPES; type++) {
            struct kernel_function function = {
                .function = which, .op = (enum nccl_device_op)op, .type = type};
            add_protocols(function, algorithms, count);
        }
}

static void read_table(void)
{
    struct kernel_function function = {
        .function = NCCL_SEND_RECV, .algorithm = NCCL_RING, .protocol = NCCL_SIMPLE};

    next_row = sim_nccl_symbol("ncclDevFuncRowToId");
    if (!next_row)
        sim_die("libnccl has no table of its device functions");
    add(function);
    function.function = NCCL_ALL_GATHER;
    add_protocols(function, gathering, 4);
    function.function = NCCL_BROADCAST;
    add_protocols(function, ring_only, 1);
    if (the_release->has_all_gather_v)
        next_row += NCCL_PROTOCOLS;
    add_types(NCCL_ALL_REDUCE, reducing, 6);
    add_types(NCCL_REDUCE, ring_only, 1);
    add_types(NCCL_REDUCE_SCATTER, gathering, 4);
}

struct kernel_function kernel_function_of(unsigned id, const struct nccl_release *release)
{
    the_release = release;
    pthread_once(&once, read_table);
    return id < MOST_FUNCTIONS ? functions[id] : (struct kernel_function){.is_known = false};
}
