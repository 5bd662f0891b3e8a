/* SPDX-License-Identifier: Apache-2.0
 *
 * statistics.h - the end of a step for the batch normalisation of a model (mlp.c).
 *
 * Every rank has noted the statistics of those micro-batches that went through its stages. They are
 * put together over the job, and every holder of a layer commits those of all micro-batches in
 * their order: the running statistics are the same, to the last bit, under every schedule and
 * number of replicas. With norm_form.per_replica this is done within each replica; with
 * norm_form.compat nothing is, a layer's forward has committed.
 */
#ifndef DP_TRAIN_STATISTICS_H
#define DP_TRAIN_STATISTICS_H

#include "train/engine.h"

struct statistics {
    size_t len;     /* doubles of one layer; 0: there is nothing to put together */
    double *values; /* [microbatches] exports of one layer */
};

/* 0 or DP_ENOMEM. */
int statistics_init(struct statistics *s, const struct engine *engine);
void statistics_fini(struct statistics *s);

/* The running statistics of a stage as tensors that a checkpoint has: "block 3 running_mean",
 * "block 3 running_variance", "block 3 commits". */
struct statistics_tensor {
    char name[40];
    int64_t shape;
    DLTensor tensor; /* refers to shape */
};
/* How many a stage has. */
int32_t statistics_tensor_count(const struct gpt_stage *stage);
/* out[that many], which must stay where they are. */
void statistics_tensors(const struct gpt_stage *stage, struct statistics_tensor *out);

/* After a step, on every rank of `all`, which are those of the job; NULL: alone. used: the step has
 * changed the weights; otherwise what was noted in it is forgotten. 0, or errors of comm. */
int statistics_commit(const struct statistics *s, struct engine *engine, struct dp_comm *all,
                      bool used);

/* After a step that was cut off: forget what was noted in it. Replicas may have committed different
 * ones meanwhile, so that all take the statistics of the first rank of comm, which are those of replicas
 * of a whole model. 0, or errors of comm. */
int statistics_begin_again(struct engine *engine, struct dp_comm *comm);

#endif
