/* SPDX-License-Identifier: Apache-2.0
 *
 * trainer.h - one rank's share of training: a step from data to better weights, and the held-out
 * loss. Collective: every rank calls the same functions with the same arguments.
 */
#ifndef DP_TRAIN_TRAINER_H
#define DP_TRAIN_TRAINER_H

#include "train/data.h"
#include "train/data_parallel.h"
#include "train/engine.h"

#include <dualpipe/offload.h>
#include <dualpipe/optimizer.h>

struct trainer_config {
    int sequences;   /* of a step, over all micro-batches */
    uint64_t steps, warmup;
    double rate, decay, clip;
    /* Of replicas, as the engine's; zeroed: there is one. */
    enum data_parallel_kind kind;
    struct dp_comm *all;          /* all ranks of all replicas; NULL: the engine's */
    struct dp_comm *pipe;         /* the ranks of this replica; NULL: there is one */
    struct dp_comm *data;         /* the same rank of all replicas */
    const struct dp_graph *graph; /* mix weights by it. Must stay */
    const struct dp_trainer_config *how; /* by which algorithm. Must stay */
    const char *state_folder;     /* of files for the optimizer's state; NULL: it is in memory */
    bool late;                    /* updates are a step late (late.h); one replica, on the CPU */
};

struct trainer;

/* What late.h needs of the step before. */
struct late {
    int (*update)(struct trainer *t, int slot, const struct dp_mixer_update *update);
    double state[4]; /* an update is due; its rate, its scale, it is skipped */
    int64_t shape;
    DLTensor tensor;              /* of state */
    real *block[DP_MAX_SLOTS];    /* gradients that are due, as the parameters of a stage lie */
    DLTensor *kept[DP_MAX_SLOTS]; /* [tensors] of them */
};

struct trainer {
    struct trainer_config config;
    const struct data *data;
    struct engine *engine;
    struct dp_comm *comm; /* of all ranks that live; NULL: alone */
    int ranks;
    double share; /* of a step's micro-batches that those have */
    struct data_parallel replicas;
    struct late late;
    double rate; /* of this step */
    struct dp_optimizer *optimizers[DP_MAX_SLOTS];
    struct dp_offload_optimizer *in_files[DP_MAX_SLOTS]; /* instead, with config.state_folder */
    struct batch batch;
    /* What ranks tell each other after a step: the losses of all micro-batches, then the sum of
     * squared gradients of each group; of each replica, where these mix. A rank leaves zero what it
     * does not know. */
    size_t sums_len, groups, columns; /* columns: 1, or the replicas that mix */
    double *sums, *all_sums; /* [sums_len], [ranks][sums_len] */
    double *squares;         /* of the gradients of one stage, by tensor */
    bool *in_group;          /* of those, the ones of one group */
    int32_t squares_room;    /* tensors of the largest stage, or shard */
    struct dp_rank_pace *paces; /* [ranks] of the last step: compute_ns and step_ns */
};

/* What a step was like; the same on every rank. */
struct step_result {
    double loss; /* mean over its bytes, in nats, before the update */
    double norm; /* of the whole gradient, before clipping; of replicas that mix the largest */
    double rate;
    bool skipped; /* the gradient was not finite, on any replica: it was not used */
};

/* data and engine must stay; the engine is not freed with the trainer. 0, DP_ENOMEM, or errors of
 * data_parallel_init. */
int trainer_init(struct trainer *t, const struct trainer_config *config, const struct data *data,
                 struct engine *engine);
void trainer_fini(struct trainer *t);

/* For the pipeline of an engine whose trainer, the user, has a data_parallel_kind: sums are under
 * way while the step goes on, and where replicas mix without clipping, updates too. */
extern const struct dp_reduce_ops train_reduce_ops;

/* Held-out losses are of so many batches. */
enum { HELD_OUT_BATCHES = 4 };

/* AdamW, as every engine has it. */
struct dp_optimizer_config trainer_optimizer(double decay);

/* Learning rate: up to `peak` over the first `warmup` steps, then along half a cosine down to a
 * tenth of it at the last. */
double trainer_rate(uint64_t step, uint64_t steps, uint64_t warmup, double peak);

/* Step number `step`, from 0. 0, or the errors of the engine. */
int trainer_step(struct trainer *t, uint64_t step, struct step_result *result);
/* Mean loss over some held-out batches, always the same ones; of replicas that mix that of the
 * average of their weights. */
int trainer_held_out(struct trainer *t, double *held_out);
/* The training is over: replicas that mix become the average of all. */
int trainer_finish(struct trainer *t);

#endif
