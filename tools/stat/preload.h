/* SPDX-License-Identifier: Apache-2.0
 *
 * preload.h - what the preload library counts in this user's processes (offload/preload/page.h). A page
 * that is held stays readable when its process has ended.
 */
#ifndef DP_TOOLS_STAT_PRELOAD_H
#define DP_TOOLS_STAT_PRELOAD_H

#include "offload/preload/page.h"

#include <stdbool.h>
#include <stdio.h>

/* Zeroed memory is an empty list. */
struct stat_preload {
    int count;
    struct stat_preload_page {
        char file[256]; /* of the directory */
        const struct dpo_page *page;
    } *pages;
};

/* Hold the pages of processes that live, are not held yet and that `wants` wants (NULL: all).
 * `directory` NULL: where they are as a rule. Says nothing of pages that cannot be read. */
void stat_preload_hold(struct stat_preload *p, const char *directory, bool (*wants)(int64_t pid));
void stat_preload_fini(struct stat_preload *p);

uint64_t stat_preload_count(const struct dpo_page *page, enum dpo_counter counter);
/* Add those of all pages. */
void stat_preload_sum(const struct stat_preload *p, uint64_t counts[DPO_COUNTERS]);

/* One line of words: pinned memory, copies, staging; "" if nothing was counted. */
const char *stat_preload_text(const uint64_t counts[DPO_COUNTERS], char *text, size_t len);

#endif
