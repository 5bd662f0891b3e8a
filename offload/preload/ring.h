/* SPDX-License-Identifier: Apache-2.0
 *
 * ring.h - pinned memory for staging: for every context of CUDA a few chunks on the NUMA node of
 * its device, each with an event that tells when the device has done with it.
 *
 *      free --take--> taken --give--> in flight --its event has come--> free
 *
 * A copy takes what chunks are free, and waits for no other copy: that one may be in a stream that
 * goes on only after this one. The memory is mapped here and registered with CUDA, not allocated by
 * it, so it stays readable whatever becomes of the context.
 */
#ifndef DPO_PRELOAD_RING_H
#define DPO_PRELOAD_RING_H

#include "offload/preload/driver.h"

#include <stdbool.h>

enum { DPO_RING_CHUNKS = 8, DPO_RING_TAKE = 4 };
#define DPO_RING_CHUNK_BYTES ((size_t)4 << 20)

enum dpo_chunk_state { DPO_CHUNK_FREE, DPO_CHUNK_TAKEN, DPO_CHUNK_IN_FLIGHT };
struct dpo_chunk {
    char *at;
    void *event;
    enum dpo_chunk_state state;
};

/* Up to DPO_RING_TAKE chunks of the calling thread's current context, its ring on `node` made if
 * need be; 0: none is free, or there can be no ring. Any thread. */
int dpo_ring_take(const struct dpo_driver *driver, void *context, int node,
                  struct dpo_chunk *out[DPO_RING_TAKE]);
/* Give them back; their events were recorded behind the last use. false: something has failed, and
 * the ring is not used any more. */
void dpo_ring_give(void *context, int count, struct dpo_chunk *chunks[DPO_RING_TAKE], bool is_good);

/* The context goes away, or (context NULL) all contexts of the device. */
void dpo_ring_drop(const struct dpo_driver *driver, const void *context, int device);

#endif
