/* SPDX-License-Identifier: Apache-2.0
 *
 * pinned.c - pinned host memory near a device: mapped, placed, populated, looked at, registered.
 */
#include "device/internal.h"
#include "offload/pinned.h"

#include "base/bind.h"
#include "base/fail.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

static const size_t huge_page = (size_t)2 << 20;

static size_t round_up(size_t n, size_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

/* ---- pages ----------------------------------------------------------------------------------- */

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
static void count_pages(struct dpo_pinned *p)
{
    enum { STEP = 512 };
    static atomic_flag said = ATOMIC_FLAG_INIT, said_elsewhere = ATOMIC_FLAG_INIT;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *pages[STEP];
    int nodes[STEP];

    for (size_t done = 0; done < p->bytes; done += STEP * page) {
        unsigned long count = 0;
        for (; count < STEP && done + count * page < p->bytes; count++)
            pages[count] = p->start + done + count * page;
        if (syscall(SYS_move_pages, 0, count, pages, NULL, nodes, 0)) {
            refused(&said, "the system does not tell where pinned memory is");
            return;
        }
        for (unsigned long i = 0; i < count; i++)
            p->pages_elsewhere += p->node >= 0 && nodes[i] != p->node;
        p->pages += count;
    }
    if (p->pages_elsewhere && !atomic_flag_test_and_set(&said_elsewhere))
        dp_log(DP_LOG_WARN, "offload: %zu pages of pinned memory are not on NUMA node %d",
               p->pages_elsewhere, p->node);
}

/* ---- all of it ------------------------------------------------------------------------------- */

int dpo_pinned_map(struct dp_device *dev, int node, size_t bytes, struct dpo_pinned *out)
{
    struct dpo_pinned p = {.dev = dev, .node = node >= 0 ? node : dp_device_numa_node(dev)};

    p.bytes = round_up(bytes ? bytes : 1, huge_page);
    p.start = bytes <= SIZE_MAX / 2 ? map_pages(p.bytes) : NULL;
    if (!p.start)
        return dp_fail(DP_ENOMEM, "offload: no memory for %zu pinned bytes", bytes);
    place(p.start, p.bytes, p.node);
    populate(p.start, p.bytes);
    count_pages(&p);
    int err = dp_device_register(dev, p.start, p.bytes);
    if (err)
        munmap(p.start, p.bytes);
    else
        *out = p;
    return err;
}

void dpo_pinned_unmap(struct dpo_pinned *p)
{
    if (!p->start)
        return;
    dp_device_unregister(p->dev, p->start);
    munmap(p->start, p->bytes);
    p->start = NULL;
}
