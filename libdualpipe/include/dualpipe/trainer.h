/* SPDX-License-Identifier: Apache-2.0
 *
 * trainer.h - train a model (model.h) over P stages x D replicas: a step from a batch to better
 * parameters, evaluation, checkpoints, and going on from one under any layout.
 *
 *      struct dp_trainer_config config = {.schedule.kind = DP_SCHEDULE_DUALPIPE, .microbatches = 8,
 *                                         .rows = 64, .optimizer = dp_optimizer_defaults(...), ...};
 *      err = dp_trainer_new(&config, &model, comm, &trainer);
 *      while (!err && dp_trainer_next_step(trainer) < steps)
 *          err = dp_trainer_step(trainer, &batch, &result);
 *      if (!err)
 *          err = dp_trainer_finish(trainer);
 *      dp_trainer_free(trainer);
 *
 * Ranks of comm are a grid: replica after replica, and in each the P ranks of a pipeline. All functions
 * that say "collective" are called by every rank of comm in the same order.
 *
 * Errors. What fails on one rank reaches every rank: the comm is aborted, and dp_last_error() names the
 * rank, and of a layer's callback the layer, the micro-batch and its sentence. A trainer is then only
 * good for dp_trainer_free. Threads: one at a time, that of the comm.
 */
#ifndef DUALPIPE_TRAINER_H
#define DUALPIPE_TRAINER_H

#include <dualpipe/checkpoint.h>
#include <dualpipe/mixer.h>
#include <dualpipe/model.h>
#include <dualpipe/optimizer.h>
#include <dualpipe/options.h>
#include <dualpipe/pipeline.h>
#include <dualpipe/schedule.h>
#include <dualpipe/trace.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How layers are cut into stages. */
enum dp_balance {
    DP_BALANCE_COST, /* by dp_layer.cost: the largest stage, of a rank with two the largest sum, is as
                      * small as can be */
    DP_BALANCE_GIVEN, /* layers_of_stage */
    DP_BALANCE_MEASURED /* by what rank 0 measures that layers take, with all of them in its memory and
                         * zeros as inputs and labels; where it trains */
};

/* What replicas do with each other. */
enum dp_sums {
    DP_SUMS_ALL,    /* gradients are summed, all replicas update all parameters */
    DP_SUMS_SHARDS, /* the same, but each updates a part, with 1 / D of the optimizer's state, or with
                     * survive 2 / D */
    DP_SUMS_MIXING  /* each trains by its own gradients, and parameters are mixed by a graph (mixer.h) */
};

/* Zeroed memory plus rows, an optimizer and a rate is a pipeline over all ranks, or, with one rank, no
 * pipeline. All of it is copied; graph.user and what `about` points to must stay until dp_trainer_new
 * has returned. */
