/* SPDX-License-Identifier: Apache-2.0
 *
 * memory.h - memory that a device may read and write. NCCL registers the same buffers once for
 * every connection; a device does it once, and counts.
 *
 * Only exactly the same pages are shared; of dma-bufs, of which a device reaches no more than was
 * asked for, exactly the same bytes. A part of something registered is registered anew: when the
 * whole is given back and freed, its other pages would stay in the device under addresses that may
 * be given to something else.
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

/* Sorted by from, to, is_dma_buf. Zeroed memory is an empty one. */
struct dpn_mr_cache {
    int count, room;
    struct dpn_mr_entry *entries;
};

struct dpn_hca;

/* The device's lock is taken. DP_ENOMEM (the limit on locked memory, as a rule), DP_EUNSUPPORTED,
 * DP_EIO. */
int dpn_mr_get(struct dpn_hca *hca, const struct dpn_region *region, struct ibv_mr **out);
/* NULL is fine. */
void dpn_mr_put(struct dpn_hca *hca, struct ibv_mr *mr);

#endif
