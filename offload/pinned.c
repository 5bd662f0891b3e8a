/* SPDX-License-Identifier: Apache-2.0
 *
 * pinned.c - pinned host memory near a device, in slabs that are mapped, placed, populated and
 * pinned once, and given out in blocks.
 *
 *      slab    | used | free       | used | free |      blocks by address; neighbours that are free
 *                                                        are joined at once
 */
#include <dualpipe/offload.h>

#include "base/bind.h"
#include "base/fail.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

enum { ALIGNMENT = 256 };
static const size_t huge_page = (size_t)2 << 20, default_slab = (size_t)64 << 20;

struct block {
    struct block *next;
    size_t offset, bytes;
    bool used;
};

struct slab {
    struct slab *next;
    char *start;
    size_t bytes;
    struct block *blocks;
};

struct dp_pinned {
    struct dp_device *dev;
    int node;
    size_t slab_bytes;
    pthread_mutex_t lock; /* of all below */
    struct slab *slabs;
    struct dp_pinned_report report;
};

static size_t round_up(size_t n, size_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

/* ---- a slab's pages -------------------------------------------------------------------------- */

/* Whole huge pages, so that the kernel can use them; the rest of the mapping is given back. */
static char *map_pages(size_t bytes)
{
    char *at =
        mmap(NULL, bytes + huge_page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (at == MAP_FAILED)
        return NULL;
    size_t before = round_up((uintptr_t)at, huge_page) - (uintptr_t)at;
    if (before)
        munmap(at, before);
    munmap(at + before + bytes, huge_page - before);
    return at + before;
}

/* The kernel may refuse every one of these wishes; the memory is good without them. */
static void refused(atomic_flag *said, const char *what)
{
    if (!atomic_flag_test_and_set(said))
        dp_log(DP_LOG_WARN, "offload: %s: %s; going on without", what, strerror(errno));
}

static void place(char *at, size_t bytes, int node)
{
    static atomic_flag said_node = ATOMIC_FLAG_INIT, said_huge = ATOMIC_FLAG_INIT;

    if (node >= 0 && node < DP_BIND_NODES) {
        errno = dp_prefer_memory_at(at, bytes, node);
        if (errno)
            refused(&said_node, "the system does not let pinned memory be placed on a NUMA node");
    }
    if (madvise(at, bytes, MADV_HUGEPAGE))
        refused(&said_huge, "the system has no huge pages for pinned memory");
}

static void populate(char *at, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    if (!madvise(at, bytes, MADV_POPULATE_WRITE))
        return;
    for (size_t i = 0; i < bytes; i += page)
        at[i] = 0;
}

/* Where the pages are, as move_pages tells if it is not told where to move them. */
static void count_pages(struct dp_pinned *p, char *at, size_t bytes)
{
    enum { STEP = 512 };
    static atomic_flag said = ATOMIC_FLAG_INIT, said_elsewhere = ATOMIC_FLAG_INIT;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), elsewhere = 0;
    void *pages[STEP];
    int nodes[STEP];

    for (size_t done = 0; done < bytes; done += STEP * page) {
        unsigned long count = 0;
        for (; count < STEP && done + count * page < bytes; count++)
            pages[count] = at + done + count * page;
        if (syscall(SYS_move_pages, 0, count, pages, NULL, nodes, 0)) {
            refused(&said, "the system does not tell where pinned memory is");
            return;
        }
        for (unsigned long i = 0; i < count; i++)
            elsewhere += p->node >= 0 && nodes[i] != p->node;
        p->report.pages += count;
    }
    p->report.pages_elsewhere += elsewhere;
    if (elsewhere && !atomic_flag_test_and_set(&said_elsewhere))
        dp_log(DP_LOG_WARN, "offload: %zu pages of pinned memory are not on NUMA node %d",
               elsewhere, p->node);
}

/* ---- slabs ----------------------------------------------------------------------------------- */

static void free_slab(struct dp_pinned *p, struct slab *slab)
{
    struct block *next;

    for (struct block *b = slab->blocks; b; b = next) {
        next = b->next;
        free(b);
    }
    if (slab->start) {
        dp_device_unregister(p->dev, slab->start);
        munmap(slab->start, slab->bytes);
    }
    free(slab);
}

static int add_slab(struct dp_pinned *p, size_t bytes)
{
    size_t size = round_up(bytes > p->slab_bytes ? bytes : p->slab_bytes, huge_page);
    struct slab *slab = calloc(1, sizeof(*slab));
    struct block *block = calloc(1, sizeof(*block));
    char *start = slab && block ? map_pages(size) : NULL;

    if (!start) {
        free(slab);
        free(block);
        return dp_fail(DP_ENOMEM, "offload: no memory for %zu pinned bytes", size);
    }
    place(start, size, p->node);
    populate(start, size);
    count_pages(p, start, size);
    *block = (struct block){.bytes = size};
    int err = dp_device_register(p->dev, start, size);
    if (err) {
        munmap(start, size);
        free(slab);
        free(block);
        return err;
    }
    *slab = (struct slab){p->slabs, start, size, block};
    p->slabs = slab;
    p->report.slab_bytes += size;
    return 0;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* Take `bytes` from a free block; what is left of it becomes one of its own. */
static bool cut(struct block *b, size_t bytes)
{
    struct block *rest = b->bytes > bytes ? malloc(sizeof(*rest)) : NULL;

    if (b->bytes > bytes && !rest)
        return false;
    if (rest) {
        *rest = (struct block){b->next, b->offset + bytes, b->bytes - bytes, false};
        b->next = rest;
        b->bytes = bytes;
    }
    b->used = true;
    return true;
}

static void *take(struct dp_pinned *p, size_t bytes)
{
    for (struct slab *slab = p->slabs; slab; slab = slab->next)
        for (struct block *b = slab->blocks; b; b = b->next)
            if (!b->used && b->bytes >= bytes && cut(b, bytes))
                return slab->start + b->offset;
    return NULL;
}

static void join(struct block *b)
{
    while (b->next && !b->used && !b->next->used) {
        struct block *next = b->next;
        b->bytes += next->bytes;
        b->next = next->next;
        free(next);
    }
}

/* Give back the block at ptr. Its size; 0: it is none. */
static size_t put_back(struct slab *slab, const char *ptr)
{
    struct block *before = NULL;

    for (struct block *b = slab->blocks; b; before = b, b = b->next) {
        if (slab->start + b->offset != ptr || !b->used)
            continue;
        size_t bytes = b->bytes;
        b->used = false;
        join(b);
        if (before)
            join(before);
        return bytes;
    }
    return 0;
}

/* ---- for users ------------------------------------------------------------------------------- */

int dp_pinned_new(struct dp_device *dev, const struct dp_pinned_config *config,
                  struct dp_pinned **out)
{
    struct dp_pinned_config c = config ? *config : (struct dp_pinned_config){.numa_node = -1};

    if (!dev)
        return dp_fail(DP_EINVAL, "offload: pinned memory for no device");
    if (c.numa_node < -1 || c.numa_node >= DP_BIND_NODES)
        return dp_fail(DP_EINVAL, "offload: pinned memory on NUMA node %d: expected -1, or a node",
                       c.numa_node);
    struct dp_pinned *p = calloc(1, sizeof(*p));
    if (!p)
        return dp_fail(DP_ENOMEM, "offload: no memory for a pool");
    p->dev = dev;
    p->node = c.numa_node >= 0 ? c.numa_node : dp_device_numa_node(dev);
    p->slab_bytes = c.slab_bytes ? c.slab_bytes : default_slab;
    p->report.numa_node = p->node;
    pthread_mutex_init(&p->lock, NULL);
    *out = p;
    return 0;
}

void dp_pinned_free(struct dp_pinned *p)
{
    struct slab *next;

    if (!p)
        return;
    for (struct slab *slab = p->slabs; slab; slab = next) {
        next = slab->next;
        free_slab(p, slab);
    }
    pthread_mutex_destroy(&p->lock);
    free(p);
}

int dp_pinned_take(struct dp_pinned *p, size_t bytes, void **out)
{
    size_t size = round_up(bytes ? bytes : 1, ALIGNMENT);
    void *ptr = NULL;
    int err = 0;

    if (bytes > SIZE_MAX / 2)
        return dp_fail(DP_ENOMEM, "offload: no memory for %zu pinned bytes", bytes);
    pthread_mutex_lock(&p->lock);
    ptr = take(p, size);
    if (!ptr) {
        err = add_slab(p, size);
        ptr = err ? NULL : take(p, size);
    }
    if (ptr)
        p->report.used_bytes += size;
    pthread_mutex_unlock(&p->lock);
    if (!ptr)
        return err ? err : dp_fail(DP_ENOMEM, "offload: no memory for %zu pinned bytes", bytes);
    *out = ptr;
    return 0;
}

int dp_pinned_give(struct dp_pinned *p, void *ptr)
{
    size_t bytes = 0;

    if (!ptr)
        return 0;
    pthread_mutex_lock(&p->lock);
    for (struct slab *slab = p->slabs; slab && !bytes; slab = slab->next)
        bytes = put_back(slab, ptr);
    p->report.used_bytes -= bytes;
    pthread_mutex_unlock(&p->lock);
    return bytes ? 0 : dp_fail(DP_EINVAL, "offload: %p was not taken from this pool", ptr);
}

void dp_pinned_report(struct dp_pinned *p, struct dp_pinned_report *out)
{
    pthread_mutex_lock(&p->lock);
    *out = p->report;
    pthread_mutex_unlock(&p->lock);
}
