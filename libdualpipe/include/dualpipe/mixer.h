/* SPDX-License-Identifier: Apache-2.0
 *
 * mixer.h - decentralized data parallel training: every worker computes its own gradients, updates its
 * own copy of the parameters, and averages them with a few others, by the rounds of a mixing graph
 * (mixing.h), while the next iteration computes.
 *
 *      dp_mixer_new(&config, &mixer);                    values are those of rank 0 from here on
 *      for (...) {
 *          dp_mixer_forward(mixer, true);
 *          loss, then backward; whenever a gradient is complete:
 *              dp_mixer_ready(mixer, parameter);
 *          dp_mixer_step(mixer);
 *      }
 *      dp_mixer_average(mixer, NULL);                    one model of all copies
 *
 * Order. Iteration 0 only records the order in which gradients become complete, from which buckets
 * are made (bucket.h in libdualpipe/mixing), and keeps its gradients; the first forward of iteration 1
 * updates with them and starts the first exchange. From then on, when the last gradient of a bucket is
 * there: wait for the bucket's exchange; x = ((1 - a) + a W_ii) x + a sum of W_ij x_j; update x with
 * the gradient; zero the gradient; advance the learning rate; start the exchange of the new x. So
 *
 *      x_i(t + 1) = sum_j W_ij x_j(t) - rate g_i(x_i(t))
 *
 * and an exchange has a whole iteration to arrive. Buckets are exchanged in the same order on all
 * ranks, whatever order gradients come in later. That is D-PSGD, or SGP where the graph is one of
 * push-sum; enum dp_mixer_algorithm names others.
 *
 * Values and gradients are read and written in place by dp_mixer_forward, _ready, _step and _average,
 * and by nothing else: between these calls they are the caller's. A gradient may move, as parameter.h
 * says, until it is ready.
 *
 * On a device (config.device) values and gradients are in the memory of a GPU, over an NCCL communicator
 * (nccl.h; dp_mixer_nccl_peers names its peers), and all is queued in config.stream, behind what it has
 * been given, while the host waits for nothing:
 *
 *      dp_mixer_forward           waits for the messages of two iterations before, not for the stream
 *      forward, backward in `stream`
 *      dp_mixer_ready, the last   x = W x, of the exchange before; none at first; then config.update
 *      an optimizer in `stream`   without config.update
 *      dp_mixer_step              sends x of round 0, 1, ...; with compat 1, 3, 4, 5 ...
 *
 * All values are one bucket from the beginning on, and iteration 0 is like any other. They are sent from
 * where they are, to be read and not written from dp_mixer_step to the next mix or average, and must be
 * equal on all workers at the start. Where a round is one of links or pairs the bits are those of the
 * host; in groups of more, which are messages between each two members, values are added up in another
 * order. Gradients are not read, and those of tied parameters not added up. There is D-PSGD in float32
 * and float64, and no state for checkpoints; the config says what else there is not. Memory on the
 * device: the values of each neighbor of a round, once more for an average that is reverted, and up to
 * 32 MiB.
 *
 * Errors. What goes wrong in an exchange aborts the communicator, and every rank gets DP_EABORTED
 * (comm.h); a mixer can then only be freed. One that survives goes on after a death, see there. All
 * functions that say so are collective. A mixer and its communicator belong to one thread at a time.
 *
 * Sources: Decent-DP (decent_dp.ddp) for the order of operations; Lian et al., 2017, for D-PSGD; Assran
 * et al., "Stochastic gradient push", 2019; Wang et al., "SlowMo", 2020, for local SGD with outer
 * momentum; Koloskova, Stich and Jaggi, "Decentralized stochastic
 * optimization and gossip algorithms with compressed communication" (CHOCO-SGD), 2019.
 */
#ifndef DUALPIPE_MIXER_H
#define DUALPIPE_MIXER_H

#include <dualpipe/comm.h>
#include <dualpipe/device.h>
#include <dualpipe/mixing.h>
#include <dualpipe/nccl.h>
#include <dualpipe/optimizer.h>

