/* SPDX-License-Identifier: Apache-2.0
 *
 * offloaded.h - an engine for a model that does not fit the device: one rank, whose parameters,
 * gradients and optimizer state live on the host and pass over the device block by block
 * (offload.h). The numbers are those of a plain loop, to the last bit.
 *
 * The device is that of the host, with two threads that copy; DUALPIPE_DEVICE_LINK_MBS gives the
 * link to its memory a speed.
 */
#ifndef DP_TRAIN_OFFLOADED_H
#define DP_TRAIN_OFFLOADED_H

#include "train/engine.h"
#include "train/offload_parts.h"

struct offloaded_config {
    struct gpt_config model;
    int microbatches;
    int order_blocks;    /* of fixed order; 1: one micro-batch after the other */
    size_t device_bytes; /* what may be used of the device's memory */
    bool activations;    /* what crosses from shard to shard may wait on the host */
    struct offload_buffers buffers;
    int (*update)(void *user); /* NULL; or updates are a step late: that of the gradients that
                                * are there, called in a thread of the device's */
    void *update_user;
    double device_share; /* of parameters that stay on the device, with AdamW's state */
    bool bf16;           /* parameters go up and gradients come down in bfloat16 (bfloat16.h) */
};

/* DP_ENOMEM where no cut of the model fits, with what would; errors of dp_offload_open. */
int offloaded_new(const struct offloaded_config *config, struct engine **out);

/* How the model was cut, and how the steps so far went. */
enum offloaded_limit { LIMIT_COMPUTE, LIMIT_UP, LIMIT_DOWN, LIMIT_UPDATE, LIMITS };

struct offloaded_figures {
    int shards, slots;  /* 0: a pipeline, */
    int64_t sets, evicted, recomputed; /* of whose micro-batches on all ranks so many went */
    bool streamed;      /* its parameters pass over the device */
    bool recomputes; /* the inside of shards */
    double kept;     /* share of the parameters that stays on the device; of a pipeline, this rank's */
    bool boundaries_down;
    size_t device_bytes;  /* the most that was used of the device's memory */
    double overlap;       /* of what could be done at the same time, the share that was; 1: nothing
                           * waits but for the part that limits it */
    double overlap_share; /* how much that is, over the time of all steps */
    enum offloaded_limit limited_by;
    double limit_share;     /* how long that was at work, over the time of all steps */
};
/* What was at work, and how long compute waited for it: the last four members of *out. */
struct offloaded_busy {
    int64_t compute_ns; /* 0: what is left of the steps */
    int64_t up_ns, down_ns, wait_ns, steps_ns;
    int64_t update_ns; /* beside compute */
};
void offloaded_overlap(const struct offloaded_busy *busy, struct offloaded_figures *out);
/* "compute", "copies to the device", "copies from the device", "updates on the host" */
const char *offloaded_limit_name(enum offloaded_limit limit);

/* Whether e is such an engine, with late updates; and then: an update of the gradients that are there is
 * to come with the next step; carry it out now. */
bool offloaded_updates_late(const struct engine *e);
void offloaded_set_due(struct engine *e, bool due);
int offloaded_catch_up(struct engine *e);

/* false: e is another kind of engine. */
bool offloaded_figures(const struct engine *e, struct offloaded_figures *out);

#endif
