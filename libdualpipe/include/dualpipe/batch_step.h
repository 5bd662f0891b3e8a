/* SPDX-License-Identifier: Apache-2.0
 *
 * batch_step.h - a step of a whole batch: cut its arguments into micro-batches, carry the step out,
 * put outputs and losses together again.
 *
 *      rank with a first stage    args, kwargs --dp_split--> inputs of the step
 *      rank with a last stage     labels       --dp_split--> labels
 *                                 outputs, losses of the step --dp_merge--> *outputs, *losses
 *
 *      struct dp_tree *outputs, *losses;
 *      struct dp_batch_step batch = {
 *          .args = &args, .labels = &labels, .outputs = &outputs, .losses = &losses,
 *          .rows = 10, .loss_merge.spec = &mean };
 *      err = dp_pipeline_step_batch(pipe, &batch);
 *
 * Every rank of the pipeline makes the same call; what it has no use for stays NULL. All memory that
 * this takes is allocated before the first op of the step and after the last one.
 *
 * Threads: as for dp_pipeline_step.
 */
#ifndef DUALPIPE_BATCH_STEP_H
#define DUALPIPE_BATCH_STEP_H

#include <dualpipe/pipeline.h>

#ifdef __cplusplus
extern "C" {
#endif

struct dp_batch_held;

/* Zeroed memory plus what a rank has to give is the usual step. Trees, tensors and options must stay
 * until the call has returned, or until dp_pipeline_backward_batch has. */
struct dp_batch_step {
    /* What else the step is told: schedule, accumulate, loss_scales, context. Its inputs, labels,
     * outputs, output_grads, loaders and losses must be NULL, they are made here; extents too, if
     * rows is given. loss_values and callback_error are set as ever. */
    struct dp_step step;
    /* Where a first stage is: the arguments (microbatch.h), whose tensors and absent leaves are
     * those of border 0, in order. With two streams (DualPipe) each rank gives the half of the batch
     * that begins there. */
    const struct dp_tree *args, *kwargs;
    /* count 0: the schedule's number of micro-batches of a stream, which another count must be
     * equal to. With `mask`, borders are declared for the whole batch, and outputs are merged with
     * merge.mask. Labels, context, outputs and their gradients follow its rule, whatever theirs says;
     * with rows it is given on all ranks. */
    struct dp_split_options split;
    /* Where a last stage is, and the pipeline has labels: a tuple or list. count as above. */
    const struct dp_tree *labels;
    struct dp_split_options label_split;
    /* On any rank of a schedule of one stream: dp_step.context of the whole batch, a dict. */
    const struct dp_tree *context;
    struct dp_split_options context_split;
    /* The rows of a stream's batch, the same on all ranks: extent 1 of dp_pipeline_config is that of
     * the rows of a micro-batch, and micro-batches may be uneven. If there are fewer rows than
     * micro-batches and split.shrink allows it, on all ranks alike, the step takes that one of the
     * pipeline's schedules (`also`) that has as many micro-batches as there are rows. By the chunk rule
     * (split.rule) it takes the one that has as many as the rule makes, 3 of 4 with 5 rows. 0: all
     * micro-batches are as large as declared. */
    int64_t rows;
    /* Where a last stage is. outputs NULL: not wanted. The result of a micro-batch is a tuple of the
     * tensors of the last border, or the tensor where there is only one; it is the spec that brings
     * them into a tree. losses NULL: not wanted. Those of a micro-batch are a float64 tensor
     * [loss_values], or, where the spec is a tuple, list or dict, one without dimensions for each
     * value in order; without a spec they are stacked, [micro-batches, loss_values]. Both results
     * are written on success only, and freed by dp_tree_free; reducers must not keep the values that
     * they are given. */
    struct dp_merge_options merge, loss_merge;
    struct dp_tree **outputs, **losses;
    bool unused; /* out: this rank holds no stage. It takes part; its args, which it may give, are
                  * not looked into, and are its outputs, which refer to the same tensors. */
    /* Of dp_pipeline_backward_batch, where a last stage is: a tuple or list of the gradients of the
     * merged outputs, absent: zero; cut by grad_split as the outputs were put together, one Chunk(0)
     * for each unless it says otherwise. NULL: the backward begins with the loss. */
    const struct dp_tree *output_grads;
    struct dp_split_options grad_split;
    struct dp_batch_held *held; /* the library's, between forward and backward; NULL at first */
    uint64_t reserved[2];
};

/* Errors: those of dp_split, dp_pipeline_step and dp_merge. One of dp_split ends the step on every
 * rank, as any bad argument does; one of dp_merge comes after the step, is this rank's alone, and
 * leaves the gradients as they are. DP_EUNSUPPORTED: outputs or losses are wanted of a pipeline
 * whose memory the CPU does not reach. DP_EINVAL: a member of `step` that must be NULL. */
DP_PUBLIC int dp_pipeline_step_batch(struct dp_pipeline *pipe, struct dp_batch_step *batch);

/* The same step in two calls, as dp_pipeline_forward and dp_pipeline_backward: the first gives the
 * outputs, the second takes the caller's gradients of them. Losses come with the first. A forward
 * that fails, in its merge too, leaves nothing to be done; one that has succeeded must be followed
 * by the backward. DP_ESTATE: a backward without that, or a second forward. */
DP_PUBLIC int dp_pipeline_forward_batch(struct dp_pipeline *pipe, struct dp_batch_step *batch);
DP_PUBLIC int dp_pipeline_backward_batch(struct dp_pipeline *pipe, struct dp_batch_step *batch);
/* After a failure elsewhere, and dp_comm_reset: give up a forward that had succeeded here. Nothing
 * happens if there is none. */
DP_PUBLIC void dp_pipeline_drop_batch(struct dp_pipeline *pipe, struct dp_batch_step *batch);

#ifdef __cplusplus
}
#endif
#endif
