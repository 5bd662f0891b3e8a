/* SPDX-License-Identifier: Apache-2.0
 *
 * trainer_state.h - what a rank has of its training. new.c makes it, steps.c takes the steps, saved.c
 * writes it down.
 */
#ifndef DP_TRAINER_STATE_H
#define DP_TRAINER_STATE_H

#include "trainer/engine.h"
#include "trainer/fit.h"
#include "trainer/late.h"
#include "trainer/model.h"
#include "trainer/norms.h"
#include "trainer/place.h"
#include "trainer/squares.h"
#include "trainer/sums.h"

#include <dualpipe/checkpoint.h>

struct dp_trainer {
    struct dp_trainer_config config;
    char *folder, *about, *state_folder; /* copies that config has */
    struct model_info model;
    struct dp_comm *comm;   /* of all ranks that live; NULL: alone */
    struct dp_comm *owned;  /* this or one of before, unless it is the caller's; NULL: none is */
    struct dp_comm *joined; /* of dp_trainer_join */
    /* Parts, which a layout has, to paces: trainer_clear_parts. */
    struct dp_comm *team; /* of those with a place in the layout, where some have none */
    struct dp_comm *pipe, *data;
    const struct dp_schedule *training;
    struct dp_schedule *made, *forward; /* made: training, unless it was given */
    const struct dp_graph *graph;
    struct dp_graph *made_graph;
    int32_t *first_layer;
    struct engine *engine;
    struct sums sums;
    struct dp_optimizer *optimizers[DP_MAX_SLOTS]; /* NULL: shards and mixers have their own, */
    struct dp_offload_optimizer *in_files[DP_MAX_SLOTS]; /* or all of it is here */
    struct fit fit; /* zeroed: all of a rank may be on its device */
    int32_t *names, name_count; /* of ranks that live, as all have agreed last: their numbers at first */
    /* What ranks tell each other after a step: the losses of all micro-batches, then the sum of squared
     * gradients of each layer; of each replica, where these mix; then how fast it was, whether it was
     * told to end, and the rows. A rank leaves zero what it does not know. */
    size_t sums_len, columns; /* columns: 1, or the replicas that mix */
    double *values, *all_values; /* [sums_len], [ranks][sums_len] */
    struct squares *squares; /* of the gradients of stages, by parameter */
    bool *in_layer;          /* of those of one stage, the ones of one layer */
    double *norm_values; /* norms_room */
    struct late *late;   /* NULL: updates are not late */
    struct dp_rank_pace *paces; /* [ranks] of the last step */

    struct place *place; /* where it computes */
    struct place *home;  /* where parameters live: the same, or the host */
    int32_t *cut; /* config.layers_of_stage, for the layouts of those that survive */
    int ranks;
    int32_t own_blocks; /* of the fixed order, of this replica */
    struct {            /* the layout at first */
        enum dp_schedule_kind kind;
        int ranks, replicas;
    } given;
    int prepared; /* what this rank found out by itself, before any other */
    uint64_t digests[2]; /* of config and model as they were then, which are the same on all ranks */
    bool begun;   /* parameters are there, and move to the next layout */
    int32_t name;                      /* this rank's number at first */
    int32_t *lost, lost_count;  /* those of ranks that died */
    bool failed;       /* the last agreement said so */
    uint64_t repeated; /* the last step that was repeated, counted from 1 */
    uint64_t next;  /* step */
    double rate;    /* of this step */
    bool watches;   /* for signals */
    bool ending;    /* a rank was told to end */
    uint64_t saved_step; /* of the last checkpoint of this trainer, counted from 1; 0: none */
};

/* Of gradients where they are computed, and of those that are brought to the host. */
extern const struct dp_reduce_ops trainer_reduce_ops, trainer_host_reduce_ops;

/* steps.c: what is left to make when the engine and sums are there. */
int trainer_make_room(struct dp_trainer *t);
int trainer_make_optimizers(struct dp_trainer *t);

/* new.c: what this rank finds out by itself; P, D and M as far as the config leaves them open; what
 * follows from them, without and with what is measured, collective; the parts, collective; all of it,
 * with the state to begin with, collective; what these are forgotten by. */
