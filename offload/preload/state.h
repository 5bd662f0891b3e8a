/* SPDX-License-Identifier: Apache-2.0
 *
 * state.h - what one process knows: its options, read once, and its counters. A counter is added to
 * by any thread, relaxed; the report reads them at the end of the process.
 */
#ifndef DPO_PRELOAD_STATE_H
#define DPO_PRELOAD_STATE_H

#include "offload/preload/options.h"
#include "offload/preload/page.h"

#include <stdatomic.h>

/* The options; NULL: the library does nothing in this process (setuid, or a bad option, which is
 * logged). Any thread. */
const struct dpo_preload_options *dpo_preload_options(void);

/* Bytes of the smallest copy that is staged or paced; SIZE_MAX: none is. Any thread. */
size_t dpo_least_copy(void);

/* Calls of interposed functions that the thread is in. CUDA's runtime calls its driver, which is
 * interposed too: only the outermost call is acted upon and counted. */
extern _Thread_local int dpo_depth __attribute__((tls_model("initial-exec")));

void dpo_count(enum dpo_value counter, uint64_t add);
uint64_t dpo_counted(enum dpo_value counter);

#endif