struct dp_trainer_config {
    /* ranks: P, 0: what replicas leave of comm; kind DP_SCHEDULE_USER: 1F1B, and of one rank GPipe.
     * microbatches, forward_only, mirror_reduce, reduce_all and skips are the trainer's. */
    struct dp_schedule_spec schedule;
    const struct dp_schedule *list; /* a training schedule that is made, instead: P and M / D follow from
                                     * it. It must stay. Without REDUCEs gradients are summed with other
                                     * replicas after a step instead of during it; DualPipe needs them */
    enum dp_execution execution;    /* pipeline.h; what messages drive is a list without REDUCEs */
    int32_t replicas;               /* D; 0: 1 */
    int32_t microbatches;           /* M of a step, of all replicas together; 0: the fewest that the
                                     * schedule takes, times D */
    uint32_t reserved;
    int64_t rows;                   /* of a whole step, of all replicas: the most there are */
    enum dp_balance balance;
    uint32_t reserved1;
    const int32_t *layers_of_stage; /* [stages] */
    enum dp_sums sums;
    uint32_t reserved2;
    struct {
        struct dp_graph_spec graph; /* name NULL: "ring" */
        const struct dp_graph *made; /* instead; it must stay */
        enum dp_mixer_algorithm algorithm;
        enum dp_mixer_compression compression;
        int32_t staleness, local_steps; /* of DP_MIXER_LOCAL_SGD; 0: 8 */
        double factor, outer_rate, outer_momentum; /* outer_rate of the same; 0: 1 */
    } mixing;
    struct dp_optimizer_config optimizer; /* its groups and memory are not used */
    struct dp_rate rate;
    double clip;                    /* largest norm of the whole gradient; 0: none */
    bool delay_update;              /* the gradients of a step are used in the next one, so that no step
                                     * waits for its own update; with DP_SUMS_ALL */
    uint8_t reserved3[7];
    struct dp_loss_scale loss_scale; /* gradients are of the loss times this, until they are used; after
                                      * a step that was skipped and a number of good ones another; scale
                                      * 0: none. dp_loss_scale_defaults() is the usual one */
    bool fixed_order;               /* losses and parameters are the same to the last bit under every
                                     * schedule, P and D with the same microbatches and order_blocks */
    uint8_t reserved4[3];
    int32_t order_blocks;           /* of fixed_order (pipeline.h), of all replicas: a power of two; 0:
                                     * the fewest that this layout takes, at least 4 */
    uint64_t seed;
    DLDataType dtype;               /* bfloat16 or float16: parameters, all of float32, are rounded to it
                                     * at the beginning of a step, and layers are given both (model.h);
                                     * zeroed: no */
    uint32_t reserved5;
    /* Where stages compute; NULL: on the host. On one of CUDA parameters, gradients, the optimizer's
     * state and all that layers are given (model.h) are in its memory, updates and norms are computed
     * there, and the host waits for the end of a step only. Batches may be in the host's memory. The
     * device stays open. stream: of it, in which all is queued; NULL: one of the trainer's. */
    struct dp_device *device;
    struct dp_device_stream *stream;
    bool nccl; /* messages, sums and mixing go from GPU to GPU by NCCL (nccl.h), and every kernel is
                * launched by a step on zeros before. Without it that is done in the host's memory, where
                * the parameters of replicas live then; so do those of replicas that mix in another
                * way than D-PSGD, by push-sum or with checkpoints. On a device of CUDA survive,
                * and with the optimizer there delay_update, are DP_EUNSUPPORTED, as are offload of the
                * optimizer alone or with kept_share, and accumulating optimizers */
    bool survive;                   /* ranks that die are gone on without, see dp_trainer_lost. Each
                                     * shard is then on two ranks, and gradients are summed whole;
                                     * where both die at once the step is DP_ENOENT. Of replicas that
                                     * mix, which are then of one rank each, there are no checkpoints
                                     * in the folder */
    uint8_t reserved8[6];
    /* What of a rank may live on the host. */
    struct {
        bool parameters;            /* values, gradients and the optimizer's state; of layers at work
                                     * values and gradients are on the device, too */
        bool activations;           /* what forwards save, of as many micro-batches as it takes; or it is
                                     * computed again. That is of one order of ops: not with
                                     * DP_EXECUTE_MESSAGES, schedule.recompute or a list that does so */
        bool optimizer;             /* the optimizer's state */
        uint8_t reserved6[5];
        const char *folder;         /* which is in a file there (dp_offload_optimizer); NULL: in memory.
                                     * With DP_SUMS_ALL */
        int32_t layers;             /* whose values are on the device at once, 2 or more; 0: as many as
                                     * there is room for */
        uint32_t reserved7;
        double kept_share;          /* of the parameters of each stage, or of a rank alone: the last
                                     * layers with at most that stay on the device with their state */
        size_t device_bytes;        /* what a rank may have on the device of all that dp_trainer_parts
                                     * counts; 0, with parameters alone: without limit, and the room for
                                     * passing layers is as small as will do */
    } offload;
    struct {
        const char *folder;         /* NULL: nothing is saved; dp_trainer_new makes it, and fails where
                                     * rank 0 cannot write in it */
        uint64_t every;             /* after so many steps, and by dp_trainer_finish; 0: only there */
        int32_t keep;               /* the newest so many stay; 0: all */
        bool resume;                /* dp_trainer_new goes on from the newest in the folder, if any */
        uint8_t reserved9[3];
        const char *from;           /* otherwise from this one, as dp_trainer_resume; NULL: none */
        bool on_signal;             /* SIGTERM does not end the process: the step during which it has
                                     * come to a rank says so on all, and is saved where a folder is */
        uint8_t reserved10[7];
        const char *about;          /* a JSON object that its index has beside "step"; NULL: {} */
    } checkpoint;
};

/* The options by which members of a config are set, rows of one table that the environment and command
 * lines read: the variable of "mix-factor" is DUALPIPE_TRAIN_MIX_FACTOR, a command line has
 * --mix-factor. They are named as those of `dualpipe train`. */
