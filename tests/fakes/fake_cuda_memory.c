/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* memfd_create */
#include "fakes/fake_cuda_impl.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct buffer *pinned, *registered;

bool fake_map_memory(CUcontext c)
{
    int fd = memfd_create("fake-cuda", 0);

    if (fd < 0 || ftruncate(fd, (off_t)FAKE_CUDA_MEMORY_BYTES))
        return false;
    c->memory = mmap(NULL, FAKE_CUDA_MEMORY_BYTES, PROT_NONE, MAP_SHARED, fd, 0);
    c->reach = mmap(NULL, FAKE_CUDA_MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return c->memory != MAP_FAILED && c->reach != MAP_FAILED;
}

static struct CUctx_st *owner(const void *ptr)
{
    for (int i = 0; i < FAKE_CUDA_DEVICES; i++) {
        struct CUctx_st *c = &fake.contexts[i];
        if (c->memory && (const char *)ptr >= c->memory &&
            (const char *)ptr < c->memory + FAKE_CUDA_MEMORY_BYTES)
            return c;
    }
    return NULL;
}

char *fake_reach(const void *ptr)
{
    struct CUctx_st *c = owner(ptr);

    return c ? c->reach + ((const char *)ptr - c->memory) : (char *)(uintptr_t)ptr;
}

bool fake_accessible(CUcontext context, const void *ptr, size_t bytes)
{
    struct CUctx_st *c = owner(ptr);

    if (!c)
        return ptr != NULL;
    for (struct buffer *b = c == context ? c->buffers : NULL; b; b = b->next)
        if ((const char *)ptr >= b->start && (const char *)ptr + bytes <= b->start + b->bytes)
            return true;
    return false;
}

/* Put a buffer of `bytes` at the first gap of the list, which is sorted by address. */
static CUresult place(struct CUctx_st *c, size_t bytes, CUdeviceptr *out)
{
    size_t rounded = (bytes + 511) & ~(size_t)511;
    struct buffer **at = &c->buffers, *b;
    char *start = c->memory;

    if (!bytes || bytes > FAKE_CUDA_MEMORY_BYTES)
        return bytes ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    for (; *at && (size_t)((*at)->start - start) < rounded; at = &(*at)->next)
        start = (*at)->start + (*at)->bytes;
    if ((size_t)(c->memory + FAKE_CUDA_MEMORY_BYTES - start) < rounded || !(b = malloc(sizeof(*b))))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *b = (struct buffer){*at, start, rounded};
    *at = b;
    fake.alive++;
    memset(fake_reach(start), 0xA5, rounded); /* nobody may count on zeroes */
    *out = (CUdeviceptr)(uintptr_t)start;
    return CUDA_SUCCESS;
}

static bool drop(struct buffer **list, const void *ptr)
{
    for (; *list; list = &(*list)->next) {
        struct buffer *b = *list;
        if (b->start != ptr)
            continue;
        *list = b->next;
        free(b);
        fake.alive--;
        return true;
    }
    return false;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes)
{
    BEGIN(true)
    return fake_end(place(fake_current(), bytes, out));
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr ptr)
{
    BEGIN(true)
    bool found = drop(&fake_current()->buffers, (void *)(uintptr_t)ptr);
    return fake_end(found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

/* As an H100's driver: *out is NULL after a failure, and a size that no machine has is an invalid value. */
EXPORT CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned flags)
{
    (void)flags;
    BEGIN(true)
    *out = NULL;
    if (bytes > SIZE_MAX / 2)
        return fake_end(CUDA_ERROR_INVALID_VALUE);
    struct buffer *b = malloc(sizeof(*b));
    void *ptr = bytes < FAKE_CUDA_MEMORY_BYTES ? aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095)
                                               : NULL;
    if (!b || !ptr) {
        free(b);
        free(ptr);
        return fake_end(CUDA_ERROR_OUT_OF_MEMORY);
    }
    *b = (struct buffer){pinned, ptr, bytes};
    pinned = b;
    fake.alive++;
    *out = ptr;
    return fake_end(CUDA_SUCCESS);
}

EXPORT CUresult cuMemFreeHost(void *ptr)
{
    BEGIN(true)
    if (!drop(&pinned, ptr))
        return fake_end(CUDA_ERROR_INVALID_VALUE);
    free(ptr);
    return fake_end(CUDA_SUCCESS);
}

static bool overlaps(const struct buffer *b, const char *start, size_t bytes)
{
    return start < b->start + b->bytes && b->start < start + bytes;
}

EXPORT CUresult cuMemHostRegister_v2(void *ptr, size_t bytes, unsigned flags)
{
    (void)flags;
    BEGIN(true)
    for (struct buffer *b = registered; b; b = b->next)
        if (overlaps(b, ptr, bytes))
            return fake_end(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    struct buffer *b = malloc(sizeof(*b));
    if (!b)
        return fake_end(CUDA_ERROR_OUT_OF_MEMORY);
    *b = (struct buffer){registered, ptr, bytes};
    registered = b;
    fake.alive++;
    return fake_end(CUDA_SUCCESS);
}

EXPORT CUresult cuMemHostUnregister(void *ptr)
{
    BEGIN(true)
    return fake_end(drop(&registered, ptr) ? CUDA_SUCCESS
                                           : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}
