/* SPDX-License-Identifier: Apache-2.0
 *
 * held.h - pages of counters that stay readable when their process has ended: to know what a job has
 * counted in the end, its pages are held while it runs.
 */
#ifndef DP_TOOLS_STAT_HELD_H
#define DP_TOOLS_STAT_HELD_H

#include "stat/pages.h"

struct stat_held {
    int count;
    struct stat_held_page {
        char file[256]; /* of the directory */
        const struct dpn_stat_page *page;
    } * pages;
};

/* Hold the pages of this user's processes that live, are not held yet and that `wants` wants. It
 * says nothing of pages that cannot be read. */
void stat_hold(struct stat_held *held, bool (*wants)(int64_t pid));

/* Add what all devices of all pages have counted, by name; `out` is zeroed or has such devices.
 * Returns the number of pages that could be read. */
struct stat_sum {
    int device_count;
    struct stat_device devices[DPN_STAT_DEVICES];
};
int stat_held_sum(const struct stat_held *held, struct stat_sum *out);

void stat_held_fini(struct stat_held *held);

#endif
