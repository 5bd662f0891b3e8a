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
#include "offload/preload/nearest.h"
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
    p->node = p->options->pinned ? dpo_nearest_node(api, caller, p->options) : DPO_NO_NODE;
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

/* `name` has the arguments (void **, size_t, unsigned). */
static int allocate(const struct dpo_api *api, const char *name, const void *own,
                    const void *caller, void **out, size_t bytes, unsigned flags)
{
    int (*real)(void **, size_t, unsigned) = dpo_real(name, own, caller);
    struct placing p;

    if (!real)
        return api->absent;
    begin(&p, api, caller);
    const int status = real(out, bytes, flags);
    end(&p, status || !out ? NULL : *out, bytes);
    return status;
}

/* `name` has the arguments (void **, size_t). */
static int allocate_plain(const struct dpo_api *api, const char *name, const void *own,
                          const void *caller, void **out, size_t bytes)
{
    int (*real)(void **, size_t) = dpo_real(name, own, caller);
    struct placing p;

    if (!real)
        return api->absent;
    begin(&p, api, caller);
    const int status = real(out, bytes);
    end(&p, status || !out ? NULL : *out, bytes);
    return status;
}

/* `name` has the arguments (void *, size_t, unsigned). */
static int register_memory(const struct dpo_api *api, const char *name, const void *own,
                           const void *caller, void *at, size_t bytes, unsigned flags)
{
    int (*real)(void *, size_t, unsigned) = dpo_real(name, own, caller);
    struct placing p;

    if (!real)
        return api->absent;
    begin(&p, api, caller);
    if (p.is_placed && at)
        dpo_pages_move(at, bytes, p.node);
    const int status = real(at, bytes, flags);
    end(&p, status ? NULL : at, bytes);
    return status;
}

/* ---- what is interposed ---------------------------------------------------------------------- */

#define CALLER __builtin_return_address(0)

EXPORT int cudaHostAlloc(void **out, size_t bytes, unsigned flags);
EXPORT int cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    return allocate(&dpo_runtime_api, "cudaHostAlloc", cudaHostAlloc, CALLER, out, bytes, flags);
}

EXPORT int cudaMallocHost(void **out, size_t bytes);
EXPORT int cudaMallocHost(void **out, size_t bytes)
{
    return allocate_plain(&dpo_runtime_api, "cudaMallocHost", cudaMallocHost, CALLER, out, bytes);
}

EXPORT int cudaHostRegister(void *at, size_t bytes, unsigned flags);
EXPORT int cudaHostRegister(void *at, size_t bytes, unsigned flags)
{
    return register_memory(&dpo_runtime_api, "cudaHostRegister", cudaHostRegister, CALLER, at,
                           bytes, flags);
}

EXPORT int cuMemHostAlloc(void **out, size_t bytes, unsigned flags);
EXPORT int cuMemHostAlloc(void **out, size_t bytes, unsigned flags)
{
    return allocate(&dpo_driver_api, "cuMemHostAlloc", cuMemHostAlloc, CALLER, out, bytes, flags);
}

EXPORT int cuMemAllocHost_v2(void **out, size_t bytes);
EXPORT int cuMemAllocHost_v2(void **out, size_t bytes)
{
    return allocate_plain(&dpo_driver_api, "cuMemAllocHost_v2", cuMemAllocHost_v2, CALLER, out,
                          bytes);
}

EXPORT int cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags);
EXPORT int cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags)
{
    return register_memory(&dpo_driver_api, "cuMemHostRegister_v2", cuMemHostRegister_v2, CALLER,
                           at, bytes, flags);
}

/* The functions of before CUDA 3.2 and 4.1, which the driver still has under these names. */

EXPORT int cuMemAllocHost(void **out, unsigned bytes);
EXPORT int cuMemAllocHost(void **out, unsigned bytes)
{
    int (*real)(void **, unsigned) = dpo_real("cuMemAllocHost", cuMemAllocHost, CALLER);
    struct placing p;

    if (!real)
        return dpo_driver_api.absent;
    begin(&p, &dpo_driver_api, CALLER);
    const int status = real(out, bytes);
    end(&p, status || !out ? NULL : *out, bytes);
    return status;
}

EXPORT int cuMemHostRegister(void *at, size_t bytes, unsigned flags);
EXPORT int cuMemHostRegister(void *at, size_t bytes, unsigned flags)
{
    return register_memory(&dpo_driver_api, "cuMemHostRegister", cuMemHostRegister, CALLER, at,
                           bytes, flags);
}
