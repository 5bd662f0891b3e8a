/* SPDX-License-Identifier: Apache-2.0
 *
 * norms.h - the end of a step for batch normalisations.
 *
 * Every rank has noted the statistics of those micro-batches that went through its stages. They are
 * put together over all ranks, and every holder of a layer commits those of all micro-batches in their
 * order: the running statistics are the same, to the last bit, under every schedule and number of
 * replicas.
 */
#ifndef DP_TRAINER_NORMS_H
#define DP_TRAINER_NORMS_H

#include "trainer/engine.h"

/* After a step, on every rank of `all`, NULL: alone: put together what ranks have noted, in values of
 * norms_room doubles. 0, or errors of comm. */
int norms_sum(const struct engine_norms *norms, int microbatches, struct dp_comm *all, double *values);
/* values NULL: the step does not change the parameters, and what was noted in it is forgotten. */
void norms_commit(const struct engine_norms *norms, int microbatches, const double *values);
/* Where every rank of comm has all norms: theirs become those of rank `from`. */
int norms_share(const struct engine_norms *norms, struct dp_comm *comm, int from);
size_t norms_room(const struct engine_norms *norms, int microbatches);

/* The running statistics as tensors that a checkpoint has: "NAME running_mean", "NAME running_variance",
 * "NAME commits". */
enum { NORM_TENSORS = 3 };
struct norm_tensor {
    char name[192];
    int64_t shape;
    DLTensor tensor; /* refers to shape */
};
/* out[NORM_TENSORS], which must stay where they are; of a norm on other ranks data is NULL. */
void norm_tensors(const struct engine_norm *norm, struct norm_tensor *out);

#endif
