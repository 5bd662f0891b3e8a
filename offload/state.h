/* SPDX-License-Identifier: Apache-2.0
 *
 * state.h - a streamed model inside.
 *
 *      host     [shard 0: values | gradients] [shard 1 ...]          pinned, shard after shard
 *                   |            ^
 *      copies up    | load       | gradients     copies down (streams.c)
 *                   v            |
 *      device   slot 0: [values | gradients]   slot 1 ...            compute stream
 *
 *      load of a slot      waits for  used[slot]       (compute: the last that was done with it)
 *                                     updated[shard]   (the host has changed the values, or rounded)
 *      compute             waits for  loaded[slot]
 *      gradients down      wait for   used[slot], updated[shard] (the host has done with the last)
 *      zeroing gradients   waits for  emptied[slot]    (down: the copy of the last)
 *      update of a shard   waits for  emptied[slot]
 */
#ifndef DPO_STATE_H
#define DPO_STATE_H

#include "offload/layout.h"
#include "offload/pinned.h"
#include "offload/streams.h"

struct dpo_slot {
    char *values, *grads;
    struct dp_device_event *loaded, *used, *emptied;
};

/* Where inputs of shards are kept if they wait on the host: input i in place i % rings. */
struct dpo_ring {
    char *at;
    int32_t holds; /* the shard whose input it is; -1: none */
    struct dp_device_event *filled, *used;
};

/* A gradient buffer on the host, for what is to be added or widened. */
struct dpo_staging {
    char *at;
    struct dp_device_event *done;
};

struct dpo_task {
    struct dp_offload *o;
    struct dpo_shard *shard;
};

/* Memory on the device and the host, and the events of what is in it. */
struct dpo_memory {
    void *all;              /* all of it on the device */
    struct dpo_slot *slots;
    char *activations, *gradients[2]; /* at borders between shards, all rows */
    struct dpo_ring *ring;
    char *boundaries;  /* on the host, boundary_stride apart */
    struct dpo_staging staging[2];
    uint32_t staged;
};

struct dp_offload {
    struct dpo_layout layout;
    struct dpo_streams streams;
    struct dpo_memory memory;
    struct dpo_pinned pinned;
    struct dpo_task *tasks; /* [shards] */
    _Atomic int failed;     /* the first error of an update */

    struct dp_offload_event *events; /* of this step */
    size_t event_count, backward_at;
    int32_t *in_slot, *plan_slot; /* the shard in each slot, -1: none: now, and for the planner */
    const struct dp_offload_step *step;
    const struct dp_offload_gradients *grad_step;
    uint64_t number;
    bool built;
    bool exposed;         /* the values on the host may have been written */
    bool trained;         /* a training forward is done: a backward may come */
    int32_t gradient_now; /* which of gradients[] holds those of the last shard's output */
    struct dp_offload_memory counts;
};

/* memory.c: the memory itself, streams and events. */
int dpo_memory_init(struct dp_offload *o);
void dpo_memory_fini(struct dp_offload *o);

/* shards.c: what begins and ends with copies. */
int dpo_shard_load(struct dp_offload *o, int32_t shard, int32_t slot);
/* Values have been written on the host: for loads of this step. */
int dpo_shard_renew(struct dp_offload *o);
int dpo_shard_drop(struct dp_offload *o, int32_t shard, int32_t slot);
int dpo_shard_grads_down(struct dp_offload *o, int32_t shard);
/* Where the input of a shard is on the device, for reading and for writing. */
int dpo_boundary_read(struct dp_offload *o, int32_t shard, char **out);
int dpo_boundary_write(struct dp_offload *o, int32_t shard, char **out);
/* The shard has been written / has been read for the last time. */
int dpo_boundary_written(struct dp_offload *o, int32_t shard);
int dpo_boundary_fetch(struct dp_offload *o, int32_t shard);

/* visit.c: all micro-batches of a shard. */
int dpo_visit_forward(struct dp_offload *o, int32_t shard);
int dpo_visit_backward(struct dp_offload *o, int32_t shard);

#endif
