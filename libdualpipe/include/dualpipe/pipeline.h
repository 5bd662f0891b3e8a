/* SPDX-License-Identifier: Apache-2.0
 *
 * pipeline.h - carry a schedule out: one rank's share of a training or forward-only step.
 *
 * dp_pipeline_new compiles the rank's op list into a plan in which every buffer, save area and
 * request has its place, so that dp_pipeline_step is one loop over ops: no thread of its own, no
 * allocation, receives posted ahead, and each wait attached to the op that consumes.
 *
 *      struct dp_pipeline *pipe;
 *      dp_pipeline_new(&(struct dp_pipeline_config){
 *          .schedule = schedule, .comm = comm, .stages = stages, .borders = borders, ...}, &pipe);
 *      for (...)
 *          dp_pipeline_step(pipe, &(struct dp_step){ .inputs = ..., .labels = ..., .losses = ... });
 *
 * Who passes what to a step, and what comes back (the schedule's streams say where a first and a
 * last stage are):
 *
 *      inputs          where a first stage is: the whole batch of that stream
 *      labels          where a last stage is: the labels of the batch that ends there
 *      losses, outputs where a last stage is: of the batch that ends there, in micro-batch order
 *
 *      DualPipe   inputs: rank 0 (stream 0) and rank P-1 (stream 1)
 *                 labels, losses, outputs: rank 0 (stream 1) and rank P-1 (stream 0)
 *      DualPipeV  all on rank 0
 *      1F1B, GPipe  inputs: rank 0; labels, losses, outputs: rank P-1
 *
 * Threads: one thread at a time. Several pipelines may share a comm and stages if their steps do
 * not overlap in time and all ranks take them in the same order.
 */
#ifndef DUALPIPE_PIPELINE_H
#define DUALPIPE_PIPELINE_H

#include <dualpipe/comm.h>
#include <dualpipe/device.h>
#include <dualpipe/schedule.h>
#include <dualpipe/stage.h>

#ifdef __cplusplus
extern "C" {
#endif

struct dp_pipeline;
struct dp_recorder; /* trace.h */

/* Zeroed memory plus schedule, comm, stages and borders is the usual pipeline. */
struct dp_pipeline_config {
    const struct dp_schedule *schedule; /* training or forward-only; must outlive the pipeline */
    struct dp_comm *comm;               /* size = the schedule's ranks, rank = a group rank; may be
                                         * NULL for a schedule of one rank */
    struct dp_device *device;           /* NULL: the host */
    const struct dp_stage *stages;      /* [slots_per_rank], by slot */
    const struct dp_border *borders;    /* [stages + 1], the same on every rank */
    const struct dp_tensor_spec *label; /* of one micro-batch; NULL: no labels */
    const struct dp_loss_ops *loss;     /* needed for training where a last stage is */
    void *loss_user;
    int32_t max_loss_values;            /* of one micro-batch; 0: 1 */
    int batch_dim;                      /* along which batches are cut; default 0 */
    double loss_scale;                  /* each micro-batch's upstream gradient; 0: 1 */
    uint64_t seed;                      /* of dp_stage_call.random */
    bool fixed_order;                   /* gradients bit-equal to the sequential order, see below */
    bool unchecked;                     /* leave out the agreement check of every step */
    struct dp_recorder *recorder;       /* NULL: none */
};

/* fixed_order: weight gradients are added up as
 *
 *      (mb 0 + mb 1 + ... + mb M/2-1)  +  (mb M/2 + ... + mb M-1)      [mb_global, M >= 2]
 *
 * whatever the schedule and the number of ranks, if the gradient buffers are zero when the step
 * begins. A sequential run that adds in this order is equal to the last bit; so are DualPipe,
 * DualPipeV, 1F1B and GPipe among each other. Costs one more set of gradients where a slot sees both
 * halves. A user's schedule whose weight parts of a slot are not in mb order cannot have it:
 * DP_EUNSUPPORTED.
 *
 * Without it, a slot adds up in the order of its own weight parts, in all built-in schedules that of
 * its micro-batches: the same in every run, but rounded differently under another schedule. */

/* Collective over the comm, which stays usable whatever comes out. Errors: DP_EINVAL for a bad config
 * and for a schedule that does not pass the checker, DP_ESTATE for a border without tensors, both
 * naming what; DP_EUNSUPPORTED (fixed_order, above; two first or two last stages on a rank);
 * DP_ENOMEM with the bytes asked for; DP_EABORTED where it was another rank's config, naming the rank
 * and its sentence; DP_EMISMATCH on every rank where ranks disagree on schedule, borders or flags,
 * naming the field, the ranks and their values. */
DP_PUBLIC int dp_pipeline_new(const struct dp_pipeline_config *config, struct dp_pipeline **out);
DP_PUBLIC void dp_pipeline_free(struct dp_pipeline *pipe);

/* One step's arguments; what a rank has no use for must be NULL or 0. A rank holds at most one first
 * and one last stage (of different streams in DualPipe), so one of each is enough. */
struct dp_step {
    const DLTensor *const *inputs; /* [border 0's count], whole batch: batch_dim = N micro-batches */
    const DLTensor *label;
    const double *loss_scales;     /* [mb_per_stream] upstream gradient of each micro-batch that ends
                                    * here (say, 1 / tokens of the batch); NULL: loss_scale */
    double *losses;                /* room for [mb_per_stream * max_loss_values], or NULL */
    int32_t loss_values;           /* out: values per micro-batch; losses[mb * loss_values + i] */
    DLTensor *const *outputs;      /* [border S's count] whole batch, written; needs a schedule with
                                    * return_outputs */
};

/* Carry out one step. Gradients have been added to the stages' grads when it returns, and where the
 * schedule has REDUCE ops, the whole of them has been summed with the mirror's (so they should be
 * zero when such a step begins). After a failure no state of the step is left: the comm is aborted,
 * and after dp_comm_reset on all ranks the pipeline can be used again.
 *
 * Errors. DP_EINVAL: an argument is missing or not wanted here, elsewhere, strided, or its extent
 * along batch_dim no multiple of the micro-batches; a loss that gives another number of values than
 * before. DP_EMISMATCH: another shape or dtype than declared, of an argument or of what a stage put
 * out; ranks at different steps or pipelines (then all ranks say so, and the comm is not aborted).
 * DP_ECALLBACK on the rank whose callback failed; DP_EABORTED on all others, whatever it was;
 * DP_ETIMEDOUT, DP_ECOMM. dp_last_error() names the rank, the op, the stage and the micro-batch. */
DP_PUBLIC int dp_pipeline_step(struct dp_pipeline *pipe, struct dp_step *step);

/* The number of the next step: it keys random numbers and counts up from 0 by each step that
 * succeeded. To resume a run, and to repeat a step after a failure (a rank may have finished the
 * step in which another one failed), say on every rank which one comes next. */
DP_PUBLIC void dp_pipeline_seek(struct dp_pipeline *pipe, uint64_t step);

/* What the plan takes, known before the first step. */
struct dp_pipeline_memory {
    size_t activations_bytes, gradients_bytes, save_bytes, fixed_order_bytes, total_bytes;
    int32_t peak_activations; /* most micro-batches whose save area is alive at once */
};
DP_PUBLIC void dp_pipeline_memory(const struct dp_pipeline *pipe, struct dp_pipeline_memory *out);

#ifdef __cplusplus
}
#endif
#endif
