/* SPDX-License-Identifier: Apache-2.0
 *
 * page.h - the counters of the preload library in one process, in a file of shared memory that its
 * user may read while they grow: preload/state.c writes it, `dualpipe stat` and `dualpipe run` read
 * it. It lies beside the pages of the net plugin (nccl-plugin/net/stat_page.h). Every change of the
 * layout is a new version.
 */
#ifndef DPO_PRELOAD_PAGE_H
#define DPO_PRELOAD_PAGE_H

#include "base/page_file.h"

#include <stdatomic.h>
#include <stdint.h>

#define DPO_PAGE_KIND                                                                              \
    .option = "DUALPIPE_PRELOAD_STAT", .suffix = ".preload", .magic = "dpoload",                   \
    .version = 2, .bytes = sizeof(struct dpo_page), .name = "the preload library"

/* Each as JSON and Prometheus have it. Pinned: allocations and registrations that succeeded; pages of
 * these, counted; not placed: the device has no NUMA node, or placing is refused; other: within the
 * device, between devices, direction left to CUDA; not staged: left to CUDA, as no chunk was free, or a
 * step failed; paced: copies of pinned memory that gave way to the network. */
#define DPO_COUNTER_LIST(X)                                                                        \
    X(PINNED_CALLS, pinned_calls)                                                                  \
    X(PINNED_BYTES, pinned_bytes)                                                                  \
    X(PAGES, pages)                                                                                \
    X(PAGES_ON_NODE, pages_on_node)                                                                \
    X(PAGES_UNKNOWN, pages_unknown)                                                                \
    X(WITHOUT_NODE, calls_not_placed)                                                              \
    X(COPIES_TO_DEVICE, copies_to_device)                                                          \
    X(COPIES_TO_DEVICE_BYTES, copies_to_device_bytes)                                              \
    X(COPIES_TO_HOST, copies_to_host)                                                              \
    X(COPIES_TO_HOST_BYTES, copies_to_host_bytes)                                                  \
    X(COPIES_OTHER, copies_other)                                                                  \
    X(COPIES_OTHER_BYTES, copies_other_bytes)                                                      \
    X(STAGED_TO_DEVICE, staged_to_device)                                                          \
    X(STAGED_TO_DEVICE_BYTES, staged_to_device_bytes)                                              \
    X(STAGED_TO_HOST, staged_to_host)                                                              \
    X(STAGED_TO_HOST_BYTES, staged_to_host_bytes)                                                  \
    X(NOT_STAGED, not_staged)                                                                      \
    X(PACED, paced)                                                                                \
    X(PACED_BYTES, paced_bytes)

#define DPO_COUNTER(id, name) DPO_##id,
enum dpo_counter { DPO_COUNTER_LIST(DPO_COUNTER) DPO_COUNTERS };
#undef DPO_COUNTER

static inline const char *dpo_counter_name(enum dpo_counter counter)
{
#define DPO_COUNTER(id, name) #name,
    static const char *const names[DPO_COUNTERS] = {DPO_COUNTER_LIST(DPO_COUNTER)};
#undef DPO_COUNTER

    return names[counter];
}

struct dpo_page {
    struct dp_page_head head;
    _Atomic uint64_t counters[DPO_COUNTERS];
};

#endif