#ifdef __cplusplus
extern "C" {
#endif

struct dp_mixer;

/* What a pre_average hook is told, just before a bucket is mixed. */
struct dp_mixer_average_info {
    int32_t bucket;
    int64_t round;                    /* of the graph, counted from 0 without end */
    const struct dp_mix_group *group; /* NULL in a round of links */
    const int32_t *parameters;        /* [count] numbers in the config's list */
    void *const *received;            /* [count] beside each parameter: what is going to be added; of
                                       * compressed differences, before the factor */
    int32_t count;
};

/* What an update of the caller's is told about a bucket. */
struct dp_mixer_update_info {
    int32_t bucket;
    int32_t count;
    const int32_t *parameters; /* [count] numbers in the config's list */
    const bool *present;       /* [count] whether a gradient came; the others are not to be used */
    double rate; /* what the mixer's optimizer would take; with push-sum by the weight of the values */
    bool skip;   /* in: gradients are not to be used (an overflow, dp_mixer_update); out: they were not
                  * used, which lowers the loss scale, if the config has one */
};

/* x: values, g: the gradient at x, A(x, g): the optimizer's step, W: what a round of the graph does,
 * damped by the factor.
 *
 *  DPSGD      x = A(W x, g)
 *             With a constant rate and data split unevenly, workers end beside the optimum.
 *  LOCAL_SGD  x = A(x, g), local_steps times; then
 *             u = outer_momentum u + z - W x,  z = z - outer_rate u,  x = z
 *             With the graph `complete` that is SlowMo; with others z and u differ by worker. It mixes
 *             before the next gradient: an exchange is overlapped with the rest of the backward only,
 *             and ends in the next dp_mixer_forward. */
enum dp_mixer_algorithm { DP_MIXER_DPSGD, DP_MIXER_LOCAL_SGD, DP_MIXER_ALGORITHMS };

/* What workers send each other of a block, with DPSGD. INT8 sends the difference to what the receivers
 * know already, an int8 of each element and a float32 scale of each 256, and what was rounded off is
 * part of the next difference (CHOCO-SGD): the mean of all workers stays as it is to rounding, and with
 * a constant rate they end where they would end without.
 *
 * For each round of the graph's period blocks are kept of what others know of this worker, and of what
 * it knows of each of its neighbors. A group of more than two is messages between each two of its
 * members. */
enum dp_mixer_compression { DP_COMPRESSION_NONE, DP_COMPRESSION_INT8 };

enum dp_mixer_clip {
    DP_CLIP_BUCKET, /* each bucket by the 2-norm of its own gradients, when it is complete */
    DP_CLIP_GLOBAL  /* all by the norm of all of this worker's gradients: updates and exchanges then
                     * begin in dp_mixer_step */
};

struct dp_mixer_config {
    const struct dp_parameter *parameters; /* copied; what it points to must stay. Members of a tied */
    int32_t count;                         /* group are one parameter: gradients are added */
    uint32_t reserved;
    struct dp_optimizer_config optimizer;  /* its groups, if any, are by this list */
    /* NULL, or A in the place of `optimizer`: called for each bucket in its turn, with its values
     * mixed and its gradients clipped and without the loss scale. It updates the values in place,
     * and leaves the gradients as the next iteration is to find them (zero, where they are added
     * up). Its state is the caller's: neither in dp_mixer_state nor sent by dp_mixer_admit. Not 0:
     * the error that the call ends with, whose reason all workers read (dp_callback_error_text). */
    int (*update)(void *user, struct dp_mixer_update_info *info);
    const struct dp_rate *schedule; /* of the learning rate, a step an update; copied. NULL: rate */
    double rate;
    const struct dp_graph *graph; /* as many workers as comm has ranks; must stay */
    struct dp_comm *comm;         /* must stay */

    /* NULL: the host's memory. Otherwise that of all values, which are float32 or float64, and the
     * stream that all is queued in; both must stay. A device has no optimizer, takes no graph of
     * push-sum, and of the members below factor, compat and user (else DP_EUNSUPPORTED); separate,
     * bucket_bytes and those of the start change nothing. */
    struct dp_device *device;
    struct dp_device_stream *stream;

    double bucket_bytes; /* 0: 25 MiB */
    bool separate;       /* values stay where they are; otherwise they become views of blocks, and
                          * DLTensor.data of the values changes once, when buckets are made, and
                          * back when the mixer is freed */
    uint8_t reserved1[7];
    double factor;       /* a, above 0, up to 1; 0: 1 */
    double clip_norm;    /* 0: gradients are not clipped */
    enum dp_mixer_clip clip;
    uint32_t reserved2;
    const struct dp_loss_scale *loss_scale; /* gradients are of a loss multiplied with it; copied */
    DLTensor *const *buffers; /* [buffer_count] what is no parameter, as running means */
    int32_t buffer_count;
    bool start_buffers;   /* broadcast them from rank 0 at the start */
    bool start_frozen;    /* and frozen parameters */
    bool average_buffers; /* dp_mixer_average averages them, for good */
    uint8_t reserved3;

    /* LOCAL_SGD keeps state beside the values, in their type: values must be float32 or float64 and
     * gradients of the same type (else DP_EUNSUPPORTED); neither a graph of push-sum nor compat. */
    enum dp_mixer_algorithm algorithm;
    /* INT8: DPSGD, float32 or float64 (else DP_EUNSUPPORTED), neither push-sum nor compat. */
    enum dp_mixer_compression compression;
    /* Above 0: where the exchange of a bucket is not over when its next update begins, the update
     * mixes nothing and the next round is left out, by both sides of each pair; for so many rounds in
     * a row, then it is waited for. A worker is never further ahead of a neighbor. What was late is
     * added when it is there, so that the mean of all stays; dp_mixer_average and the state wait for
     * all. DPSGD, graphs with W_ij = W_ji, neither compat nor compression. For each round that may be
     * late the blocks of all neighbors are kept; groups are messages between each two. */
    int32_t staleness;
    int32_t local_steps;               /* LOCAL_SGD: at least 1; others: 0 */
    double outer_rate, outer_momentum; /* LOCAL_SGD: above 0; from 0, below 1. Others: 0 */

    /* comm is of a group that survives (dp_comm_survive), and so does the mixer: see dp_mixer_survive.
     * Rounds of more than two workers then cost a message more, and rounds of links one that all
     * workers wait for; with staleness neither does. Not compat (DP_EINVAL). */
    bool survive;

    /* Do as Decent-DP does: the first mix takes the exchange of round 1 with the weights of round 2,
     * and round 2 is left out (1, 3, 4, 5 ...); another factor holds from the next mix on; an overflow
     * skips the update of its bucket on its rank only, and loss scales of ranks may differ; buckets are
     * aligned to 32 elements. On a device the host waits for an exchange before it is mixed. */
    bool compat;
    uint8_t reserved4[6];

    /* NULL, or called before each bucket is mixed; not 0: as of update. */
    int (*pre_average)(void *user, const struct dp_mixer_average_info *info);
    void *user; /* of this and of update */
};

/* Collective: the ranks agree that graph, list, buffers and the options of mixing are the same, and the
 * values of rank 0 are broadcast.
 * With `survive` those that live go on without one that dies meanwhile, as after dp_mixer_survive: look
 * at the report's comm and graph. DP_EINVAL where the group does not survive.
 * DP_ESTATE without a communicator, or on a device without a stream; DP_EINVAL for a config, list or
 * graph that is not sound, or a graph of another size; DP_EMISMATCH on every rank if ranks differ;
 * DP_EUNSUPPORTED for memory that the host does not reach, and for a device whose communicator is not
 * ordered by streams; DP_ENOMEM; errors of comm.h. */
DP_SIZED(dp_mixer_new, (config, out, sizeof(struct dp_mixer_config)),
         const struct dp_mixer_config *config, struct dp_mixer **out);
/* Exchanges in flight are waited for, if the communicator still works. May be NULL. */
DP_PUBLIC void dp_mixer_free(struct dp_mixer *mixer);

/* A forward is about to begin. `training`: not an evaluation. The first call after iteration 0 makes
 * the buckets and is collective: DP_EMISMATCH on every rank if the ranks' gradients came in another
 * order. */
DP_PUBLIC int dp_mixer_forward(struct dp_mixer *mixer, bool training);
/* The gradient of a parameter of the list is complete. DP_EUNSUPPORTED if it was already since the last
 * forward, DP_EINVAL for no number of a parameter that has one. While accumulating it is only noted that
 * there is one. */
DP_PUBLIC int dp_mixer_ready(struct dp_mixer *mixer, int32_t parameter);
/* The backward is over. Buckets of which not every gradient came are updated with what there is: a
 * parameter without one is mixed, and otherwise left as it is with the state of its optimizer, as torch
 * leaves it. DP_ESTATE without a forward before, and if no gradient came at all. */
DP_PUBLIC int dp_mixer_step(struct dp_mixer *mixer);
/* How buckets are updated from now on, for a caller that knows more than this list: the norm of a
 * model in several stages, a rate of its own. Not part of the state. */
struct dp_mixer_update {
    double rate;  /* instead of the schedule's or the config's */
    double scale; /* gradients are multiplied with it, beside what clipping and the loss scale do */
    bool skip;    /* gradients are not used, as after an overflow; mixing goes on */
};
/* The update of iteration 0, which is part of the first forward of iteration 1, uses what holds
 * then. DP_EINVAL for a rate or scale that is not finite. */
DP_PUBLIC int dp_mixer_set_update(struct dp_mixer *mixer, const struct dp_mixer_update *update);
/* Another factor, as config.factor, for the exchanges that begin from now on: on all workers before the
 * same iteration. Not part of the state: a mixer is resumed with the one that held, then given the next.
 * DP_EINVAL for one that is not above 0 and up to 1. */
DP_PUBLIC int dp_mixer_set_factor(struct dp_mixer *mixer, double factor);
/* Gradients of the iterations from now on are added up by the caller and not used, until it is set to
 * false before the forward of the last one. */
DP_PUBLIC int dp_mixer_accumulate(struct dp_mixer *mixer, bool on);

struct dp_mixer_average {
    bool revert;      /* keep what there was, for dp_mixer_revert; exchanges in flight stay valid */
    bool distance;    /* compute the next member; on a device with compat only (else DP_EUNSUPPORTED),
                       * where values are kept as on the host, and the caller computes it */
    double l2;        /* out: of this worker's values to the average, over all parameters */
};
/* Collective: all workers' values become their average, with push-sum that by their weights, which is
 * what mixing keeps; and their buffers, if the config says so. what may be NULL: for good, exchanges in
 * flight are dropped. On a device the host waits until it is there. */
DP_PUBLIC int dp_mixer_average(struct dp_mixer *mixer, struct dp_mixer_average *what);
/* Values become what they were before the last average with `revert`. DP_ESTATE without one. With compat
 * that may be asked again, and after one with `distance`. */
DP_PUBLIC int dp_mixer_revert(struct dp_mixer *mixer);

/* ---- workers that die, and new ones --------------------------------------------------------------
 *
 *      err = an iteration                        DP_ECOMM, DP_ETIMEDOUT: a worker is dead or silent
 *      if (err == DP_ECOMM || err == DP_ETIMEDOUT)
 *          err = dp_mixer_survive(mixer);        then begin the report's iteration
 *
 * A worker may die at any moment, for instance when its process is killed. On every other worker the
 * mixer's next call, or the one that waits, returns DP_ECOMM. No value is mixed partially. */

/* Collective over the workers that live: go on without those that do not, as dp_comm_agree_alive finds
 * them and within its time. Before that, a worker on which a wait timed out, and which gives no sign
 * of life for another half second (or half of the deadline), as one that is stopped, is declared dead; a
 * worker that waits or computes gives a sign, the latter by its progress thread. More may die meanwhile.
 *
 *  - An exchange that one of the living has used is completed by all of them that took part; one that
 *    none has used is undone. So their mean is what it was. The same holds for an average. With
 *    staleness an exchange is one between two workers: what a third one gave is dropped.
 *  - With compression all know rank 0's values of each other from then on, as after the start: the next
 *    differences are to those, and have what was not sent before.
 *  - The graph (the report's) becomes one of the living, each on a node of its own: of the same kind
 *    where that exists for so few; directed-exp for push-sum in several rounds; otherwise each lost
 *    worker is taken out of every round, and what it took from one goes to those that it gave to, in
 *    the same shares. Its comm becomes a communicator of the living, whose ranks are the workers'
 *    new numbers.
 *  - All go on with the iteration of the one that has come furthest, also where that leaves one out,
 *    and with its learning rate and round. Gradients become zero: what was computed of the iteration
 *    that was cut off is dropped. Before the buckets were made, all begin again with iteration 0.
 *  - Values that an average was going to revert (dp_mixer_revert) are reverted.
 *  - Push-sum weights begin again with 1; the optimizers' state stays.
 *
 * One line says so, at the level DP_LOG_WARN, on the first of them. DP_ESTATE without config.survive;
 * DP_EABORTED where this worker was declared dead itself, or the group was aborted; DP_ENOMEM. */
DP_PUBLIC int dp_mixer_survive(struct dp_mixer *mixer);
/* Admit `count` new workers, or such as come back, between two iterations: collective over the
 * workers, with a config as for dp_comm_grow; the new ones call dp_comm_join with it and then
 * dp_mixer_join. What came is mixed, without an update. Each new worker gets values, buffers, the
 * optimizers' state and the iteration of a neighbour, and has the ranks after them. The graph is
 * the config's where there are as many workers again, otherwise one of the same kind for as many as
 * there are, each on a node of its own; where that does not exist, directed-exp for push-sum, torus
 * for one round, hypercube for several. What is not of the optimizers begins again as in
 * dp_mixer_survive. When to do so the workers must know: an iteration whose number all know, or
 * what one of them tells the others. One line says so.
 *
 * DP_ESTATE between a forward and its step; errors of dp_comm_grow: the workers are then as they were.
 * After DP_ECOMM or DP_ETIMEDOUT call dp_mixer_survive. */
DP_SIZED(dp_mixer_admit, (mixer, count, config, sizeof(struct dp_comm_config)),
         struct dp_mixer *mixer, int count, const struct dp_comm_config *config);
/* A new worker: config as that of the others, but comm is that of dp_comm_join, graph is not looked at,
 * and survive is taken to be set. DP_EMISMATCH where parameters or options are not those of the
 * workers; errors of dp_mixer_new; DP_ECOMM where one has died meanwhile. After an error close comm:
 * the workers go on without this one. */
DP_SIZED(dp_mixer_join, (config, out, sizeof(struct dp_mixer_config)),
         const struct dp_mixer_config *config, struct dp_mixer **out);

/* Where the mixer is. */
struct dp_mixer_report {
    /* What it communicates by, and the graph that it mixes by: the config's, or their successors, which
     * belong to the mixer and last until it is freed, or survives or admits again. */
    struct dp_comm *comm;
    const struct dp_graph *graph;
    int64_t iterations; /* that have begun */
    double rate;        /* of the first bucket's next update: 0 before there are buckets, and without a
                         * schedule */
    double loss_scale;  /* of the next backward; 1 without one */
    /* What this worker has done since the mixer was made: */
    int64_t sent_bytes; /* of blocks, or what they were compressed to; a sum over a group of k as that
                         * of a ring, 2 (k - 1) / k blocks */
    int64_t passed;     /* exchanges of a bucket that were left out, since the one before was late */
    int64_t longest;    /* most of these in a row: never above the config's staleness */
    int32_t buckets;    /* 0 before they are made */
    int32_t reserved;
};
DP_SIZED_REPORT(dp_mixer_report, (mixer, out, sizeof(struct dp_mixer_report)),
                const struct dp_mixer *mixer, struct dp_mixer_report *out);

/* One of the buckets: its parameters in order, and the elements of its
 * block. They last as long as the mixer. */
DP_PUBLIC int32_t dp_mixer_bucket(const struct dp_mixer *mixer, int32_t bucket,
                                  const int32_t **parameters, int64_t *block_elements);

/* The state, to be written to a checkpoint (checkpoint.h), of every rank its own. It is complete with
 * the values of the parameters: what is in flight is waited for and saved, and goes on to be mixed
 * when it is due. "mixer/numbers" comes first. Names and tensors last until the next call. DP_ESTATE
 * between a forward and its step, and while accumulating, DP_EUNSUPPORTED on a device, DP_ENOMEM, errors
 * of comm.h. */
DP_PUBLIC int dp_mixer_state(struct dp_mixer *mixer, const struct dp_named_tensor **tensors,
                             int32_t *count);
/* In a new mixer of the same config: go on from a state. numbers[count]: its "mixer/numbers". After that
 * read the parameters, and all that dp_mixer_state names, in place from the checkpoint. From then on the
 * run goes on with the same bits. Collective. DP_ESTATE in a mixer that has begun, DP_EMISMATCH for
 * numbers of another one. */
DP_PUBLIC int dp_mixer_resume(struct dp_mixer *mixer, const int64_t *numbers, int64_t count);

/* Which workers number `rank` exchanges messages with, for dp_nccl_config: out has room for
 * workers - 1. How many; DP_EINVAL, DP_ENOMEM. */
DP_PUBLIC int dp_mixer_nccl_peers(const struct dp_graph *graph, int rank, struct dp_nccl_peer *out);

#ifdef __cplusplus
}
#endif
#endif