DP_PUBLIC const struct dp_option *dp_trainer_options(int32_t *count);
/* Set what the environment says; all else stays as it is. Texts are those of the environment. DP_EINVAL
 * for an unknown variable of that area or a value that cannot be, with what was expected. */
DP_SIZED(dp_trainer_config_from_env, (config, sizeof(struct dp_trainer_config)),
         struct dp_trainer_config *config);

/* The data of a step, or of an evaluation: rows of all replicas, the same on every rank where a pipeline
 * begins (inputs) or ends (labels); other ranks need not have it. A tuple or list of tensors, one for
 * each of the border, with the rows as dimension 0; or loaders, called for the micro-batches that begin
 * or end on this rank, by their place in the batch of all replicas. Rows are cut into micro-batches by
 * the rule DP_CUT_TENSOR_SPLIT; there is at least one for each. All of it stays until the call has
 * returned. */
struct dp_batch {
    int64_t rows;                        /* the same on every rank; 0: config.rows */
    const struct dp_tree *inputs, *labels;
    const struct dp_loader *input_loader, *label_loader;
};

/* What a step was like: the same on every rank. */
struct dp_trainer_result {
    double loss;      /* mean over the rows, before the update */
    double norm;      /* of the whole gradient before clipping; of replicas that mix the largest */
    double rate;
    double loss_scale; /* 1: none */
    bool skipped;     /* the gradient was not finite: it was not used */
    bool ending;      /* a rank was told to end (checkpoint.on_signal), in this step or before */
    uint8_t reserved[2];
    int32_t lost;     /* ranks that died in this step, which was repeated without them */
    uint64_t step;    /* its number, from 0 */
};

/* ---- a layout before it runs ----------------------------------------------------------------- */

/* What trains, and how its ranks are connected. */
struct dp_trainer_machine {
    int ranks;
    size_t budget_bytes; /* of each rank; 0: none */
    double latency_ns;   /* of a message */
    double bytes_per_ns; /* between any two ranks; 0: without limit */
    double host_bytes_per_ns; /* of copies between a device and the host; 0: without limit */
};

/* A layout, and what is predicted of it. */
struct dp_trainer_plan {
    enum dp_schedule_kind kind;
    int32_t ranks, replicas, microbatches, slack;
    enum dp_recompute recompute;
    bool offload;    /* of activations, as few as keep a rank within the budget */
    int32_t stages, *layers_of_stage; /* [stages] */
    int64_t step_ns; /* of the pipeline, with the sums of gradients, and on the host norm and update */
    double bubble;   /* share of the pipeline's in which ranks wait, of all together */
    size_t *rank_bytes; /* [ranks] on the device: parameters, gradients, the optimizer's state,
                         * activations, save areas */
    size_t bytes;    /* of the rank that takes the most */
};

/* Predict what layouts of machine->ranks take: of the config's schedule and replicas, or, where these
 * are zero, of all that there can be, from the config's slack on, with each way to recompute, and where
 * there is a budget with offload of activations. microbatches, rows and optimizer must be given. Layers
 * are measured here, on the config's device, as DP_BALANCE_MEASURED does it. *out[*count]: those within
 * the budget first, the fastest first. Not collective. DP_EINVAL: there is none; DP_ENOMEM; errors of
 * callbacks. */
DP_SIZED(dp_trainer_plan, (config, model, machine, out, count, sizeof(struct dp_trainer_config)),
         const struct dp_trainer_config *config, const struct dp_model *model,
         const struct dp_trainer_machine *machine, struct dp_trainer_plan **out, int32_t *count);
DP_PUBLIC void dp_trainer_plan_free(struct dp_trainer_plan *plans, int32_t count); /* may be NULL */

/* ---- training -------------------------------------------------------------------------------- */

struct dp_trainer;

/* Collective. DP_EINVAL for a config or model that is not sound, naming the member, the layer or the
 * parameter; DP_EMISMATCH on every rank where ranks differ; DP_ENOMEM; errors of the layers below. With
 * comm NULL this process is alone. What the model points to and comm must stay. */
DP_SIZED(dp_trainer_new, (config, model, comm, out, sizeof(struct dp_trainer_config)),
         const struct dp_trainer_config *config, const struct dp_model *model,
         struct dp_comm *comm, struct dp_trainer **out);
