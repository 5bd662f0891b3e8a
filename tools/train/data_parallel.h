/* SPDX-License-Identifier: Apache-2.0
 *
 * data_parallel.h - what ranks that hold the same stage do with each other after its last gradient:
 * those of DualPipe's mirrors and of replicas of the pipeline.
 *
 *      sum       gradients are summed over all of them, which keeps them equal
 *      shard     the same, but each updates a part of the weights, which are then gathered
 *      mix       gradients are summed with the mirror's; each replica updates its own weights and
 * mixes them with those of other replicas by a graph
 *
 * Where stages are on a device and ranks send from there by NCCL (engine.sums_on), all of it is done
 * on the device, and queued; of mixers D-PSGD only. Otherwise it is done in the host's memory:
 * gradients are copied down for it, and their sums up again, or, where a shard or a mixer has updated
 * them, the weights.
 */
#ifndef DP_TRAIN_DATA_PARALLEL_H
#define DP_TRAIN_DATA_PARALLEL_H

#include "train/engine.h"

#include <dualpipe/mixer.h>
#include <dualpipe/optimizer.h>
#include <dualpipe/replicas.h>
#include <dualpipe/trainer.h>

enum data_parallel_kind {
    DATA_PARALLEL_NONE,
    DATA_PARALLEL_SUM,
    DATA_PARALLEL_SHARD,
    DATA_PARALLEL_MIX
};

struct data_parallel_config {
    enum data_parallel_kind kind; /* NONE: nothing to do, all other members are ignored */
    struct dp_comm *all;          /* all ranks of all replicas */
    struct dp_comm *data;         /* mix: the same rank of all replicas */
    const struct dp_graph *graph; /* mix */
    const struct dp_trainer_config *how; /* mix: its mixing */
    struct dp_optimizer_config optimizer;
};

/* Of the stage in one slot. */
struct data_parallel_slot {
    struct dp_comm *same, *data;
    struct dp_replicas *sums; /* mirrors, and replicas that do not mix; NULL: neither */
    struct dp_mixer *mixer;         /* mix */
    struct dp_optimizer *optimizer; /* shard */
};

struct data_parallel {
    enum data_parallel_kind kind;
    struct engine *engine;
    struct data_parallel_slot slots[DP_MAX_SLOTS];
    int order[DP_MAX_SLOTS], count; /* slots in an order that is the same for both ranks of each pair of
                                     * mirrors: in another one they would wait for each other */
};

/* Collective over `all`; the engine, the communicators and the graph must stay. Errors of the
 * library. */
int data_parallel_init(struct data_parallel *d, const struct data_parallel_config *config,
                       struct engine *e);
void data_parallel_fini(struct data_parallel *d);

/* Before the forwards of a step. */
int data_parallel_begin(struct data_parallel *d);
/* The gradients of a slot are complete: start to sum them. test: DP_EAGAIN while it is not done. */
int data_parallel_sum(struct data_parallel *d, int slot);
int data_parallel_test(struct data_parallel *d, int slot);
int data_parallel_wait(struct data_parallel *d, int slot);
/* The tensors whose gradients are the sum now: those of the stage, or of this rank's shard. */
const struct dp_parameter *data_parallel_summed(const struct data_parallel *d, int slot,
                                                int32_t *count);
/* shard, mix: update the weights of a slot; gradients become zero. What is sent
 * for it is in flight until data_parallel_settle, or the next step. */
int data_parallel_update(struct data_parallel *d, int slot, const struct dp_mixer_update *update);
/* shard, after them: the weights of all slots are whole again. */
int data_parallel_settle(struct data_parallel *d);

/* mix: the weights of all replicas become their average, for good or until data_parallel_revert. */
int data_parallel_average(struct data_parallel *d, bool revert);
int data_parallel_revert(struct data_parallel *d);

#endif
