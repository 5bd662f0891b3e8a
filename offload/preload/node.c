/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h" /* GNU extensions: syscall */

#include "offload/preload/node.h"

#include "base/fail.h"
#include "offload/preload/real.h"

#include <ctype.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* numaif.h of libnuma, which is not needed for this number of the kernel's interface. */
enum { MOVE_OWN_PAGES = 1 << 1 };
enum { BATCH = 1024 }; /* pages of one system call */

int dpo_node_of_device(const char *root, const char *bus_id)
{
    char path[256], id[32];
    int node = DPO_NO_NODE;

    snprintf(id, sizeof(id), "%s", bus_id);
    for (char *c = id; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    snprintf(path, sizeof(path), "%s/sys/bus/pci/devices/%s/numa_node", root, id);
    FILE *file = fopen(path, "re");
    if (!file)
        return DPO_NO_NODE;
    if (fscanf(file, "%d", &node) != 1 || node < 0 || node >= DPO_NODES_MAX)
        node = DPO_NO_NODE;
    fclose(file);
    return node;
}

static void warn_refused(const char *call, int error)
{
    static atomic_bool has_warned;

    if (!atomic_exchange(&has_warned, true))
        dp_log(DP_LOG_WARN,
               "preload: %s is refused (%s): pinned memory stays where the system puts it", call,
               dp_errno_text(error));
}

bool dpo_policy_set(int node, struct dpo_policy *saved)
{
    if (syscall(SYS_get_mempolicy, &saved->mode, saved->mask, DPO_NODES_MAX, NULL, 0)) {
        warn_refused("get_mempolicy", errno);
        return false;
    }
    const int error = dp_prefer_memory(node);
    if (error)
        warn_refused("set_mempolicy", error);
    return !error;
}

bool dpo_memory_prefer(void *at, size_t bytes, int node)
{
    const int error = dp_prefer_memory_at(at, bytes, node);

    if (error)
        warn_refused("mbind", error);
    return !error;
}

void dpo_policy_restore(const struct dpo_policy *saved)
{
    syscall(SYS_set_mempolicy, saved->mode, saved->mask, DPO_NODES_MAX);
}

/* Calls fn for every batch of page addresses in the range. */
struct batch {
    void *pages[BATCH];
    int node[BATCH], status[BATCH];
    unsigned long count;
};

static bool next_batch(struct batch *b, uintptr_t *at, uintptr_t end)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);

    for (b->count = 0; *at < end && b->count < BATCH; *at = (*at / page + 1) * page)
        b->pages[b->count++] = (void *)(*at / page * page);
    return b->count;
}

void dpo_pages_move(const void *at, size_t bytes, int node)
{
    uintptr_t next = (uintptr_t)at;
    struct batch b;

    for (int i = 0; i < BATCH; i++)
        b.node[i] = node;
    while (next_batch(&b, &next, (uintptr_t)at + bytes))
        if (syscall(SYS_move_pages, 0, b.count, b.pages, b.node, b.status, MOVE_OWN_PAGES) < 0) {
            warn_refused("move_pages", errno);
            return;
        }
}

void dpo_pages_count(const void *at, size_t bytes, int node, struct dpo_pages *pages)
{
    uintptr_t next = (uintptr_t)at;
    struct batch b;

    while (next_batch(&b, &next, (uintptr_t)at + bytes)) {
        const bool is_told = !syscall(SYS_move_pages, 0, b.count, b.pages, NULL, b.status, 0);
        pages->total += b.count;
        for (unsigned long i = 0; i < b.count; i++) {
            pages->on_node += is_told && b.status[i] == node;
            pages->unknown += !is_told || b.status[i] < 0;
        }
    }
}

/* ---- the device of the calling thread -------------------------------------------------------- */

/* cudaErrorInsufficientDriver and CUDA_ERROR_NOT_INITIALIZED. */
const struct dpo_api dpo_runtime_api = {"cudaGetDevice", "cudaDeviceGetPCIBusId", 35};
const struct dpo_api dpo_driver_api = {"cuCtxGetDevice", "cuDeviceGetPCIBusId", 3};

enum { DEVICES = 64, NOT_ASKED = -2 };

static int ask_node(const struct dpo_api *api, const void *caller, int device, const char *root)
{
    int (*get_bus_id)(char *, int, int) = dpo_real(api->get_bus_id, NULL, caller);
    char bus_id[32];

    if (!get_bus_id || get_bus_id(bus_id, sizeof(bus_id), device))
        return DPO_NO_NODE;
    return dpo_node_of_device(root, bus_id);
}

/* Stored is node - NOT_ASKED, so that 0 means not asked. */
int dpo_nearest_node(const struct dpo_api *api, const void *caller, int64_t wanted,
                     const char *root)
{
    static atomic_int nodes[DEVICES];
    int (*get_device)(int *) = dpo_real(api->get_device, NULL, caller);
    int device;

    if (wanted >= 0)
        return (int)wanted;
    if (!get_device || get_device(&device) || device < 0 || device >= DEVICES)
        return DPO_NO_NODE;
    int known = atomic_load_explicit(&nodes[device], memory_order_relaxed) + NOT_ASKED;
    if (known == NOT_ASKED) {
        known = ask_node(api, caller, device, root);
        atomic_store_explicit(&nodes[device], known - NOT_ASKED, memory_order_relaxed);
    }
    return known;
}
