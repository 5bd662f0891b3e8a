/* SPDX-License-Identifier: Apache-2.0
 *
 * state.h - what one process knows: its options, read once, and its counters. A counter is added to
 * by any thread, relaxed; the report reads them at the end of the process.
 */
#ifndef DPO_PRELOAD_STATE_H
#define DPO_PRELOAD_STATE_H

#include "offload/preload/options.h"

#include <stdatomic.h>

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
    DPO_COUNTERS
};

/* The options; NULL: the library does nothing in this process (setuid, or a bad option, which is
 * logged). Any thread. */
const struct dpo_preload_options *dpo_preload_options(void);

/* Calls of interposed functions that the thread is in. CUDA's runtime calls its driver, which is
 * interposed too: only the outermost call is acted upon and counted. */
extern _Thread_local int dpo_depth __attribute__((tls_model("initial-exec")));

void dpo_count(enum dpo_counter counter, uint64_t add);
uint64_t dpo_counted(enum dpo_counter counter);

#endif
