/* SPDX-License-Identifier: Apache-2.0
 *
 * model_engine.h - the engine of a model: its layers as stages of a pipeline, which may have one
 * rank.
 */
#ifndef DP_TRAINER_MODEL_ENGINE_H
#define DP_TRAINER_MODEL_ENGINE_H

#include "trainer/model.h"
#include "trainer/place.h"

struct engine;

struct model_engine_config {
    const struct dp_trainer_config *how;
    const struct model_info *model;
    const struct dp_schedule *training, *forward;
    const int32_t *first_layer; /* [stages + 1] */
    struct dp_comm *comm;       /* of this replica; NULL: one rank */
    bool spare;                 /* this rank has no stages, and nothing to do in a step */
    struct dp_comm *all;        /* of all, for errors; NULL: this process is alone */
    struct replica replica;
    struct place *place;
    bool away; /* parameters live in the host's memory, whatever the place */
    int32_t microbatches;               /* of all replicas */
    int32_t order_blocks;               /* of this one; 0: any order */
    const struct dp_reduce_ops *reduce; /* NULL: the pipeline sums mirrors itself */
    void *reduce_user;
    bool bare; /* to see what a rank of the pipeline takes: comm is NULL, and there is no pipeline */
    int rank;
    const struct device_room *rooms; /* [ranks] NULL: a device has no limit */
};

/* What a rank may have on the device. */
struct device_room {
    size_t limit_bytes;  /* of it, the optimizer's state aside */
    size_t window_bytes; /* for layers that pass, at least as much as these need */
};

/* What is given must stay. Errors of dp_pipeline_new, on every rank. */
int model_engine_new(const struct model_engine_config *config, struct engine **out);
void model_engine_free(struct engine *e); /* may be NULL */

/* These return 0 or a negative errno.
 *
 * Forward and backward of this replica's micro-batches: gradients of the mean loss are added to those of
 * the parts here, which must be zero. losses[M]: of the micro-batches whose loss is taken on this rank;
 * the others stay as they are. */
int model_engine_train(struct engine *e, const struct dp_batch *batch, double *losses);
/* The same without backward and dropout. */
int model_engine_evaluate(struct engine *e, const struct dp_batch *batch, double *losses);
/* The gradients of a slot are complete: bring them to where its parameters live. */
int model_engine_fetch(struct engine *e, int slot);
/* Tied parameters: gradients are summed at the owner and zero at the copies; the owner's values go to
 * all copies; whether this rank updates a parameter of a slot. */
int model_engine_sum_tied(struct engine *e);
int model_engine_broadcast_tied(struct engine *e);
bool model_engine_owns(const struct engine *e, int slot, int parameter);
/* The number of the next training step, which keys random numbers. */
void model_engine_seek(struct engine *e, uint64_t step);

/* Where its stages are, and how they went: all members but those of a choice. */
void model_engine_offload(const struct engine *e, struct dp_trainer_offload *out);

/* Of a bare one: what of it is on the device beside the pipeline's memory, without the optimizer's state
 * and the room for layers that pass; the least that these need. */
size_t model_engine_resident(const struct engine *e);
size_t model_engine_windows(const struct engine *e, DLDataType rounds);
/* The same: the pipeline's memory on the device, if it trains by another list. */
int model_engine_planned(struct engine *e, const struct model_engine_config *config,
                         const struct dp_schedule *training, size_t *bytes);
/* Of a bare one: bytes of all that it would hold without the optimizer's state. *saved becomes what a
 * stage saves of a micro-batch, if that is more. */
int model_engine_memory(struct engine *e, const struct model_engine_config *config, size_t *bytes,
                        size_t *saved);
/* The same: an optimizer of what a slot owns, of all parameters or of those that stay on the device,
 * which only says what its state is; NULL: there are none. */
int model_engine_optimizer(struct engine *e, const struct dp_optimizer_config *how, int slot, bool all,
                           struct dp_optimizer **out);
/* The same: add what the optimizers' state would take. */
int model_engine_state(struct engine *e, const struct dp_optimizer_config *how, bool all,
                       size_t *bytes);
/* By one that has all layers, in the host's memory: so many steps on zeros and an update, which leave
 * nothing but their times[layers + 1]; the loss is in those of the last layer. */
struct stage_times;
int model_engine_measure(const struct model_engine_config *config, int steps,
                         struct stage_times *times);

#endif
