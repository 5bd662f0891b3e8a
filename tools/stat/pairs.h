/* SPDX-License-Identifier: Apache-2.0
 *
 * pairs.h - what a job's processes have sent to each peer, as last seen while their connections were
 * open: when one closes, its counters join those of its device.
 */
#ifndef DP_TOOLS_STAT_PAIRS_H
#define DP_TOOLS_STAT_PAIRS_H

#include "stat/pages.h"

struct stat_pair {
    char device[DPN_STAT_DEVICE_LEN], transport[16], peer[DPN_STAT_NAME_LEN];
    double bytes;
    double ns; /* from isend to done, of all messages, by those that are timed */
};

/* Zeroed memory is an empty list. */
struct stat_pairs {
    int count, pair_count;
    struct stat_seen *seen; /* [count] connections */
    struct stat_pair *pairs; /* [pair_count], after stat_pairs_sum */
};

/* Look at the connections that are open now. */
void stat_pairs_look(struct stat_pairs *p, const struct stat_mapped *m);
/* By device, transport and peer, the address without its port. */
void stat_pairs_sum(struct stat_pairs *p);
void stat_pairs_fini(struct stat_pairs *p);

#endif
