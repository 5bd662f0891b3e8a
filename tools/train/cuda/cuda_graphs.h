/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_graphs.h - the callbacks of a stage on CUDA, each launched as one graph where it can be.
 */
#ifndef DP_TRAIN_CUDA_GRAPHS_H
#define DP_TRAIN_CUDA_GRAPHS_H

#include "train/cuda/cuda_rank.h"

/* For a rank with that many callbacks of a kind in a step: slots times micro-batches. DP_ENOMEM. */
struct cuda_graphs;
int cuda_graphs_new(size_t callbacks, struct cuda_graphs **out);
/* None is under way. g may be NULL. */
void cuda_graphs_free(struct cuda_graphs *g);

/* compute_ops.carry_out, in a stream. */
int cuda_graphs_carry_out(struct cuda_rank *r, void *native, const struct compute_key *key,
                          bool is_static, int (*queue)(void *arg), void *arg);
/* What `queue` queues of a slot in r->stream, the same in every step: kernel by kernel the first time
 * (*seen becomes true), captured into *graph the second, launched from then on. A failure stays in
 * r->err. */
void cuda_graphs_run(struct cuda_rank *r, void (*queue)(struct cuda_rank *r, int slot), int slot,
                     struct dp_device_graph **graph, bool *seen);

/* gpt_stage_ops, by r->graphs, which may be NULL. */
int cuda_forward(void *user, const struct dp_stage_call *call, const DLTensor *in, DLTensor *out);
int cuda_backward(void *user, const struct dp_stage_call *call, const DLTensor *gout, DLTensor *gin,
                  enum dp_backward_mode mode);
int cuda_weight(void *user, const struct dp_stage_call *call);

#endif
