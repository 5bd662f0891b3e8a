/* SPDX-License-Identifier: Apache-2.0
 *
 * memory.h - memory that a device may read and write. NCCL registers the same buffers for every
 * connection; here a device registers them once and counts references.
 *
 * Only registrations of exactly the same pages are shared; for dma-bufs, where a device accesses no
 * more than was registered, of exactly the same bytes. A part of a registered range is registered
 * separately: if it kept the whole range registered after that was freed, the device would keep the
 * old pages under addresses that may be in use for something else.
 */
#ifndef DPN_VERBS_MEMORY_H
#define DPN_VERBS_MEMORY_H

#include "nccl-plugin/net/transport.h"

#include <infiniband/verbs.h>

/* Addresses [from, to): pages, or bytes of a dma-buf. */
struct dpn_mr_entry {
    uintptr_t from, to;
    bool is_dma_buf;
    int refs;
    struct ibv_mr *mr;
};

/* Sorted by from, to, is_dma_buf. Zeroed memory is an empty cache. */
struct dpn_mr_cache {
    int count, room;
    struct dpn_mr_entry *entries;
};

struct dpn_hca;

/* May take long: pages are pinned. The device's lock is held for its list only. DP_ENOMEM (mostly
 * the limit on locked memory), DP_EUNSUPPORTED, DP_EIO. */
int dpn_mr_get(struct dpn_hca *hca, const struct dpn_region *region, struct ibv_mr **out);
/* NULL is fine. */
void dpn_mr_put(struct dpn_hca *hca, struct ibv_mr *mr);

#endif
