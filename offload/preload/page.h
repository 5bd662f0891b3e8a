/* SPDX-License-Identifier: Apache-2.0
 *
 * page.h - the counters of the preload library in one process, in a page of one row (base/page_file.h):
 * preload/state.c writes it, `dualpipe stat` and `dualpipe run` read it.
 */
#ifndef DPO_PRELOAD_PAGE_H
#define DPO_PRELOAD_PAGE_H

#include "base/page_file.h"

/* Each as JSON and Prometheus have it. Pinned: allocations and registrations that succeeded; pages of
 * these, counted; not placed: the device has no NUMA node, or placing is refused; other: within the
 * device, between devices, direction left to CUDA; not staged: left to CUDA, as no chunk was free, or a
 * step failed; paced: copies of pinned memory that gave way to the network. */
#define DPO_COUNTER_LIST(X)                                                                        \
    X(DPO_PINNED_CALLS, "pinned_calls", "", COUNTER, 1)                                            \
    X(DPO_PINNED_BYTES, "pinned_bytes", "", COUNTER, 1)                                            \
    X(DPO_PAGES, "pages", "", COUNTER, 1)                                                          \
    X(DPO_PAGES_ON_NODE, "pages_on_node", "", COUNTER, 1)                                          \
    X(DPO_PAGES_UNKNOWN, "pages_unknown", "", COUNTER, 1)                                          \
    X(DPO_WITHOUT_NODE, "calls_not_placed", "", COUNTER, 1)                                        \
    X(DPO_COPIES_TO_DEVICE, "copies_to_device", "", COUNTER, 1)                                    \
    X(DPO_COPIES_TO_DEVICE_BYTES, "copies_to_device_bytes", "", COUNTER, 1)                        \
    X(DPO_COPIES_TO_HOST, "copies_to_host", "", COUNTER, 1)                                        \
    X(DPO_COPIES_TO_HOST_BYTES, "copies_to_host_bytes", "", COUNTER, 1)                            \
    X(DPO_COPIES_OTHER, "copies_other", "", COUNTER, 1)                                            \
    X(DPO_COPIES_OTHER_BYTES, "copies_other_bytes", "", COUNTER, 1)                                \
    X(DPO_STAGED_TO_DEVICE, "staged_to_device", "", COUNTER, 1)                                    \
    X(DPO_STAGED_TO_DEVICE_BYTES, "staged_to_device_bytes", "", COUNTER, 1)                        \
    X(DPO_STAGED_TO_HOST, "staged_to_host", "", COUNTER, 1)                                        \
    X(DPO_STAGED_TO_HOST_BYTES, "staged_to_host_bytes", "", COUNTER, 1)                            \
    X(DPO_NOT_STAGED, "not_staged", "", COUNTER, 1)                                                \
    X(DPO_PACED, "paced", "", COUNTER, 1)                                                          \
    X(DPO_PACED_BYTES, "paced_bytes", "", COUNTER, 1)

DP_PAGE_DEFINE(dpo, DPO_COUNTER_LIST, 1, .option = "DUALPIPE_PRELOAD_STAT", .suffix = ".preload",
               .magic = "dpoload", .name = "the preload library");

#endif
