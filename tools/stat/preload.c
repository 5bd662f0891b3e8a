/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "stat/preload.h"

#include "stat/pages.h"

/* ---- pages ----------------------------------------------------------------------------------- */

const struct dp_page_kind stat_preload_kind = {DPO_PAGE_KIND};

const struct dpo_page *stat_preload_at(const struct stat_mapped *p, int i)
{
    return (const void *)p->pages[i].head;
}

uint64_t stat_preload_count(const struct dpo_page *page, enum dpo_counter counter)
{
    return atomic_load_explicit(&page->counters[counter], memory_order_relaxed);
}

void stat_preload_sum(const struct stat_mapped *p, uint64_t counts[DPO_COUNTERS])
{
    for (int i = 0; i < p->count; i++)
        for (int c = 0; c < DPO_COUNTERS; c++)
            counts[c] += stat_preload_count(stat_preload_at(p, i), (enum dpo_counter)c);
}

/* ---- in words -------------------------------------------------------------------------------- */

const char *stat_preload_text(const uint64_t counts[DPO_COUNTERS], char *text, size_t len)
{
    const uint64_t known = counts[DPO_PAGES] - counts[DPO_PAGES_UNKNOWN];
    char pinned[16], up[16], down[16], staged[16];
    bool is_empty = true;

    for (int c = 0; c < DPO_COUNTERS; c++)
        is_empty &= !counts[c];
    if (is_empty)
        return "";
    snprintf(text, len,
             "pinned %s, %llu of %llu pages not on the nearest NUMA node; copied %s to the device, "
             "%s to the host; staged %s",
             stat_bytes_text((double)counts[DPO_PINNED_BYTES], pinned, sizeof(pinned)),
             (unsigned long long)(known - counts[DPO_PAGES_ON_NODE]), (unsigned long long)known,
             stat_bytes_text((double)counts[DPO_COPIES_TO_DEVICE_BYTES], up, sizeof(up)),
             stat_bytes_text((double)counts[DPO_COPIES_TO_HOST_BYTES], down, sizeof(down)),
             stat_bytes_text((double)(counts[DPO_STAGED_TO_DEVICE_BYTES] +
                                      counts[DPO_STAGED_TO_HOST_BYTES]),
                             staged, sizeof(staged)));
    return text;
}
