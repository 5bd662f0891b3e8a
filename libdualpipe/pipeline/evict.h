/* SPDX-License-Identifier: Apache-2.0
 *
 * evict.h - save areas that wait on the host between the forward and the backward of a micro-batch.
 *
 *      device   [F saves .... EVICT]                    [FETCH .... B reads]     two lifetimes
 *      host                  [EVICT ...................... B]                    one
 *
 *      EVICT    down stream:  waits for compute; copy; evicted[n]
 *      FETCH    up stream:    waits for compute, for evicted[n] and for evicted[] of what had its
 *                             memory; copy; fetched[n]
 *      compute  waits for evicted[] of what had the memory that it writes, and for fetched[] of
 *               what it reads
 *
 * The evictions of a rank are numbered in the order of its list. Streams are in order, so an entry waits
 * for one number in each direction at most.
 */
#ifndef DP_PIPELINE_EVICT_H
#define DP_PIPELINE_EVICT_H

#include "pipeline/plan.h"
#include <dualpipe/device.h>

struct dp_evictions {
    struct dp_device_stream *down, *up;
    struct dp_device_event *compute;              /* what compute has done so far */
    struct dp_device_event **evicted, **fetched; /* [count] */
    uint32_t count;
    struct dp_device *device;
    char *host; /* plan.host_bytes */
    struct dp_copy_meter {
        int64_t begun_ns;
        _Atomic int64_t busy_ns;
    } meters[2];      /* down, up; written in the order of the stream */
    int64_t wait_ns;  /* of compute, where that is in the calling thread */
};

/* Room for `count` evictions at once. */
int dp_evictions_init(struct dp_evictions *e, struct dp_device *device, uint32_t count,
                      size_t host_bytes);
void dp_evictions_fini(struct dp_evictions *e);
/* EVICT (down), FETCH: from or to `memory`, after what `compute` has been given and eviction number
 * `after` - 1; 0: after none. */
int dp_evict_run(struct dp_evictions *e, struct dp_device_stream *compute, char *memory, bool down,
                 uint32_t after, const struct dp_plan_copy *copy);
/* Before a compute: what it writes is free, what it reads is there. Numbers as in struct dp_plan_op. */
int dp_evict_wait(const struct dp_evictions *e, struct dp_device_stream *compute, uint32_t evicted,
                  uint32_t fetched);
/* After a failure: nothing is being copied any more. */
void dp_evict_forget(const struct dp_evictions *e, struct dp_device_event *done, int64_t deadline_ns);

#endif
