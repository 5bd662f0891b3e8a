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

enum dpo_counter {
    DPO_PINNED_CALLS, /* allocations and registrations that succeeded */
    DPO_PINNED_BYTES,
    DPO_PAGES, /* of these, counted */
    DPO_PAGES_ON_NODE,
    DPO_PAGES_UNKNOWN,
    DPO_WITHOUT_NODE, /* calls whose device has no NUMA node, or where placing is refused */
    DPO_COPIES_TO_DEVICE,
    DPO_COPIES_TO_DEVICE_BYTES,
    DPO_COPIES_TO_HOST,
    DPO_COPIES_TO_HOST_BYTES,
    DPO_COPIES_OTHER, /* within the device, between devices, direction left to CUDA */
    DPO_COPIES_OTHER_BYTES,
    DPO_STAGED_TO_DEVICE, /* of these copies, staged */
    DPO_STAGED_TO_DEVICE_BYTES,
    DPO_STAGED_TO_HOST,
    DPO_STAGED_TO_HOST_BYTES,
    DPO_NOT_STAGED, /* left to CUDA, as no chunk was free, or a step failed */
    DPO_PACED,      /* copies of pinned memory that gave way to the network */
    DPO_PACED_BYTES,
    DPO_COUNTERS
};

/* As JSON and Prometheus have them. */
static inline const char *dpo_counter_name(enum dpo_counter counter)
{
    static const char *const names[DPO_COUNTERS] = {
        [DPO_PINNED_CALLS] = "pinned_calls",
        [DPO_PINNED_BYTES] = "pinned_bytes",
        [DPO_PAGES] = "pages",
        [DPO_PAGES_ON_NODE] = "pages_on_node",
        [DPO_PAGES_UNKNOWN] = "pages_unknown",
        [DPO_WITHOUT_NODE] = "calls_not_placed",
        [DPO_COPIES_TO_DEVICE] = "copies_to_device",
        [DPO_COPIES_TO_DEVICE_BYTES] = "copies_to_device_bytes",
        [DPO_COPIES_TO_HOST] = "copies_to_host",
        [DPO_COPIES_TO_HOST_BYTES] = "copies_to_host_bytes",
        [DPO_COPIES_OTHER] = "copies_other",
        [DPO_COPIES_OTHER_BYTES] = "copies_other_bytes",
        [DPO_STAGED_TO_DEVICE] = "staged_to_device",
        [DPO_STAGED_TO_DEVICE_BYTES] = "staged_to_device_bytes",
        [DPO_STAGED_TO_HOST] = "staged_to_host",
        [DPO_STAGED_TO_HOST_BYTES] = "staged_to_host_bytes",
        [DPO_NOT_STAGED] = "not_staged",
        [DPO_PACED] = "paced",
        [DPO_PACED_BYTES] = "paced_bytes",
    };

    return names[counter];
}

struct dpo_page {
    struct dp_page_head head;
    _Atomic uint64_t counters[DPO_COUNTERS];
};

#endif
