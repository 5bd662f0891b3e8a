/* SPDX-License-Identifier: Apache-2.0
 *
 * remote.h - a pipeline that one process drives: rank 0 hands a batch over and gets the outputs,
 * takes a loss of them, and hands back their gradients. The other ranks serve (controller.h).
 *
 *      struct dp_worker_function functions[DP_REMOTE_FUNCTIONS];
 *      dp_remote_functions(&remote, functions);                  every rank, into its table
 *
 *      rank 0:  dp_remote_forward(controller, &remote, 0, &outputs);
 *               ... gradients of the outputs ...
 *               dp_remote_backward(controller, &remote, &grads, 0);
 *               dp_controller_foreach(controller, "update", ...)      a function of the caller's
 *
 * Source: PipeRPCWrapper and back_helper of fairscale's AsyncPipe.
 */
#ifndef DUALPIPE_REMOTE_H
#define DUALPIPE_REMOTE_H

#include <dualpipe/batch_step.h>
#include <dualpipe/controller.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One rank's part; zeroed memory plus pipe, and on rank 0 batch.args, is the usual one. */
struct dp_remote {
    /* Over the communicator of the controller; of one stream, with own_gradients where no loss is
     * to be taken in the step, and a schedule that has all forwards first (dp_pipeline_forward). */
    struct dp_pipeline *pipe;
    /* As for dp_pipeline_forward_batch: what enters is given on rank 0, which holds the first
     * stage, labels and specs of results where the last one is. rows need only be given on rank 0;
     * outputs and output_grads are set here. */
    struct dp_batch_step batch;
    struct dp_tree *outputs; /* the library's; NULL at first */
};

enum { DP_REMOTE_FUNCTIONS = 2 };
/* "dp.forward" and "dp.backward", for the table of this rank's controller. remote must stay. */
DP_PUBLIC void dp_remote_functions(struct dp_remote *remote,
                                   struct dp_worker_function functions[DP_REMOTE_FUNCTIONS]);

/* On rank 0: the forwards of a step on all ranks. *outputs is what the last stage's rank has merged:
 * its tensor, or a tuple of its tensors in order, in memory of this process, freed by dp_tree_free.
 * deadline_ns as for dp_controller_foreach. Errors: those of dp_controller_foreach; DP_ECALLBACK
 * with the sentence of the first rank that failed; where the step has failed the group is aborted,
 * and that is DP_EABORTED: every rank then calls dp_comm_reset and dp_pipeline_drop_batch(pipe,
 * &batch), and the workers serve again. */
DP_PUBLIC int dp_remote_forward(struct dp_controller *c, struct dp_remote *remote,
                                int64_t deadline_ns, struct dp_tree **outputs);
/* After it: the backwards, from these gradients: a tuple or list of a tensor for each output, absent:
 * zero; NULL: from the loss. Host memory. Errors as above; DP_EINVAL for a tree that is no such
 * list. */
DP_PUBLIC int dp_remote_backward(struct dp_controller *c, struct dp_remote *remote,
                                 const struct dp_tree *output_grads, int64_t deadline_ns);

#ifdef __cplusplus
}
#endif
#endif
