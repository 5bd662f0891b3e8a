/* SPDX-License-Identifier: Apache-2.0
 *
 * memory.c - registrations: those of a device, each once, and those of a connection, which has the same
 * memory registered with the device of each of its rails.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "nccl-plugin/nccl_abi.h"
#include "nccl-plugin/verbs/queues.h"
#include "nccl-plugin/verbs/load.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const unsigned ACCESS =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

/* ---- the cache ------------------------------------------------------------------------------- */

static int compare(const struct dpn_mr_entry *a, const struct dpn_mr_entry *b)
{
    if (a->from != b->from)
        return a->from < b->from ? -1 : 1;
    if (a->to != b->to)
        return a->to < b->to ? -1 : 1;
    return (int)a->is_dma_buf - (int)b->is_dma_buf;
}

/* The index at which this entry is, or where it is to be inserted. */
static int find(const struct dpn_mr_cache *cache, const struct dpn_mr_entry *wanted)
{
    int low = 0, high = cache->count;

    while (low < high) {
        const int middle = (low + high) / 2;
        if (compare(&cache->entries[middle], wanted) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int make_room(struct dpn_mr_cache *cache)
{
    if (cache->count < cache->room)
        return 0;
    const int room = cache->room ? 2 * cache->room : 16;
    void *entries = realloc(cache->entries, (size_t)room * sizeof(cache->entries[0]));
    if (!entries)
        return dp_fail(DP_ENOMEM, "no memory for a registration");
    cache->entries = entries;
    cache->room = room;
    return 0;
}

static void insert(struct dpn_mr_cache *cache, int at, const struct dpn_mr_entry *entry)
{
    memmove(&cache->entries[at + 1], &cache->entries[at],
            (size_t)(cache->count++ - at) * sizeof(*entry));
    cache->entries[at] = *entry;
}

static void take_out(struct dpn_mr_cache *cache, int at)
{
    memmove(&cache->entries[at], &cache->entries[at + 1],
            (size_t)(--cache->count - at) * sizeof(cache->entries[0]));
}

/* ---- registration ---------------------------------------------------------------------------- */

static struct ibv_mr *register_pages(struct dpn_hca *hca, uintptr_t from, uintptr_t to)
{
    void *data = (void *)from;

    if (hca->relaxed_ordering)
        return dpn_ibv.reg_mr_iova2(hca->pd, data, to - from, from,
                                    ACCESS | IBV_ACCESS_RELAXED_ORDERING);
    return dpn_ibv.reg_mr(hca->pd, data, to - from, (int)ACCESS);
}

/* What the device refuses once it always refuses: the kernel or the GPU's driver is too old. */
static struct ibv_mr *register_direct(struct dpn_hca *hca, const struct dpn_region *region,
                                      unsigned access)
{
    struct ibv_mr *mr = dpn_mlx5_reg_direct(hca->pd, region->offset, region->size,
                                            (uintptr_t)region->data, region->fd, access);

    hca->has_data_direct = mr || errno == ENOMEM || errno == EAGAIN;
    if (!hca->has_data_direct)
        dp_log(DP_LOG_INFO, "%s: no dma-buf by Data Direct (%s), going on without", hca->name,
               strerror(errno));
    return mr;
}

static struct ibv_mr *register_dma_buf(struct dpn_hca *hca, const struct dpn_region *region)
{
    const unsigned access = ACCESS | (hca->relaxed_ordering ? IBV_ACCESS_RELAXED_ORDERING : 0);
    struct ibv_mr *mr = hca->has_data_direct ? register_direct(hca, region, access) : NULL;

    if (mr)
        return mr;
    if (!dpn_ibv.reg_dmabuf_mr) {
        errno = EOPNOTSUPP;
        return NULL;
    }
    return dpn_ibv.reg_dmabuf_mr(hca->pd, region->offset, region->size, (uintptr_t)region->data,
                                 region->fd, (int)access);
}

/* The peer memory module may register what the driver's dma-bufs cannot. */
static struct ibv_mr *register_region(struct dpn_hca *hca, const struct dpn_region *region)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    struct ibv_mr *mr = region->fd >= 0 ? register_dma_buf(hca, region) : NULL;

    if (!mr && (region->fd < 0 || hca->pointers & NCCL_PTR_CUDA))
        mr = register_pages(hca, (uintptr_t)region->data & -page,
                            ((uintptr_t)region->data + region->size + page - 1) & -page);
    return mr;
}

static int fail_registration(const struct dpn_hca *hca, const struct dpn_region *region, int error)
{
    const char *what = region->fd >= 0 ? "a dma-buf" : region->type == NCCL_PTR_HOST
                                                           ? "host memory" : "GPU memory";
    struct rlimit limit;
    char locked[32] = "unlimited";

    if (error != ENOMEM && error != EAGAIN)
        return dp_fail(error == EOPNOTSUPP ? DP_EUNSUPPORTED : DP_EIO,
                       "registering %zu bytes of %s with %s: %s%s", region->size, what, hca->name,
                       strerror(error), region->type == NCCL_PTR_CUDA
                       ? "; is the module nvidia_peermem loaded, or the kernel new enough for "
                         "dma-bufs (5.12)?" : "");
    if (!getrlimit(RLIMIT_MEMLOCK, &limit) && limit.rlim_cur != RLIM_INFINITY)
        snprintf(locked, sizeof(locked), "%llu KiB", (unsigned long long)limit.rlim_cur / 1024);
    return dp_fail(
        DP_ENOMEM,
        "registering %zu bytes of %s with %s: %s; the limit on locked memory is %s (raise "
        "it with 'ulimit -l unlimited', in a container with --ulimit memlock=-1)",
        region->size, what, hca->name, strerror(error), locked);
}

/* ---- interface ------------------------------------------------------------------------------- */

static struct dpn_mr_entry covered_by(const struct dpn_region *region)
{
    const uintptr_t page = region->fd >= 0 ? 1 : (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t from = (uintptr_t)region->data;

    return (struct dpn_mr_entry){.from = from & -page,
                                 .to = (from + region->size + page - 1) & -page,
                                 .is_dma_buf = region->fd >= 0};
}

/* The registration that there is, counted once more; NULL: none. Under the lock. */
static struct ibv_mr *share(struct dpn_mr_cache *cache, const struct dpn_mr_entry *wanted)
{
    const int at = find(cache, wanted);

    if (at == cache->count || compare(&cache->entries[at], wanted))
        return NULL;
    cache->entries[at].refs++;
    return cache->entries[at].mr;
}

/* Another thread may have registered the same meanwhile, which is then the one that is kept. */
static int enter(struct dpn_hca *hca, struct dpn_mr_entry entry, struct ibv_mr **out)
{
    int err = 0;

    pthread_mutex_lock(&hca->lock);
    *out = share(&hca->cache, &entry);
    if (!*out)
        err = make_room(&hca->cache);
    if (!*out && !err) {
        insert(&hca->cache, find(&hca->cache, &entry), &entry);
        *out = entry.mr;
    }
    pthread_mutex_unlock(&hca->lock);
    if (*out != entry.mr)
        dpn_ibv.dereg_mr(entry.mr);
    return err;
}

int dpn_mr_get(struct dpn_hca *hca, const struct dpn_region *region, struct ibv_mr **out)
{
    struct dpn_mr_entry wanted = covered_by(region);

    pthread_mutex_lock(&hca->lock);
    struct ibv_mr *found = share(&hca->cache, &wanted);
    pthread_mutex_unlock(&hca->lock);
    if (found) {
        *out = found;
        return 0;
    }
    errno = 0;
    wanted.refs = 1;
    wanted.mr = register_region(hca, region);
    return wanted.mr ? enter(hca, wanted, out) : fail_registration(hca, region, errno);
}

/* Returns whether that was the last use. */
static bool release(struct dpn_mr_cache *cache, const struct ibv_mr *mr)
{
    int at = 0;

    while (cache->entries[at].mr != mr)
        at++;
    if (--cache->entries[at].refs)
        return false;
    take_out(cache, at);
    return true;
}

void dpn_mr_put(struct dpn_hca *hca, struct ibv_mr *mr)
{
    if (!mr)
        return;
    pthread_mutex_lock(&hca->lock);
    const bool is_unused = release(&hca->cache, mr);
    pthread_mutex_unlock(&hca->lock);
    if (is_unused)
        dpn_ibv.dereg_mr(mr);
}

/* ---- of a connection ------------------------------------------------------------------------- */

void dpn_verbs_memory_free(struct dpn_verbs_memory *memory)
{
    for (int r = 0; r < memory->rail_count; r++)
        dpn_mr_put(memory->hcas[r], memory->mrs[r]);
    free(memory);
}

static bool is_supported(const struct dpn_queues *q, const struct dpn_region *region)
{
    int wanted = NCCL_PTR_HOST;

    if (region->fd >= 0)
        wanted = NCCL_PTR_DMABUF | NCCL_PTR_CUDA;
    else if (region->type != NCCL_PTR_HOST)
        wanted = NCCL_PTR_CUDA;
    for (int r = 0; r < q->rail_count; r++)
        if (!(q->rails[r].port->hca->pointers & wanted))
            return false;
    return true;
}

int dpn_verbs_reg(const struct dpn_queues *q, const struct dpn_region *region,
                  struct dpn_memory **out)
{
    int err = 0;

    if (!is_supported(q, region))
        return dp_fail(DP_EUNSUPPORTED, "registering %zu bytes of %s: %s does not reach it",
                       region->size, region->fd >= 0 ? "a dma-buf" : "GPU memory",
                       q->rails[0].port->name);
    struct dpn_verbs_memory *memory = calloc(1, sizeof(*memory));
    if (!memory)
        return dp_fail(DP_ENOMEM, "no memory for a registration");
    memory->from = (uintptr_t)region->data;
    memory->to = memory->from + region->size;
    memory->type = region->type;
    for (; memory->rail_count < q->rail_count && !err; memory->rail_count += !err) {
        const int r = memory->rail_count;
        memory->hcas[r] = q->rails[r].port->hca;
        err = dpn_mr_get(memory->hcas[r], region, &memory->mrs[r]);
    }
    if (err) {
        dpn_verbs_memory_free(memory);
        return err;
    }
    *out = &memory->base;
    return 0;
}