DP_PUBLIC void dp_trainer_free(struct dp_trainer *trainer); /* may be NULL; not collective */

/* One step, and where one is due a checkpoint. Collective. result may be NULL. */
DP_PUBLIC int dp_trainer_step_sized(struct dp_trainer *trainer, const struct dp_batch *batch,
                                    struct dp_trainer_result *result, size_t size, size_t result_size);
static inline int dp_trainer_step(struct dp_trainer *trainer, const struct dp_batch *batch,
                                  struct dp_trainer_result *result)
{
    return dp_trainer_step_sized(trainer, batch, result, sizeof(struct dp_batch),
                                 sizeof(struct dp_trainer_result));
}
/* The loss of a batch without training; of replicas that mix that of their average. Collective. */
DP_SIZED(dp_trainer_evaluate, (trainer, batch, loss, sizeof(struct dp_batch)),
         struct dp_trainer *trainer, const struct dp_batch *batch, double *loss);
/* The number of the next step: it counts those that were trained, those before a resume included. */
DP_PUBLIC uint64_t dp_trainer_next_step(const struct dp_trainer *trainer);

/* From now on steps have this rate, the same on every rank, instead of the config's: for schedules of a
 * program's own. */
DP_PUBLIC void dp_trainer_set_rate(struct dp_trainer *trainer, double rate);

/* What a rank's steps are carried out by, for what watches and measures them (trace.h). */
struct dp_trainer_parts {
    const struct dp_schedule *schedule; /* of training; NULL: this rank is spare */
    struct dp_recorder *recorder;       /* of the last training step; the same */
    struct dp_comm *comm;               /* the ranks that live; NULL: alone */
    struct dp_comm *pipe;               /* the ranks of this replica; NULL: there is one */
    int replica, replicas, rank;        /* which one of how many, and the pipeline rank in it */
    uint32_t reserved;
    const struct dp_rank_pace *paces;   /* [ranks of comm] of the last step: compute_ns and step_ns */
    bool queued;  /* on a device: the recorder knows when work was queued, not when it was done */
    uint8_t reserved1[7];
    size_t bytes; /* of parameters, gradients, save areas, messages and the optimizer's state, but not of
                   * activations that wait on the host */
};
/* Valid until dp_trainer_free, or a call in which ranks died. */
DP_SIZED_REPORT(dp_trainer_parts, (trainer, out, sizeof(struct dp_trainer_parts)),
                const struct dp_trainer *trainer, struct dp_trainer_parts *out);
/* Of a trainer with offload: where things are, and how its training steps went. */
struct dp_trainer_offload {
    int64_t sets, evicted, recomputed; /* micro-batches of all stages of this replica's ranks: all; those
                                        * whose saved state waits on the host; is computed again */
    bool streamed;                     /* parameters live on the host, */
    uint8_t reserved[7];
    double kept;                       /* all but this share of this rank's */
    size_t device_bytes;               /* the most that this rank had on the device */
    /* In all training steps: copies at work, this rank waiting for them, the steps themselves. On CUDA
     * copies of parameters, for which a stream waits and not the host, are not in these. */
    int64_t up_ns, down_ns, wait_ns, steps_ns;
};
DP_SIZED_REPORT(dp_trainer_offload, (trainer, out, sizeof(struct dp_trainer_offload)),
                const struct dp_trainer *trainer, struct dp_trainer_offload *out);
/* The same bytes, with the state that offload.folder keeps in files, of the ranks of a pipeline of a
 * trainer that is not made: rank_bytes[P], P the ranks of config.list or schedule.ranks. Of
 * shards it is a replica's own; what replicas mix with is not among them. Errors of
 * dp_trainer_new and dp_pipeline_measure. */
DP_SIZED(dp_trainer_measure, (config, model, rank_bytes, sizeof(struct dp_trainer_config)),
         const struct dp_trainer_config *config, const struct dp_model *model, size_t *rank_bytes);

/* Write folder/step-N, in place of one of this step; its older neighbours beyond keep are
 * removed when it is whole. Collective. folder NULL: the config's. DP_EUNSUPPORTED: survive, of replicas
 * that mix. */
DP_PUBLIC int dp_trainer_save(struct dp_trainer *trainer, const char *folder);
/* Go on from a checkpoint: of a folder the newest, of step-N or of an index.json that one. It may have
 * been saved under another layout, unless replicas mix. Collective. folder NULL: the config's.
 * DP_ENOENT: there is none; DP_EMISMATCH: another model's. */
