/* SPDX-License-Identifier: Apache-2.0
 *
 * copies.c - copies of CUDA's runtime, counted by direction. Nothing is changed: the real function
 * is called with the same arguments, and what it returns is returned. The names with _ptds and
 * _ptsz are those that programs built for per-thread default streams call.
 */
#include "offload/preload/real.h"
#include "offload/preload/state.h"

#include <errno.h>

#define EXPORT __attribute__((visibility("default")))
enum { RUNTIME_ABSENT = 35 /* cudaErrorInsufficientDriver */ };

/* cudaMemcpyKind: 1 host to device, 2 device to host. */
static void count(size_t bytes, int kind)
{
    static const enum dpo_counter counters[] = {
        DPO_COPIES_OTHER,
        DPO_COPIES_TO_DEVICE,
        DPO_COPIES_TO_HOST,
    };
    const enum dpo_counter c = kind == 1 || kind == 2 ? counters[kind] : DPO_COPIES_OTHER;

    dpo_count(c, 1);
    dpo_count(c + 1, bytes);
}

/* Behind the call: keeps the caller's errno. */
static int finish(int status, size_t bytes, int kind)
{
    const int error = errno;

    if (!--dpo_depth && !status && dpo_preload_options())
        count(bytes, kind);
    errno = error;
    return status;
}

static int copy(const char *name, const void *own, const void *caller, void *to, const void *from,
                size_t bytes, int kind)
{
    int (*real)(void *, const void *, size_t, int) = dpo_real(name, own, caller);

    if (!real)
        return RUNTIME_ABSENT;
    dpo_depth++;
    return finish(real(to, from, bytes, kind), bytes, kind);
}

static int copy_in_stream(const char *name, const void *own, const void *caller, void *to,
                          const void *from, size_t bytes, int kind, void *stream)
{
    int (*real)(void *, const void *, size_t, int, void *) = dpo_real(name, own, caller);

    if (!real)
        return RUNTIME_ABSENT;
    dpo_depth++;
    return finish(real(to, from, bytes, kind, stream), bytes, kind);
}

#define CALLER __builtin_return_address(0)

EXPORT int cudaMemcpy(void *to, const void *from, size_t bytes, int kind);
EXPORT int cudaMemcpy(void *to, const void *from, size_t bytes, int kind)
{
    return copy("cudaMemcpy", cudaMemcpy, CALLER, to, from, bytes, kind);
}

EXPORT int cudaMemcpy_ptds(void *to, const void *from, size_t bytes, int kind);
EXPORT int cudaMemcpy_ptds(void *to, const void *from, size_t bytes, int kind)
{
    return copy("cudaMemcpy_ptds", cudaMemcpy_ptds, CALLER, to, from, bytes, kind);
}

EXPORT int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream);
EXPORT int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream)
{
    return copy_in_stream("cudaMemcpyAsync", cudaMemcpyAsync, CALLER, to, from, bytes, kind,
                          stream);
}

EXPORT int cudaMemcpyAsync_ptsz(void *to, const void *from, size_t bytes, int kind, void *stream);
EXPORT int cudaMemcpyAsync_ptsz(void *to, const void *from, size_t bytes, int kind, void *stream)
{
    return copy_in_stream("cudaMemcpyAsync_ptsz", cudaMemcpyAsync_ptsz, CALLER, to, from, bytes,
                          kind, stream);
}
