/* SPDX-License-Identifier: Apache-2.0
 *
 * sim_copy.c - copies in a stream's order. As with CUDA, ordinary memory is read before the call
 * returns, and ordinary memory that is written to is complete when the call returns.
 */
#include "simcuda/sim.h"

#include <stdlib.h>
#include <string.h>

struct copy {
    char *dst;
    const char *src;
    size_t bytes;
    char *staged; /* to be freed; NULL: src is not ours */
};

struct fill {
    char *dst;
    int value;
    size_t bytes;
};

static void do_copy(void *arg)
{
    struct copy *copy = arg;

    memmove(copy->dst, copy->src, copy->bytes);
    free(copy->staged);
}

static void do_fill(void *arg)
{
    struct fill *fill = arg;

    memset(fill->dst, fill->value, fill->bytes);
}

static bool is_ordinary(const void *ptr)
{
    return sim_memory_find(ptr).kind == SIM_MEMORY_NONE;
}

static char *stage(const void *src, size_t bytes)
{
    char *staged = malloc(bytes + 1);

    if (!staged)
        sim_die("no memory for a copy of %zu bytes", bytes);
    return memcpy(staged, src, bytes);
}

SIM_EXPORT int cudaMemcpyAsync(void *dst, const void *src, size_t bytes, int kind,
                               struct sim_stream *stream)
{
    struct copy copy = {.dst = dst, .src = src, .bytes = bytes};

    (void)kind;
    SIM_BEGIN();
    if (sim_stream_captures(stream) && (is_ordinary(src) || is_ordinary(dst)))
        return 0; /* staged when the graph runs, which none of these does */
    if (is_ordinary(src))
        copy.src = copy.staged = stage(src, bytes);
    sim_stream_give(stream, do_copy, &copy, sizeof(copy));
    if (is_ordinary(dst))
        sim_stream_drain(stream);
    return 0;
}

static int copy_now(void *dst, const void *src, size_t bytes, struct sim_stream *stream)
{
    sim_stream_drain(stream);
    memmove(dst, src, bytes);
    return 0;
}

SIM_EXPORT int cudaMemcpy(void *dst, const void *src, size_t bytes, int kind)
{
    (void)kind;
    SIM_BEGIN();
    return copy_now(dst, src, bytes, SIM_STREAM_LEGACY);
}

SIM_EXPORT int cudaMemcpy_ptds(void *dst, const void *src, size_t bytes, int kind)
{
    (void)kind;
    SIM_BEGIN();
    return copy_now(dst, src, bytes, SIM_STREAM_PER_THREAD);
}

SIM_EXPORT int cudaMemcpyAsync_ptsz(void *dst, const void *src, size_t bytes, int kind,
                                    struct sim_stream *stream)
{
    return cudaMemcpyAsync(dst, src, bytes, kind, stream ? stream : SIM_STREAM_PER_THREAD);
}

/* The driver's, by direction: an address of the device is a number. */
#define COPIES(name, in_stream, to_type, from_type)                                                \
    SIM_EXPORT int name(to_type dst, from_type src, size_t bytes)                                  \
    {                                                                                              \
        return copy_now((void *)dst, (const void *)src, bytes, SIM_STREAM_LEGACY);                 \
    }                                                                                              \
    SIM_EXPORT int name##_ptds(to_type dst, from_type src, size_t bytes)                           \
    {                                                                                              \
        return copy_now((void *)dst, (const void *)src, bytes, SIM_STREAM_PER_THREAD);             \
    }                                                                                              \
    SIM_EXPORT int in_stream(to_type dst, from_type src, size_t bytes, struct sim_stream *stream)  \
    {                                                                                              \
        SIM_BEGIN();                                                                               \
        sim_queued();                                                                              \
        return cudaMemcpyAsync((void *)dst, (const void *)src, bytes, 0, stream);                  \
    }                                                                                              \
    SIM_EXPORT int in_stream##_ptsz(to_type dst, from_type src, size_t bytes,                      \
                                    struct sim_stream *stream)                                     \
    {                                                                                              \
        return cudaMemcpyAsync((void *)dst, (const void *)src, bytes, 0,                           \
                               stream ? stream : SIM_STREAM_PER_THREAD);                           \
    }

COPIES(cuMemcpyHtoD_v2, cuMemcpyHtoDAsync_v2, uintptr_t, const void *)
COPIES(cuMemcpyDtoH_v2, cuMemcpyDtoHAsync_v2, void *, uintptr_t)
COPIES(cuMemcpy, cuMemcpyAsync, uintptr_t, uintptr_t)

SIM_EXPORT int cudaMemsetAsync(void *dst, int value, size_t bytes, struct sim_stream *stream)
{
    sim_stream_give(stream, do_fill, &(struct fill){dst, value, bytes}, sizeof(struct fill));
    return 0;
}

SIM_EXPORT int cudaMemset(void *dst, int value, size_t bytes)
{
    sim_stream_drain(NULL);
    memset(dst, value, bytes);
    return 0;
}