DP_PUBLIC int dp_trainer_resume(struct dp_trainer *trainer, const char *folder);

/* Whether a checkpoint has all that dp_trainer_resume would read: fault(user, "tensor 'NAME' is
 * missing") for each that is not there, or of another type or shape. Of the config only rows, optimizer,
 * delay_update, and of replicas that mix their number and the layout of one matter. Errors of
 * dp_trainer_measure; no rank is made. */
DP_SIZED(dp_trainer_verify,
         (config, model, checkpoint, fault, user, sizeof(struct dp_trainer_config)),
         const struct dp_trainer_config *config, const struct dp_model *model,
         const struct dp_checkpoint *checkpoint, void (*fault)(void *user, const char *sentence),
         void *user);

/* Which ranks died so far, by their numbers in the comm of dp_trainer_new: a list that lasts until the
 * next call; returns how many.
 *
 * With config.survive a rank that dies in a step, or in another call that all ranks make but a resume,
 * ends it on no other: what cannot be done without it is repeated among those that live, as many
 * replicas as they make; where that is less than one, in a smaller pipeline. Ranks left over are spare,
 * and go on to make the same calls, as do those that comm has beyond schedule.ranks x replicas at
 * first. The state of a stage goes on from any rank that held it: another replica's, or DualPipe's
 * mirror. Losses are what they would have been. Every rank gives the batch, since any may have the
 * first stage or the last next time. A rank whose callback has failed has to leave, and is one that died
 * to the others. DP_ENOENT: a stage is lost; a checkpoint may have it. Where dp_comm_survive was called
 * for comm before, a rank may die before dp_trainer_new, too.
 *
 * Replicas that mix are different, as each has a state of its own: no rank is spare, those that live mix
 * by a graph of so many (dp_mixer_survive), and losses are means over the rows that they have. A rank
 * that is lost may come back (dp_trainer_admit), and die again: it is then in the list twice. */
DP_PUBLIC int dp_trainer_lost(const struct dp_trainer *trainer, const int32_t **ranks);
/* survive, replicas that mix: between two calls admit `count` new ranks in the place of as many that are
 * lost, as dp_mixer_admit does with this config. Collective over those that live; the new ones call
 * dp_comm_join with the same config and then dp_trainer_join. DP_EAGAIN: one has died, did not come
 * in time or has another config or model (DP_EMISMATCH there); training can go on, and this may be
 * called again. */
DP_SIZED(dp_trainer_admit, (trainer, count, config, sizeof(struct dp_comm_config)),
         struct dp_trainer *trainer, int count, const struct dp_comm_config *config);
/* A new one, in the place of `rank`, which is a number in the first comm: comm is that of dp_comm_join,
 * the rest is the others', whose step it goes on with (dp_trainer_next_step). Errors of dp_trainer_new
 * and dp_mixer_join; this rank then has to leave. */
DP_SIZED(dp_trainer_join, (config, model, comm, rank, out, sizeof(struct dp_trainer_config)),
         const struct dp_trainer_config *config, const struct dp_model *model,
         struct dp_comm *comm, int rank, struct dp_trainer **out);
/* What a program does among the ranks of dp_trainer_parts between these calls, as one of them: after a
 * death part(user) is repeated by those that live, with the parts that they have then. It returns 0 or
 * an error of comm.h; no call of the trainer is in it. Collective. */
DP_PUBLIC int dp_trainer_carry_out(struct dp_trainer *trainer, int (*part)(void *user), void *user);

/* The training is over: a checkpoint is written where the config has a folder, replicas that mix become
 * their average, and what delay_update has left is done. Collective. */
DP_PUBLIC int dp_trainer_finish(struct dp_trainer *trainer);

/* The parameters of the whole model on one rank of those that live, in the order of layers, shared and
 * tied ones once, then the running statistics by their names in a checkpoint: *out[*count],
 * freed by dp_trainer_gathered_free; on other ranks NULL and 0. Collective. */
DP_PUBLIC int dp_trainer_gather(struct dp_trainer *trainer, int rank, struct dp_named_tensor **out,
                                int32_t *count);
DP_PUBLIC void dp_trainer_gathered_free(struct dp_named_tensor *tensors); /* may be NULL */

#ifdef __cplusplus
}
#endif
#endif
