/* SPDX-License-Identifier: Apache-2.0
 *
 * preload.h - what the preload library counts in this user's processes (offload/preload/page.h).
 */
#ifndef DP_TOOLS_STAT_PRELOAD_H
#define DP_TOOLS_STAT_PRELOAD_H

#include "offload/preload/page.h"
#include "stat/mapped.h"

#include <stdio.h>

extern const struct dp_page_kind stat_preload_kind;

/* A page of the list. */
const struct dpo_page *stat_preload_at(const struct stat_mapped *p, int i);
uint64_t stat_preload_count(const struct dpo_page *page, enum dpo_counter counter);
/* Add those of all pages. */
void stat_preload_sum(const struct stat_mapped *p, uint64_t counts[DPO_COUNTERS]);

/* One line of words: pinned memory, copies, staging; "" if nothing was counted. */
const char *stat_preload_text(const uint64_t counts[DPO_COUNTERS], char *text, size_t len);

#endif
