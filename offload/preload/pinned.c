/* SPDX-License-Identifier: Apache-2.0
 *
 * pinned.c - pinned allocations of CUDA, placed on the NUMA node nearest to the device of the
 * calling thread. The driver takes the pages in the calling thread, from where that thread's memory
 * policy says, so the policy is set around the call:
 *
 *      policy of the node; the real call; policy of before; count where the pages are
 *
 * Memory that exists and is registered is moved before the call, as pinned pages cannot be.
 * Declarations are ours: names, arguments and numbers as CUDA's manuals give them.
 */
#include "offload/preload/node.h"
#include "offload/preload/real.h"
#include "offload/preload/state.h"

#include <errno.h>

#define EXPORT __attribute__((visibility("default")))

/* ---- around a call --------------------------------------------------------------------------- */

struct placing {
    const struct dpo_preload_options *options; /* NULL: pass through */
    int node, error;
    bool is_placed;
    struct dpo_policy before;
};

static void begin(struct placing *p, const struct dpo_api *api, const void *caller)
{
    p->error = errno;
    p->is_placed = false;
    p->options = dpo_depth++ ? NULL : dpo_preload_options();
    if (!p->options)
        return;
    p->node = p->options->pinned ? dpo_nearest_node(api, caller, p->options->node, p->options->root)
                                 : DPO_NO_NODE;
    p->is_placed = p->node != DPO_NO_NODE && dpo_policy_set(p->node, &p->before);
    errno = p->error;
}

static void count(const struct placing *p, const void *at, size_t bytes)
{
    struct dpo_pages pages = {0};

    dpo_count(DPO_PINNED_CALLS, 1);
    dpo_count(DPO_PINNED_BYTES, bytes);
    dpo_count(DPO_WITHOUT_NODE, !p->is_placed);
    if (!p->is_placed || !p->options->check)
        return;
    dpo_pages_count(at, bytes, p->node, &pages);
    dpo_count(DPO_PAGES, pages.total);
    dpo_count(DPO_PAGES_ON_NODE, pages.on_node);
    dpo_count(DPO_PAGES_UNKNOWN, pages.unknown);
}

/* at: NULL if the call failed. */
static void end(const struct placing *p, const void *at, size_t bytes)
{
    const int error = errno;

    dpo_depth--;
    if (p->is_placed)
        dpo_policy_restore(&p->before);
    if (p->options && at)
        count(p, at, bytes);
    errno = error;
}

/* ---- what is interposed ---------------------------------------------------------------------- */

/* old: memory that the call registers; NULL: it allocates. got: where its memory is if it succeeds.
 * The last are the real call's arguments. */
#define PLACES(name, api, parameters, old, got, ...)                                               \
    EXPORT int name parameters;                                                                    \
    EXPORT int name parameters                                                                     \
    {                                                                                              \
        const void *const caller = __builtin_return_address(0);                                    \
        int(*real) parameters = dpo_real(#name, (void *)name, caller);                             \
        void *const before = old;                                                                  \
        struct placing p;                                                                          \
        if (!real)                                                                                 \
            return (api).absent;                                                                   \
        begin(&p, &(api), caller);                                                                 \
        if (p.is_placed && before)                                                                 \
            dpo_pages_move(before, bytes, p.node);                                                 \
        const int status = real(__VA_ARGS__);                                                      \
        end(&p, status ? NULL : (got), bytes);                                                     \
        return status;                                                                             \
    }
#define ALLOCATES(name, api, parameters, ...)                                                      \
    PLACES(name, api, parameters, NULL, out ? *out : NULL, __VA_ARGS__)
#define REGISTERS(name, api)                                                                       \
    PLACES(name, api, (void *at, size_t bytes, unsigned flags), at, at, at, bytes, flags)

ALLOCATES(cudaHostAlloc, dpo_runtime_api, (void **out, size_t bytes, unsigned flags), out, bytes,
          flags)
ALLOCATES(cudaMallocHost, dpo_runtime_api, (void **out, size_t bytes), out, bytes)
REGISTERS(cudaHostRegister, dpo_runtime_api)
ALLOCATES(cuMemHostAlloc, dpo_driver_api, (void **out, size_t bytes, unsigned flags), out, bytes,
          flags)
ALLOCATES(cuMemAllocHost_v2, dpo_driver_api, (void **out, size_t bytes), out, bytes)
REGISTERS(cuMemHostRegister_v2, dpo_driver_api)
/* The functions of before CUDA 3.2 and 4.1, which the driver still has under these names. */
ALLOCATES(cuMemAllocHost, dpo_driver_api, (void **out, unsigned bytes), out, bytes)
REGISTERS(cuMemHostRegister, dpo_driver_api)
