/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h" /* GNU extensions: memfd_create */

#include "base/shared.h"

#include "base/bind.h"
#include "base/fail.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; older kernels refuse it */
#endif

static const size_t huge_page = (size_t)2 << 20;

/* A piece. A reader takes the id, then the rest, then the id again: where that has not changed, all of
 * it belongs together, for an id is never used twice. */
struct piece {
    atomic_uint_least64_t id; /* 0: free; BUSY: a thread is writing the rest */
    atomic_uintptr_t base;
    atomic_size_t bytes;
    atomic_int fd;
    atomic_int owner; /* the process that has made it */
};
#define BUSY UINT64_MAX
#define ELSEWHERE (UINT64_C(1) << 63) /* so that no two have the same id */

static struct piece pieces[DP_SHARED_MAX];
static atomic_uint_least64_t last_id;
static atomic_size_t in_use; /* pieces beyond were never used */
static _Atomic(dp_shared_find_fn *) elsewhere;

/* ---- the list -------------------------------------------------------------------------------- */

static bool read_piece(struct piece *p, uint64_t *id, uintptr_t *base, struct dp_shared_place *out)
{
    *id = atomic_load_explicit(&p->id, memory_order_acquire);
    if (!*id || *id == BUSY)
        return false;
    *base = atomic_load_explicit(&p->base, memory_order_acquire);
    *out = (struct dp_shared_place){
        .id = *id,
        .bytes = atomic_load_explicit(&p->bytes, memory_order_acquire),
        .fd = atomic_load_explicit(&p->fd, memory_order_acquire),
    };
    return atomic_load_explicit(&p->id, memory_order_relaxed) == *id;
}

static bool find_here(const void *ptr, size_t len, struct dp_shared_place *out)
{
    const size_t count = atomic_load_explicit(&in_use, memory_order_acquire);
    const uintptr_t at = (uintptr_t)ptr;
    struct dp_shared_place place;
    uintptr_t base;
    uint64_t id;

    for (size_t i = 0; i < count; i++) {
        if (!read_piece(&pieces[i], &id, &base, &place) || at < base ||
            at - base >= place.bytes)
            continue;
        place.offset = at - base;
        if (len > place.bytes - place.offset)
            return false;
        *out = place;
        return true;
    }
    return false;
}

void dp_shared_ask(dp_shared_find_fn *find)
{
    atomic_store_explicit(&elsewhere, find, memory_order_release);
}

bool dp_shared_find(const void *ptr, size_t len, struct dp_shared_place *out)
{
    if (find_here(ptr, len, out))
        return true;
    dp_shared_find_fn *find = atomic_load_explicit(&elsewhere, memory_order_acquire);
    if (!find || !find(ptr, len, out))
        return false;
    out->id |= ELSEWHERE;
    return true;
}

/* A free entry, for this caller alone. NULL: there is none. */
static struct piece *claim(void)
{
    for (size_t i = 0; i < DP_SHARED_MAX; i++) {
        uint64_t expected = 0;
        if (!atomic_compare_exchange_strong(&pieces[i].id, &expected, BUSY))
            continue;
        size_t count = atomic_load(&in_use);
        while (count < i + 1 && !atomic_compare_exchange_weak(&in_use, &count, i + 1))
            ;
        return &pieces[i];
    }
    return NULL;
}

static void publish(struct piece *p, void *base, size_t bytes, int fd)
{
    atomic_store_explicit(&p->base, (uintptr_t)base, memory_order_release);
    atomic_store_explicit(&p->bytes, bytes, memory_order_release);
    atomic_store_explicit(&p->fd, fd, memory_order_release);
    atomic_store_explicit(&p->owner, (int)getpid(), memory_order_release);
    atomic_store_explicit(&p->id, atomic_fetch_add(&last_id, 1) + 1, memory_order_release);
}

/* The piece that begins at ptr is off the list, and this caller's alone. */
static struct piece *withdraw(const void *ptr)
{
    for (size_t i = 0; i < atomic_load(&in_use); i++) {
        uint64_t id = atomic_load(&pieces[i].id);
        if (id && id != BUSY && atomic_load(&pieces[i].base) == (uintptr_t)ptr &&
            atomic_compare_exchange_strong(&pieces[i].id, &id, BUSY))
            return &pieces[i];
    }
    return NULL;
}

/* ---- memory ---------------------------------------------------------------------------------- */

bool dp_shared_is_sealed(int fd)
{
    const int seals = fcntl(fd, F_GET_SEALS);

    return seals >= 0 && (seals & F_SEAL_SHRINK);
}

/* What is short may be there again; what a sandbox or an old kernel denies is denied for good, is
 * said once, and the caller has another way. */