int trainer_prepare(struct dp_trainer *t, const struct dp_trainer_config *config,
                    const struct dp_model *model);
int trainer_check_config(const struct dp_trainer_config *config);
int trainer_take_shape(struct dp_trainer *t);
int trainer_lay_out(struct dp_trainer *t);
int trainer_lay_out_all(struct dp_trainer *t);
int trainer_begin(struct dp_trainer *t);
int trainer_make_parts(struct dp_trainer *t);
void trainer_free_parts(struct dp_trainer *t);
void trainer_clear_parts(struct dp_trainer *t);
/* Of a trainer that is laid out and has a place: what a pipeline rank would hold, of shards but the rest
 * of a division; *saved becomes what a stage of it saves of a micro-batch, if that is more. */
int trainer_rank_memory(struct dp_trainer *t, int rank, size_t *bytes, size_t *saved);

/* steps.c: ranks that survive agree on how far they have come. The rule that keeps them from waiting for
 * each other: each comes to trainer_agree exactly once after each part that all carry out, whether it
 * has got through or not. */

/* What a call that failed may have met is the death of a rank. */
bool trainer_may_be_death(int err);
/* A part has failed here for good: no rank waits for this one. */
void trainer_revoke(struct dp_trainer *t, int err);
/* Collective over the ranks that live: err is what the part returned here. 0 on all of them: it was 0 on
 * all, and all live. DP_ECOMM on all where one is dead or its part has failed, unless their own had
 * failed already; an err that is no death is returned at once. Without config.survive it is err. */
int trainer_agree(struct dp_trainer *t, int err);
/* Of replicas that mix those that the mixer has now. */
void trainer_take_members(struct dp_trainer *t);

/* steps.c: of a step what comes before parameters change, and its end; an evaluation, as loss. */
struct trainer_step {
    const struct dp_batch *batch;
    int err; /* of a batch that was not taken whole */
    struct dp_trainer_result result;
};
int trainer_learn(struct dp_trainer *t, void *step);
int trainer_update(struct dp_trainer *t, bool skipped);
int trainer_evaluate(struct dp_trainer *t, void *step);
/* What delay_update has left. */
int trainer_catch_up(struct dp_trainer *t);

/* saved.c: dp_trainer_save, folder NULL: the config's, and err what all have failed by, which is no
 * death: they have got through, and go on together; dp_trainer_gather. */
struct trainer_saving {
    const char *folder;
    int err;
    char why[DP_ABORT_TEXT];
};
struct trainer_gathered {
    int rank;
    struct dp_named_tensor *tensors;
    int32_t count;
};
int trainer_save(struct dp_trainer *t, void *saving);
int trainer_gather(struct dp_trainer *t, void *gathered);

enum { SAVED_NAME = 256 };

/* saved.c: tensors by the names that a checkpoint has. */
enum saved_which {
    SAVED_FIRST,  /* which this rank is the first of all to hold */
    SAVED_HELD,   /* all that it holds */
    SAVED_WANTED  /* and copies of tied parameters */
};
struct saved_list {
    struct dp_named_tensor *tensors;
    int32_t count;
    struct norm_tensor *norms; /* what some of tensors refer to */
    int32_t norm_count;
    char (*names)[SAVED_NAME]; /* the same */
    void *average[DP_MAX_SLOTS]; /* saved_mixing_list */
};
int saved_list_new(const struct dp_trainer *t, enum saved_which which, struct saved_list *out);
void saved_list_fini(struct saved_list *l);

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

/* Replicas that mix go on without those that die, which no layout changes: each is one rank. */
static inline bool trainer_survives_apart(const struct dp_trainer *t)
{
    return t->config.survive && t->config.sums == DP_SUMS_MIXING;
}

static inline int trainer_fail(struct dp_trainer *t, int err)
{
    return engine_fail(t->comm, err);
}

/* From now on `step` is the next one. */
static inline void trainer_seek(struct dp_trainer *t, uint64_t step)
{
    t->next = step;
    model_engine_seek(t->engine, step);
}

#endif
