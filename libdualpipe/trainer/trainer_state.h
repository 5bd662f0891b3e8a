/* SPDX-License-Identifier: Apache-2.0
 *
 * trainer_state.h - what a rank has of its training. new.c makes it, steps.c takes the steps, saved.c
 * writes it down.
 */
#ifndef DP_TRAINER_STATE_H
#define DP_TRAINER_STATE_H

#include "trainer/engine.h"
#include "trainer/model.h"
#include "trainer/norms.h"
#include "trainer/place.h"
#include "trainer/squares.h"
#include "trainer/sums.h"

struct dp_trainer {
    struct dp_trainer_config config;
    char *folder, *about; /* copies that config has */
    struct model_info model;
    struct dp_comm *comm; /* of all ranks; NULL: alone */
    struct dp_comm *pipe, *data;
    struct place *place;
    struct dp_schedule *training, *forward;
    struct dp_graph *graph;
    int32_t *first_layer;
    struct engine *engine;
    struct sums sums;
    struct dp_optimizer *optimizers[DP_MAX_SLOTS]; /* NULL: shards and mixers have their own */
    int ranks;
    uint64_t next;  /* step */
    double rate;    /* of this step */
    /* What ranks tell each other after a step: the losses of all micro-batches, then the sum of squared
     * gradients of each layer; of each replica, where these mix; then whether it was told to end, and
     * the rows. A rank leaves zero what it does not know. */
    size_t sums_len, columns; /* columns: 1, or the replicas that mix */
    double *values, *all_values; /* [sums_len], [ranks][sums_len] */
    struct squares *squares; /* of the gradients of stages, by parameter */
    bool *in_layer;          /* of those of one stage, the ones of one layer */
    double *norm_values; /* norms_room */
    bool watches;   /* for signals */
    bool ending;    /* a rank was told to end */
    uint64_t saved_step; /* of the last checkpoint of this trainer, counted from 1; 0: none */
};

extern const struct dp_reduce_ops trainer_reduce_ops;

/* steps.c: what is left to make when the engine and sums are there. */
int trainer_make_room(struct dp_trainer *t);
int trainer_make_optimizers(struct dp_trainer *t);

/* saved.c: dp_trainer_resume; optional: where there is no checkpoint nothing changes. */
int trainer_resume(struct dp_trainer *t, const char *folder, bool optional);

static inline int trainer_rank(const struct dp_trainer *t)
{
    return t->comm ? dp_comm_rank(t->comm) : 0;
}

/* Replicas train each by itself. */
static inline bool trainer_mixes(const struct dp_trainer *t)
{
    return !t->sums.none && t->sums.kind == DP_SUMS_MIXING;
}

static inline int trainer_fail(struct dp_trainer *t, int err)
{
    return engine_fail(t->comm, err);
}

/* From now on `step` is the next one. */
static inline void trainer_seek(struct dp_trainer *t, uint64_t step)
{
    t->next = step;
    t->engine->ops->seek(t->engine, step);
}

#endif