static int no_file(size_t bytes, int error)
{
    static atomic_flag has_said = ATOMIC_FLAG_INIT;

    if (error == EMFILE || error == ENFILE)
        return dp_fail(DP_EIO, "no shared memory: %s", dp_errno_text(error));
    if (error == ENOMEM || error == ENOSPC)
        return dp_fail(DP_ENOMEM, "no %zu bytes of shared memory: %s", bytes, strerror(error));
    if (!atomic_flag_test_and_set(&has_said))
        dp_log(DP_LOG_WARN, "memfd_create is denied, so this process shares no memory: %s",
               strerror(error));
    return dp_fail_quietly(DP_EUNSUPPORTED, "no shared memory: %s", strerror(error));
}

int dp_shared_file(size_t bytes, int *out)
{
    const int fd = memfd_create("dualpipe", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0)
        return no_file(bytes, errno);
    if (ftruncate(fd, (off_t)bytes) ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
        const int error = errno;
        close(fd);
        return no_file(bytes, error);
    }
    *out = fd;
    return 0;
}

/* Map the file at a multiple of `align`: take more of the address space, and give back the rest. */
static void *map_aligned(int fd, size_t bytes, size_t align)
{
    char *room = mmap(NULL, bytes + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                      -1, 0);

    if (room == MAP_FAILED)
        return NULL;
    const size_t before = -(uintptr_t)room % align;
    void *at = mmap(room + before, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    if (at == MAP_FAILED) {
        munmap(room, bytes + align);
        return NULL;
    }
    if (before)
        munmap(room, before);
    munmap(room + before + bytes, align - before);
    return at;
}

static int place_on(void *at, size_t bytes, int node)
{
    const int error = node < 0 ? 0 : dp_prefer_memory_at(at, bytes, node);

    return !error ? 0
                  : dp_fail(error == EINVAL ? DP_EINVAL : DP_EUNSUPPORTED,
                            "shared memory on NUMA node %d: %s", node, strerror(error));
}

/* All pages now: what is missing shows here, and not as a fault in the middle of a message. */
static int populate(void *at, size_t bytes, int fd)
{
    madvise(at, bytes, MADV_HUGEPAGE); /* a wish */
    int error = madvise(at, bytes, MADV_POPULATE_WRITE) ? errno : 0;
    if (error == EINVAL)
        error = fallocate(fd, 0, 0, (off_t)bytes) ? errno : 0;
    if (error)
        return dp_fail(DP_ENOMEM, "no %zu bytes of shared memory: %s", bytes, strerror(error));
    return 0;
}

static int map(size_t bytes, int node, int fd, void **out)
{
    const size_t align = bytes < huge_page ? (size_t)sysconf(_SC_PAGESIZE) : huge_page;
    void *at = map_aligned(fd, bytes, align);

    if (!at)
        return dp_fail(DP_ENOMEM, "cannot map %zu bytes of shared memory: %s", bytes,
                       strerror(errno));
    int err = place_on(at, bytes, node);
    if (!err)
        err = populate(at, bytes, fd);
    if (err)
        munmap(at, bytes);
    else
        *out = at;
    return err;
}

static int check(size_t bytes, int node)
{
    if (!bytes || bytes > SIZE_MAX / 8)
        return dp_fail(bytes ? DP_ENOMEM : DP_EINVAL,
                       "%zu bytes of shared memory: expected at least 1, and what this machine has",
                       bytes);
    if (node < -1 || node >= DP_BIND_NODES)
        return dp_fail(DP_EINVAL, "shared memory on NUMA node %d: expected -1, or a node from 0 on",
                       node);
    return 0;
}

int dp_shared_alloc(size_t bytes, int numa_node, void **out)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int fd = -1, err = check(bytes, numa_node);

    if (err)
        return err;
    bytes = (bytes + page - 1) / page * page;
    struct piece *p = claim();
    if (!p)
        return dp_fail(DP_ENOMEM, "%d pieces of shared memory are there already: expected fewer",
                       DP_SHARED_MAX);
    err = dp_shared_file(bytes, &fd);
    if (!err)
        err = map(bytes, numa_node, fd, out);
    if (err) {
        if (fd >= 0)
            close(fd);
        atomic_store(&p->id, 0);
        return err;
    }
    publish(p, *out, bytes, fd);
    return 0;
}

/* The pages are taken out of the file, so that they go back although others have it mapped; what a
 * child frees its parent keeps. */
int dp_shared_free(void *ptr)
{
    if (!ptr)
        return 0;
    struct piece *p = withdraw(ptr);
    if (!p)
        return dp_fail(DP_EINVAL, "freeing what is no shared memory");
    const size_t bytes = atomic_load(&p->bytes);
    const int fd = atomic_load(&p->fd);
    if (atomic_load(&p->owner) == (int)getpid())
        fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes);
    munmap(ptr, bytes);
    close(fd);
    atomic_store(&p->id, 0);
    return 0;
}
