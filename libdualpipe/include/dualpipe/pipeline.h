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
 * What each rank passes to a step, and what comes back (the schedule's streams say where a first
 * and a last stage are):
 *
 *      inputs          where a first stage is: the micro-batches of that stream
 *      labels          where a last stage is: the labels of the micro-batches that end there
 *      losses, outputs where a last stage is: of the micro-batches that end there, in their order
 *
 *      DualPipe   inputs: rank 0 (stream 0) and rank P-1 (stream 1)
 *                 labels, losses, outputs: rank 0 (stream 1) and rank P-1 (stream 0)
 *      DualPipeV  all on rank 0
 *      1F1B, GPipe  inputs: rank 0; labels, losses, outputs: rank P-1
 *
 * Micro-batches are what dp_split (microbatch.h) makes of a batch, or what a loader made and
 * dp_split_given took: views, nothing is copied.
 *
 * Threads: one thread at a time. Several pipelines may share a comm and stages if their steps do
 * not overlap in time and all ranks take them in the same order.
 */
#ifndef DUALPIPE_PIPELINE_H
#define DUALPIPE_PIPELINE_H

#include <dualpipe/checkpoint.h>
#include <dualpipe/comm.h>
#include <dualpipe/device.h>
#include <dualpipe/microbatch.h>
#include <dualpipe/schedule.h>
#include <dualpipe/stage.h>

