/* SPDX-License-Identifier: Apache-2.0
 *
 * trainer_run.h - a training of a few steps by the trainer, on threads, and what it came to.
 */
#ifndef DP_TESTS_TRAINER_RUN_H
#define DP_TESTS_TRAINER_RUN_H

#include "scratch.h"
#include "trainer_models.h"

#include <dualpipe/trainer.h>

enum { STEPS = 4, ROWS = 24, LESS_ROWS = 19, MICROBATCHES = 8, MAX_VALUES = 600, LAYOUTS = 13 };
static const int64_t timeout_ns = INT64_C(60000000000);

/* What it came to: that of rank 0. */
struct curve {
    double losses[STEPS], norms[STEPS], held_out;
    double scales[STEPS];      /* of losses */
    bool skipped[STEPS], ending[STEPS];
    int32_t tensors;
    float values[MAX_VALUES];
};

struct layout {
    enum dp_schedule_kind kind;
    int ranks, replicas;
    enum dp_sums sums;
    enum dp_recompute recompute;
};

struct job {
    enum model_kind model;
    struct layout layout;
    enum dp_mixer_algorithm algorithm;
    int microbatches;          /* 0: MICROBATCHES */
    const char *folder;        /* of checkpoints; NULL: none */
    const char *from;          /* the checkpoint to begin with; NULL: none */
    uint64_t stop;             /* a step before which it stops; 0: none */
    int fail_layer, fail_mb;   /* a layer that fails */
    struct dp_loss_scale scale;
    bool offloads;             /* parameters live on the host; */
    bool evicts, moves_state, files; /* so may activations, and the optimizer's state, in a file */
    double kept_share;
    size_t budget;             /* on the device */
    uint64_t told_at;          /* a step, from 1, before which the last rank gets SIGTERM; 0: none */
    bool rarely;               /* no step is saved but by a signal and at the end */
    bool rounds;               /* layers are given rounded values, too */
    bool loads;                /* batches come from loaders */
    bool freezes;              /* the first layer's w is frozen */
    bool late;                 /* updates are */
    bool lists, unreduced;     /* the schedule is made before; without REDUCEs */
    const int32_t *balance;    /* layers of each stage; NULL: by cost */
    bool measured;             /* by what layers take */
    const char *device;        /* where it trains; NULL: the host */
    bool unknown;              /* batches are a later release's, and ask for what is not known */
    struct curve *curve;
};

extern const struct layout one, layouts[LAYOUTS];

/* Every third batch has fewer rows, which do not divide. */
int with_batch(struct dp_trainer *t, const struct job *job, uint64_t step,
               struct dp_trainer_result *result, double *held_out);
struct dp_trainer_config config_of(const struct job *job);
int learn(struct dp_comm *comm, const struct job *job);
struct curve run(struct job job);
/* The norm of a gradient in shards is added up in another order. */
void assert_same(const struct curve *a, const struct curve *b);
void remove_folder(const char *folder);
void make_folder(char path[SCRATCH_LEN]);

#endif
