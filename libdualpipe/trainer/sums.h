/* SPDX-License-Identifier: Apache-2.0
 *
 * sums.h - what ranks that hold the same stage do with each other after its last gradient: those of
 * DualPipe's mirrors and of replicas of the pipeline.
 *
 *      all       gradients are summed over all of them, which keeps them equal
 *      shards    the same, but each updates a part of the values, which are then gathered; where ranks
 *                may die gradients are summed whole, and each updates a copy of another's part, too
 *      mixing    gradients are summed with the mirror's; each replica updates its own values and
 * mixes them with those of other replicas by a graph
 */
#ifndef DP_TRAINER_SUMS_H
#define DP_TRAINER_SUMS_H

#include "trainer/engine.h"
#include "trainer/place.h"

#include <dualpipe/mixer.h>
#include <dualpipe/replicas.h>

struct sums_config {
    bool none; /* one replica, whose mirrors are the pipeline's: nothing to do */
    enum dp_sums kind;
    struct dp_comm *all;                 /* all ranks of all replicas */
    bool survive;                        /* the others go on without a rank that dies; mixing: each
                                          * replica is one rank with one stage */
    bool joins;                          /* the same: this one comes to those that mix in `all` */
    struct dp_comm *data;                /* mixing: the same rank of all replicas */
    const struct dp_graph *graph;        /* mixing */
    struct place *place;                 /* of gradients and values */
    const struct dp_trainer_config *how; /* mixing, and the optimizer */
};

/* Of the stage in one slot. */
struct sums_slot {
    struct dp_comm *same, *data;
    struct dp_comm *same_links, *data_links; /* on a device: by NCCL, between the same ranks */
    struct dp_replicas *sums;                /* of `same` */
    struct dp_mixer *mixer;                  /* mixing, over `data` */
    struct dp_optimizer *optimizer; /* shards; mixing on a device, where a mixer has none */
    struct dp_optimizer *copies;    /* shards, survive: of the shard of the rank before */
};

struct sums {
    bool none;
    enum dp_sums kind;
    bool twice; /* each shard is on two ranks */
    struct engine *engine;
    struct place *place;
    struct sums_slot slots[DP_MAX_SLOTS];
    /* Slots whose gradients are summed, in an order that is the same for both ranks of each pair of
     * mirrors: in another one they would wait for each other. */
    int order[DP_MAX_SLOTS], count;
};

/* Collective over `all`; the engine, communicators and the graph must stay. Errors of the library.
 */
int sums_init(struct sums *d, const struct sums_config *config, struct engine *e);
void sums_fini(struct sums *d);

/* Before the forwards of a step. */
int sums_begin(struct sums *d);
/* The gradients of a slot are complete: start to sum them. test: DP_EAGAIN while it is not done. */
int sums_launch(struct sums *d, int slot);
/* The same on a device, in the order of a stream. */
int sums_queue(struct sums *d, int slot, struct dp_device_stream *stream);
int sums_test(struct sums *d, int slot);
int sums_wait(struct sums *d, int slot);
/* The parameters whose gradients are the sum now: those of the stage, or of this rank's shard. */
const struct dp_parameter *sums_summed(const struct sums *d, int slot, int32_t *count);
/* shards, mixing: update the values of a slot; gradients become zero. What is sent for it is in
 * flight until the next step. */
int sums_update(struct sums *d, int slot, const struct dp_mixer_update *update);
/* shards: after the updates, the values of all slots become whole again. */
int sums_settle(struct sums *d);

/* mixing: the values of all replicas become their average, for good or until sums_revert. */
int sums_average(struct sums *d, bool revert);
int sums_revert(struct sums *d);

/* mixing, survive: the one mixer that there is. */
static inline struct dp_mixer *sums_mixer(const struct sums *d)
{
    return d->slots[0].mixer;
}

#endif