#ifdef __cplusplus
extern "C" {
#endif

struct dp_pipeline;
struct dp_recorder; /* trace.h */

/* What decides which op a rank carries out next. Both give the same losses, outputs and gradients,
 * in fixed order to the last bit.
 *
 * By messages, a rank carries out what a message makes possible, whichever rank it comes from and
 * in whatever order: an activation starts the forward of its micro-batch, a gradient the backward,
 * each through all stages up to the next one on another rank. A first stage begins with the
 * forwards of all micro-batches; a last stage begins its backwards, from the highest micro-batch,
 * after its last forward, and lets gradients that have arrived go first. The schedule's list says
 * what there is to do, not when. Since no order is known beforehand, buffers that live longer than
 * one op have memory of their own for the whole step (dp_pipeline_memory), and each message is
 * copied once, from one of two places where messages arrive. Source: the event loop of fairscale's
 * AsyncPipe. */
enum dp_execution {
    DP_EXECUTE_LIST,     /* the schedule's list, op by op */
    DP_EXECUTE_MESSAGES, /* the messages; all schedules must be of the kind async, and `unchecked`
                          * is not allowed: DP_EUNSUPPORTED, DP_EINVAL */
    DP_EXECUTIONS
};

/* What sums a slot's gradients with all other copies of its stage: on mirrors, and on replicas of
 * the pipeline, which the pipeline knows nothing of (replicas.h, mixer.h). Its functions return 0
 * or a negative errno, which ends the step, and are called by the thread that runs the step. All
 * ranks of a sum launch the same slots in the same order if their schedules are equal. */
struct dp_reduce_ops {
    /* The gradients of the slot are complete on this rank: start. */
    int (*launch)(void *user, int slot);
    /* 0: the sum is there. DP_EAGAIN: not yet. Called now and then between ops until it is, of one
     * slot after the other in the order of their launches. */
    int (*test)(void *user, int slot);
    /* Until it is there, with a deadline. */
    int (*wait)(void *user, int slot);
    /* May be NULL. Where the pipeline's work is in a device's streams (CUDA), this is called instead of
     * launch and test, without waiting for the gradients: queue the sum behind what `stream` has been
     * given; what it is given from then on is behind the sum. wait is called for each slot at the end
     * of the step, once all is queued and dp_step.queued has been called. */
    int (*queue)(void *user, int slot, struct dp_device_stream *stream);
    uint64_t reserved[2];
};

/* Zeroed memory plus schedule, comm, stages and borders is the usual pipeline. */
struct dp_pipeline_config {
    const struct dp_schedule *schedule; /* training or forward-only; must outlive the pipeline */
    /* Other schedules that a step may take instead, all in the same memory: forward-only, with more
     * or fewer micro-batches. Of the same slots and group ranks; must outlive the pipeline too. */
    const struct dp_schedule *const *also;
    int32_t also_count;
    uint32_t reserved;
    struct dp_comm *comm;               /* size = the schedule's ranks, rank = a group rank; may be
                                         * NULL for a schedule of one rank */
    struct dp_device *device;           /* NULL: the host */
    const struct dp_stage *stages;      /* [slots of this rank], by slot */
    const struct dp_border *borders;    /* [stages + 1], the same on every rank; border 0 may be empty
                                         * (count 0) on ranks without a first stage, border S on ranks
                                         * without a last one */
    const struct dp_tensor_spec *skips; /* [the schedule's skip_count] one micro-batch of each skip;
                                         * no_grad: no gradient comes back. The same on every rank */
    const struct dp_border *labels;     /* of one micro-batch; NULL: none */
    int64_t max_extents[DP_MAX_EXTENTS]; /* largest of what dimensions of tensors follow, such as
                                          * the rows of a micro-batch; a dimension is a multiple */
    const struct dp_loss_ops *loss;     /* needed for training where a last stage is */
    void *loss_user;
    int32_t max_loss_values;            /* of one micro-batch; 0: 1 */
    bool copy_strided;                  /* inputs and labels that are strided are copied, so that
                                         * stages and losses only see compact ones */
    uint8_t reserved1[3];
    double loss_scale;                  /* each micro-batch's upstream gradient; 0: 1 */
    uint64_t seed;                      /* of dp_stage_call.random */
    bool fixed_order;                   /* gradients bit-equal to the sequential order, see below */
    uint8_t reserved2[3];
    int32_t order_blocks;               /* of fixed_order: a power of two from the schedule's streams
                                         * to 64; 0: 2 */
    int32_t first_mb; /* of a replica of the pipeline: the place of its first micro-batch
                       * in the batch of all replicas, for mb_global and random keys */
    uint32_t reserved3;
    const struct dp_reduce_ops *reduce; /* what a REDUCE and its REDUCE_WAIT do; NULL: sum with the
                                         * mirror's. Needed for REDUCEs of slots without a mirror; not
                                         * where messages drive the ranks. The same on all
                                         * ranks */
    void *reduce_user;
    bool unsummed_copies;               /* copies of a stage (DualPipe) keep the gradients of their own
                                         * micro-batches where the schedule has no REDUCE: the caller
                                         * sums them before the update, or the copies drift apart */
    bool keep_copies;                   /* do not give copies of a stage on other ranks (DualPipe) the
                                         * parameters of that of stream 0 in dp_pipeline_new */
    bool tied_copies;                   /* copies of the stage that owns a tied group own it, too:
                                         * each gets the sum and updates, so that either may be lost */
    bool pinned_sums;                   /* the sums of fixed_order are in pinned memory, not on the
                                         * device: for stages that bring them there themselves. Host
                                         * device only */
    bool own_gradients;                 /* training needs no loss: each step is taken in two calls,
                                         * with gradients of the outputs that the caller has made */
    bool unchecked;                     /* leave out the agreement check of every step */
    bool opaque_ends;                   /* the caller has batches, labels and losses itself: the borders
                                         * 0 and S are empty, loss and labels NULL, and a step is given
                                         * neither inputs nor outputs. A last stage begins its backward
                                         * with what its forward has kept. The same on every rank */
    uint8_t reserved4;
    enum dp_execution execution;
    uint32_t reserved5;
    struct dp_recorder *recorder;       /* NULL: none */
    struct dp_device_stream *stream;    /* of the device, for dp_stage_call.stream: what is queued there
                                         * before a step is done before it. It must outlive the pipeline.
                                         * NULL: one of its own; the host has no use for one */
};

/* fixed_order: weight gradients are added up in an order that depends neither on the schedule nor
 * on the number of ranks, if the gradient buffers are zero when the step begins. The M
 * micro-batches of the whole batch (mb_global) are cut into order_blocks blocks; block b begins at
 * b * M / order_blocks, rounded down. Each block is summed in the order of its micro-batches, then
 * the blocks pairwise:
 *
 *      2 blocks     (mb 0 + ... + mb M/2-1)  +  (mb M/2 + ... + mb M-1)
 *      4 blocks     (block 0 + block 1)  +  (block 2 + block 3)
 *
 * Slots that share their parameters (dp_slot.location) are each summed by themselves, and the sums
 * are added from the last slot to the first.
 *
 * A sequential run that adds in this order is equal to the last bit; so are all schedules among
 * each other. Costs one more set of gradients for each further block that a slot sees. Where a
 * schedule has the weight part of a micro-batch before that of an earlier one of its block, the
 * part waits for its turn, and its save area with it; a stage that cannot split its backward is
 * given other memory to add to, and then the result is equal to the last bit if the stage adds one
 * value to each element of a gradient. dp_pipeline_memory says what that takes.
 *
 * Without it, a slot adds up in the order of its own weight parts, in all built-in schedules that
 * of its micro-batches: the same in every run, but rounded differently under another schedule. */

/* Collective over the comm, which stays usable whatever comes out. Errors: DP_EINVAL for a bad
 * config and for a schedule that does not pass the checker, DP_ESTATE for a border without tensors
 * and for several ranks without a comm, all naming what; DP_EUNSUPPORTED (fixed_order, above; two
 * first or two last stages on a rank); DP_ENOMEM with the bytes asked for; DP_EABORTED where it was
 * another rank's config, naming the rank and its sentence; DP_EMISMATCH on every rank where ranks
 * disagree on schedule, borders or flags, naming the field, the ranks and their values. */
DP_SIZED(dp_pipeline_new, (config, out, sizeof(struct dp_pipeline_config)),
         const struct dp_pipeline_config *config, struct dp_pipeline **out);
/* Before its comm is closed, where that is one by NCCL (nccl.h). pipe may be NULL. */
DP_PUBLIC void dp_pipeline_free(struct dp_pipeline *pipe);

/* Hands micro-batches over one at a time, so that only those are in memory that the step has begun
 * and not ended, instead of the whole batch: as many as the schedule keeps activations of on this
 * rank (dp_pipeline_memory), and those that are recomputed. */
struct dp_loader {
    /* Micro-batch mb of the stream that begins (inputs) or ends (labels) on this rank: *args a
     * tuple or list, *kwargs a dict, either may stay NULL. Called right before its forward; what it
     * hands over must stay until release. Another result than 0, a negative errno, fails the step
     * everywhere with DP_ECALLBACK. The leaves are what those of dp_step.inputs are. */
    int (*load)(void *user, int32_t mb, const struct dp_tree **args, const struct dp_tree **kwargs);
    /* Nothing reads micro-batch mb any more: inputs after its weight part, labels once its backward
     * is done; both after the forward where there is no backward, and whatever was loaded when a
     * step fails. Each that was loaded is released once. May be NULL. */
    void (*release)(void *user, int32_t mb);
    void *user;
    uint64_t reserved[2];
};

/* One step's arguments; what a rank has no use for must be NULL or 0. A rank holds at most one
 * first and one last stage (of different streams in DualPipe), so one of each is enough. The leaves
 * of args[mb], then of kwargs[mb], that are tensors or absent are the tensors of the border, in
 * order; opaque leaves reach the first stage in dp_stage_call.args. All of it must stay until the
 * step has returned. */
struct dp_step {
    const struct dp_schedule *schedule; /* NULL: the config's; else that, or one of `also`. Where ranks
                                         * choose one with backwards and a forward-only one of as many
                                         * micro-batches, all carry out the latter: see forward_only */
    bool accumulate;                    /* the next step adds to the same gradients: leave sums of
                                         * blocks, the mirror's sum and rounding to it. Until a step
                                         * without it, gradients are not what they will be. */
    /* [microbatches] by mb_global less first_mb, the same on all ranks: the extents of each
     * micro-batch, as of a batch that dp_split or dp_cut_sizes has cut unevenly. NULL:
     * max_extents. A pair is then executed as forward, then backward. */
    const int64_t (*extents)[DP_MAX_EXTENTS];
    const struct dp_microbatches *inputs;
    const struct dp_microbatches *labels;
    const struct dp_loader *input_loader, *label_loader; /* instead of inputs, of labels; each may
                                                          * be NULL */
    /* [microbatches] by mb_global less first_mb, on any rank: what its stages may read beside their
     * inputs, such as masks of attention, in dp_stage_call.context (kwargs[mb], a dict). Never sent:
     * each rank gives what its stages need. NULL: nothing. */
    const struct dp_microbatches *context;
    const struct dp_microbatches *outputs; /* tensors that are written, strided or not, whatever the
                                            * schedule says; absent: not wanted; NULL: none are */
    const struct dp_microbatches *output_grads; /* dp_pipeline_backward: gradients of the outputs,
                                                 * where a last stage is; absent: zero. NULL: the
                                                 * backward begins with the loss. */
    const double *loss_scales;     /* [mb_per_stream] upstream gradient of each micro-batch that ends
                                    * here (say, 1 / tokens of the batch); NULL: loss_scale */
    double *losses;                /* room for [mb_per_stream * max_loss_values], or NULL */
    int32_t loss_values;           /* out: values per micro-batch; losses[mb * loss_values + i] */
    /* Called by dp_pipeline_step and dp_pipeline_backward once all of the step is queued and nothing of
     * it has been waited for: what it queues in dp_pipeline_stream (norms of gradients, copies of losses
     * and flags) is done when the step returns, without another wait. Not 0, a negative errno, fails
     * the step. May be NULL. */
    int (*queued)(void *user);
    void *queued_user;
    int32_t callback_error;        /* out: what the callback that failed on this rank returned */
    bool forward_only;             /* out: the step had no backward, as its schedule has none or, of the
                                    * same micro-batches, that which another rank has chosen */
    uint64_t reserved[2];
};

/* Carry out one step. Gradients have been added to the stages' grads when it returns, and the whole of
 * those of a stage that has a copy (DualPipe) has been summed with the copy's, so they should be zero
 * when the step begins: by the schedule's REDUCEs, or, where it has none, at the end of the list, one
 * stage after the other. After a failure no state of the step is left: the comm is aborted,
 * and after dp_comm_reset on all ranks the pipeline can be used again. In a group that survives
 * (dp_comm_survive) the comm is revoked instead, with the culprit in dp_comm_aborted, and the
 * pipeline is only good for dp_pipeline_free: shrink the comm, and make a pipeline over the
 * survivors. A rank may have finished the step in which another one failed.
 *
 * Errors. DP_EINVAL: an argument is missing or not wanted here, elsewhere, or has another number of
 * micro-batches or tensors than declared; a loss that gives another number of values than before.
 * DP_EMISMATCH: another shape or dtype than declared, of an argument or of what a stage put out;
 * ranks at different steps or pipelines (then all ranks say so, and the comm is not aborted).
 * DP_ECALLBACK on the rank whose callback failed; DP_EABORTED on all others, whatever it was;
 * DP_ETIMEDOUT, DP_ECOMM. dp_last_error() names the rank, the op, the stage and the micro-batch. */
DP_PUBLIC int dp_pipeline_step(struct dp_pipeline *pipe, struct dp_step *step);

/* In words what a rank did last, as dp_abort.doing has it of a culprit that was in a step: "weight of
 * micro-batch 3 in stage 2, step 7"; "" for 0. Returns text, which is cut to room. Any thread. */
DP_PUBLIC const char *dp_pipeline_doing_text(uint64_t doing, char *text, size_t room);

/* The same step in two calls, for callers that take the loss of the outputs themselves: all
 * forwards, then, with the caller's gradients of the outputs, all backwards. The same step argument
 * in both; inputs and outputs must stay until the second has returned. For schedules that have
 * every forward of a rank before its first backward (GPipe, and with them recomputation);
 * DP_EUNSUPPORTED elsewhere. Between the two nothing else may use the pipeline: DP_ESTATE. A step that
 * turns out to be forward_only ends with the first. */
DP_PUBLIC int dp_pipeline_forward(struct dp_pipeline *pipe, struct dp_step *step);
DP_PUBLIC int dp_pipeline_backward(struct dp_pipeline *pipe, struct dp_step *step);

/* The stream in which its stages compute, for work that belongs to a step but is no callback: what is
 * queued there between two steps (a batch that is copied up, an optimizer) is done after the one and
 * before the other, and nothing waits for it. It lasts as long as the pipeline. */
DP_PUBLIC struct dp_device_stream *dp_pipeline_stream(const struct dp_pipeline *pipe);

/* Tied parameters (dp_parameter.tied) of different stages, as an embedding and a head: the members
 * of a group are one parameter, which its owner updates. The owner is the member of the earliest
 * stage, of two copies of that the one of stream 0. Per step: sum, update what dp_pipeline_owns
 * says, broadcast. Members start equal, as dp_pipeline_new broadcasts too (unless keep_copies).
 *
 * sum_tied adds the gradients of all members to the owner's, from the last stage to the first, and
 * sets them to zero, so that norms over all ranks count the parameter once. The gradients of a
 * stage's copy are left out where the step has summed them with its mirror's.
 * broadcast_tied brings the owner's values to all. With tied_copies the copies of the owner's stage get
 * the same sum and are owners, too, and a member of an owner's rank gets its values from there, without
 * a message; of the norm only one of them is part. Both are collective over the comm, between
 * steps, and move at most 256 KiB at a time; over NCCL (nccl.h) 4 MiB from GPU to GPU, added up
 * there, and the host waits once, at the end. DP_ESTATE in the middle of a step; DP_ECOMM,
 * DP_ETIMEDOUT, DP_EABORTED. dp_pipeline_new says DP_EMISMATCH on every rank where members differ
 * in type, shape or strides, and DP_EUNSUPPORTED for gradients of two bytes. */
DP_PUBLIC int dp_pipeline_sum_tied(struct dp_pipeline *pipe);
DP_PUBLIC int dp_pipeline_broadcast_tied(struct dp_pipeline *pipe);
/* Whether this rank updates a parameter of a slot: true for any that is not tied. */
DP_PUBLIC bool dp_pipeline_owns(const struct dp_pipeline *pipe, int slot, int32_t parameter);

/* From the next step on the parameters of a slot of this rank are in other memory: the same list,
 * with the same names, types and shapes, which must stay as the first did. DP_EMISMATCH, DP_ESTATE.
 * */
DP_PUBLIC int dp_pipeline_bind(struct dp_pipeline *pipe, int slot,
                               const struct dp_parameter *parameters);

/* The number of the next step: it keys random numbers and counts up from 0 by each training step
 * that succeeded; an evaluation does not count. To resume a run, and to repeat a step after a
 * failure (a rank may have finished the step in which another one failed), say on every rank which
 * one comes next. */
DP_PUBLIC void dp_pipeline_seek(struct dp_pipeline *pipe, uint64_t step);

/* State goes to another layout: each rank of comm names the tensors that it has, as parameters and the
 * state of their optimizer (dp_optimizer_state), and those that it needs. What it has itself is
 * copied, the rest is sent by the first rank that has a tensor of that name, or a piece of it:
 * "NAME[first:end]" and "NAME[first:end]/mean" have elements first to end - 1 of "NAME" and
 * "NAME/mean", as shards do (dp_replicas_shard); pieces may overlap, and what is needed may be other
 * pieces. So after the death of a rank of DualPipe, whose mirror has both of its stages, any layout of
 * the survivors (dp_comm_shrink) gets what a checkpoint of the last update would have, without one.
 * Names are those of a checkpoint: the same in every layout. Collective; tensors are compact, and in
 * the host's memory. The same on every rank: DP_ENOENT for a tensor that no rank has, DP_EMISMATCH for
 * one of another type or shape, DP_EINVAL, all naming tensor and rank. DP_ENOMEM and errors of comm;
 * comm is then aborted, or revoked where its group survives, and what is in `wants` is not to be
 * used. */
DP_PUBLIC int dp_pipeline_move_state(struct dp_comm *comm, const struct dp_named_tensor *has,
                                     int32_t has_count, const struct dp_named_tensor *wants,
                                     int32_t wants_count);

/* What the plan takes, known before the first step. */
struct dp_pipeline_memory {
    size_t activations_bytes, gradients_bytes, save_bytes, fixed_order_bytes, total_bytes;
    int32_t peak_activations; /* most micro-batches whose save area is on the device at once */
    uint32_t reserved;
    size_t evicted_bytes;     /* on the host, in total_bytes, too; all others are on the device */
};
DP_SIZED_REPORT(dp_pipeline_memory, (pipe, out, sizeof(struct dp_pipeline_memory)),
                const struct dp_pipeline *pipe, struct dp_pipeline_memory *out);
/* The same, exactly, of a pipeline that is not made: that of a pipeline rank. The config's comm is
 * left out (NULL), stages are those of that rank, and only the shapes of their parameters are read.
 * DP_EINVAL for a rank that is not there and for a schedule that does not pass the checker; errors of
 * dp_pipeline_new. Any thread. */
DP_PUBLIC int dp_pipeline_measure_sized(const struct dp_pipeline_config *config, int rank,
                                        struct dp_pipeline_memory *out, size_t size, size_t out_size);
static inline int dp_pipeline_measure(const struct dp_pipeline_config *config, int rank,
                                      struct dp_pipeline_memory *out)
{
    return dp_pipeline_measure_sized(config, rank, out, sizeof(struct dp_pipeline_config),
                                     sizeof(struct dp_pipeline_memory));
}

/* For dp_nccl_config.peers (nccl.h): what this pipeline rank sends and receives under the schedule,
 * with ranks of the communicator. out has room for schedule->ranks; returns how many it took, or
 * DP_EINVAL. Tied parameters may need a channel of reductions more. Any thread. */
struct dp_nccl_peer;
DP_PUBLIC int dp_pipeline_nccl_peers(const struct dp_schedule *schedule, int rank,
                                     struct dp_nccl_peer *out);

#ifdef __cplusplus
}
#endif
#endif
