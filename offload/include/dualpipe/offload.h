/* SPDX-License-Identifier: Apache-2.0
 *
 * offload.h - train a model that does not fit the device: its parameters, gradients and optimizer
 * state live in host memory, and pass over the device shard by shard.
 */
#ifndef DUALPIPE_OFFLOAD_H
#define DUALPIPE_OFFLOAD_H

#include <dualpipe/checkpoint.h>
#include <dualpipe/device.h>
#include <dualpipe/optimizer.h>
#include <dualpipe/parameter.h>
#include <dualpipe/random.h>
#include <dualpipe/schedule.h>
#include <dualpipe/stage.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- splitting a model into shards ----------------------------------------------------------- */

enum dp_offload_split {
    DP_OFFLOAD_SPLIT_BALANCED, /* the largest shard is as small as can be; no shard is empty */
    DP_OFFLOAD_SPLIT_COMPAT    /* as fairscale's OffloadModel splits; shards may be empty */
};

/* Split layers of sizes[layers] (elements or bytes; 0 is legal) into `slices` shards of consecutive
 * layers, or into as many as there are layers if these are fewer. Shard i holds layers first[i] to
 * first[i + 1] - 1; first needs room for slices + 1. *shards: how many.
 *
 * Balanced: of all ways to do so with the smallest largest shard, that whose first shards are the
 * longest. Compat: the target is the sum over the number of shards, rounded down. A layer that
 * would bring a shard that holds something beyond the target opens the next one; the last takes the
 * rest.
 *
 * DP_EINVAL: no layers, no slices, a negative size, a sum beyond INT64_MAX. */
DP_PUBLIC int dp_offload_split(enum dp_offload_split rule, const int64_t *sizes, int32_t layers,
                               int32_t slices, int32_t *first, int32_t *shards);

/* ---- a step as data -------------------------------------------------------------------------- */

/* What happens to shards, in the order in which it is begun. Copies go on while later events are
 * begun; what must not overlap is kept apart by events of the device. */
enum dp_offload_kind {
    DP_OFFLOAD_LOAD,    /* the shard's parameters to its slot */
    DP_OFFLOAD_DROP,    /* its slot may hold another one; nothing is copied back */
    DP_OFFLOAD_FORWARD, /* all micro-batches */
    DP_OFFLOAD_BACKWARD /* all micro-batches; then the gradients go to the host */
};
struct dp_offload_event {
    enum dp_offload_kind kind;
    int32_t shard, slot;
};

struct dp_offload_plan {
    int32_t shards;
    int32_t slots;    /* on the device, each for one shard */
    int32_t distance; /* how many shards ahead are loaded; at most slots - 1 */
    bool forward_only;
    bool drop_at_once; /* right after each use, as OffloadModel does; otherwise when the slot is
                        * needed */
};

/* The events of one step: at most 6 for each shard, events[max] of them are written. The shard
 * whose next use is the farthest away is dropped first, so that the last `slots` shards of the
 * forward are still there when the backward begins; and what is there at the end stays there.
 * DP_EINVAL: no shards, no slots, a distance that does not fit. */
DP_PUBLIC int dp_offload_plan(const struct dp_offload_plan *plan, struct dp_offload_event *events,
                              size_t max, size_t *count);

/* ---- activations of a pipeline ---------------------------------------------------------------- */

/* What a pipeline keeps on the device between forwards and backwards, within a number of bytes. */
struct dp_offload_activations {
    const struct dp_border *borders; /* [stages + 1] as in struct dp_pipeline_config */
    const struct dp_stage *stages;   /* [slots of all ranks] as in schedule->slots: what they save */
    size_t budget_bytes;             /* of each rank: activations, gradients and save areas, as
                                      * dp_pipeline_memory has them */
    const size_t *beside_bytes;      /* [ranks] of these, what something else takes; NULL: nothing */
    bool keep;                       /* all: only see whether it fits */
    bool recompute;                  /* none goes to the host: what is not kept is computed again */
    bool sums;                       /* the sums of fixed order count, too, by stages' parameters */
    const struct dp_schedule *also;  /* another schedule of the pipeline, which has to fit; or NULL */
    int lead;                        /* of dp_schedule_add_evictions */
    int order_blocks;                /* of the pipeline; 0: any order */
    const struct dp_cost *cost;      /* NULL: rather evict than recompute */
    /* Not NULL: what a rank has on the device under a schedule, instead of what follows from borders,
     * stages, sums, also and order_blocks. 0 or an error, which ends the choice. */
    int (*measure)(void *user, const struct dp_schedule *s, int rank, size_t *bytes);
    void *measure_user;
};

struct dp_offload_choice {
    int64_t sets, evicted, recomputed; /* micro-batches of all slots of all ranks */
    size_t peak_bytes;                 /* of the rank that needs the most, without what is beside */
    int64_t step_ns;                   /* predicted; 0 without cost */
};

/* Add EVICTs and FETCHes, and RECOMPUTEs, to as few micro-batches as will do, those first whose backward
 * is the farthest from the forward. Which share of these a rank computes again (none, a quarter ... all,
 * the ones with the nearest backward) is what the simulator finds the fastest, rank by rank. The bytes
 * are those of the pipeline's own plan. DP_ENOMEM names a rank that takes more all the same, DP_EINVAL a
 * config that is not sound, DP_ESTATE a schedule that evicts or recomputes already; then s is as it was.
 * */
DP_PUBLIC int dp_offload_activations(struct dp_schedule *s,
                                     const struct dp_offload_activations *config,
                                     struct dp_offload_choice *out);

/* ---- an optimizer whose state is in a file ----------------------------------------------------- */

/* What does not fit memory either. A step sweeps over a file in a folder, on an NVMe drive for
 * instance, in parts: one is read and one is written, through io_uring and by direct I/O, while one is
 * computed; where the system refuses either, by threads of their own and by the page cache, and a
 * warning says so. The results are those
 * of dp_optimizer, to the last bit. The file has no name, so nothing of it is left when the process
 * ends; the state is kept by checkpoints. One thread. */
struct dp_offload_optimizer;

struct dp_offload_optimizer_config {
    struct dp_optimizer_config optimizer; /* any kind that has state, or 16-bit values */
    const char *folder;                   /* needs room for the state twice */
    size_t chunk_bytes;                   /* of each array at once; 0: 1 MiB */
    bool threads;                         /* read and write by threads, also where io_uring is there */
    uint8_t reserved[7];
};

/* The list is copied; what it points to must stay. The file has all its room from the start. DP_EINVAL,
 * DP_ENOMEM; DP_EIO: the folder cannot be written, or has not enough room. */
DP_SIZED(dp_offload_optimizer_new,
         (config, parameters, count, out, sizeof(struct dp_offload_optimizer_config)),
         const struct dp_offload_optimizer_config *config, const struct dp_parameter *parameters,
         int32_t count, struct dp_offload_optimizer **out);
/* o may be NULL. */
DP_PUBLIC void dp_offload_optimizer_free(struct dp_offload_optimizer *o);

/* One update. DP_EUNSUPPORTED: `mix` or `skip`. DP_EIO: a part could not be read or written. Parameters
 * have then taken the step in part, no state is lost, and the same step, with the gradients that are
 * there, can be repeated: what is done is left out. */
DP_SIZED(dp_offload_optimizer_step, (o, step, sizeof(struct dp_optimizer_step)),
         struct dp_offload_optimizer *o, const struct dp_optimizer_step *step);

/* As dp_optimizer_state, in the file, which is mapped: to be read or written until the next step.
 * DP_ESTATE after a step that has failed. */
DP_PUBLIC int32_t dp_offload_optimizer_state_count(const struct dp_offload_optimizer *o);
DP_PUBLIC int dp_offload_optimizer_state(struct dp_offload_optimizer *o,
                                         const struct dp_named_tensor **out);

/* ---- streaming a model through the device ---------------------------------------------------- */

/* A layer is called for one micro-batch of one step. Valid during the call. */
struct dp_offload_call {
    int32_t layer, mb;
    int64_t first_row, rows;     /* of the batch, along dimension 0 */
    uint64_t step;
    bool training;               /* a backward follows */
    bool again;                  /* forward for the second time: the save area of the first is gone */
    struct dp_random_key random; /* of (seed, step, layer, mb): the same when it is called again */
    const DLTensor *values;      /* [parameter_count] where the layer's parameters are now */
    DLTensor *grads;             /* [parameter_count] where to add their gradients, in a backward; data
                                  * is NULL for frozen ones. Both of the types of mixed precision */
    const DLTensor *in;          /* the inputs, also in a backward */
    void *save;                  /* save_bytes, the same from forward to backward */
    void *stream;                /* as in struct dp_stage_call: CUDA: queue the work there; host: NULL */
    struct dp_device_stream *queue; /* the same, for dp_device_copy and so on; the host computes at once,
                                     * and does not use it */
};

/* Tensors are contiguous, on the device, and as many as the border has; a tensor without a gradient
 * has data NULL in gout and gin. 0, or a negative errno, which ends the step with DP_ECALLBACK. */
struct dp_offload_layer_ops {
    int (*forward)(void *user, const struct dp_offload_call *call, const DLTensor *in,
                   DLTensor *out);
    /* NULL: a layer that is never trained. */
    int (*backward)(void *user, const struct dp_offload_call *call, const DLTensor *gout,
                    DLTensor *gin);
    uint64_t reserved[2];
};

struct dp_offload_layer {
    const struct dp_offload_layer_ops *ops;
    void *user;
    const struct dp_parameter *parameters; /* on the host. Values are copied when the model is opened;
                                            * neither they nor the gradients are used after. Tied
                                            * parameters are one, also between layers: those of one
                                            * group, and those whose values lie in the same memory. */
    int32_t parameter_count;
    size_t save_bytes;                     /* of a micro-batch */
    const struct dp_border *out;           /* of the whole batch: dimension 0 of every tensor is the
                                            * batch's rows, and is cut into micro-batches */
    uint64_t reserved[2];
};

/* ---- a graph of layers ------------------------------------------------------------------------ */

/* A model that is no sequence: branches, skip connections, several heads. Each node takes tensors that
 * nodes before it have made, or that are the model's input, wherever those are. What later nodes still
 * take is passed on from layer to layer, and so from shard to shard; gradients of a tensor that several
 * nodes take are added up, the last node's first.
 *
 *      x -- a --+-- b -- c --+-- e        borders     x | a | a b | a c | a c d | e
 *               |            |            (of nodes a, b, c, d, e in this order, of which d takes a)
 *               +---- d -----+
 *
 * The result is a list of layers for struct dp_offload_config, in the order of the nodes, which
 * is cut into shards as any other. */
struct dp_offload_graph;

struct dp_offload_source {
    int32_t node, tensor; /* which of a node's outputs; node -1: of the model's input */
};

struct dp_offload_node {
    struct dp_offload_layer layer; /* called with the tensors that it takes, and those that it makes: its
                                    * `out` has the latter only. Kept_bytes and so on as ever */
    const struct dp_offload_source *in;
    int32_t in_count; /* 1 to DP_MAX_TENSORS, no tensor twice */
};

struct dp_offload_graph_config {
    struct dp_device *device;
    const struct dp_offload_node *nodes;
    int32_t node_count;
    const struct dp_border *input;           /* of the model */
    const struct dp_offload_source *outputs; /* of the model, in this order, each once */
    int32_t output_count;
};

/* What config points to must stay until the graph is freed. DP_EINVAL names a node that takes what is
 * not there yet, or makes what is not taken, and a border of more than DP_MAX_TENSORS tensors;
 * DP_EUNSUPPORTED: gradients must be added that this device cannot add; DP_ENOMEM. */
DP_PUBLIC int dp_offload_graph_new(const struct dp_offload_graph_config *config,
                                   struct dp_offload_graph **out);
/* [node_count], for the config of a model, which must be closed before the graph is freed. */
DP_PUBLIC const struct dp_offload_layer *dp_offload_graph_layers(const struct dp_offload_graph *g);
/* g may be NULL. */
DP_PUBLIC void dp_offload_graph_free(struct dp_offload_graph *g);

/* ---- the model -------------------------------------------------------------------------------- */

/* Work on one shard's parameters on the host, once their gradients are there. Called in a thread of
 * the device's, in the order of the backward (the last shard first), while earlier layers compute.
 * The next load of the shard waits for it. 0, or a negative errno, which dp_offload_finish returns.
 * */
typedef int (*dp_offload_update_fn)(void *user, int32_t shard,
                                    const struct dp_parameter *parameters, int32_t count);

struct dp_offload_config {
    struct dp_device *device;               /* a host device should have 2 workers or more */
    struct dp_device_stream *stream;        /* of the device, where layers compute; must stay. NULL: one
                                             * of the model's own */
    const struct dp_offload_layer *layers;  /* the model, in order; what it points to must stay */
    int32_t layer_count;
    uint32_t reserved;
    const struct dp_border *input;          /* of the whole batch */
    int32_t slices;                         /* at least 1; or, with `first`, how many shards these are */
    uint32_t reserved1;
    const int32_t *first;                   /* [slices + 1] ready-made shards; NULL: by the rule */
    enum dp_offload_split split;            /* balanced goes by bytes, compat by elements */
    int32_t microbatches;                   /* 0: 1. Cut by the chunk rule: fewer may come out */
    int32_t slots, distance;                /* of dp_offload_plan; 0, 0: 2 slots, 1 ahead. There are no
                                             * more slots than shards */
    bool drop_at_once;
    bool checkpoint;      /* keep only what crosses from shard to shard, compute the rest again */
    bool boundaries_down; /* with checkpoint: these, too, wait on the host */
    bool forward_only;    /* no room for gradients */
    /* Mixed precision, for float32 parameters: bfloat16 or float16 on the device and on the way there
     * (values) and back (gradients); bits 0: as they are on the host, which keeps float32 masters and
     * gradients in any case. Masters are rounded to the nearest after their update, and when a step
     * begins with others than the last one had. Layers see tensors of these types: in a backward they
     * add to gradients of grads_type, which are added to float32 ones on the host (accumulate, tied
     * parameters). The loss scale, the clip factor and what to do after an overflow are the
     * caller's (dp_loss_scale, dp_clip_factor, dp_optimizer_step). */
    DLDataType values_type, grads_type;
    bool check;           /* fill slots with NaNs when a shard is dropped, and compare what was loaded
                           * with what was sent: for tests, takes more than twice the copies */
    uint8_t reserved2[3];
    uint64_t seed;
    int64_t timeout_ns;   /* longest wait for the device; 0: 60 s */
    dp_offload_update_fn update;            /* NULL: none */
    void *update_user;
    /* NULL, or told of every event when it is begun. */
    void (*trace)(void *user, const struct dp_offload_event *event);
    void *trace_user;
};

struct dp_offload;

/* What fits the device: sets slices, slots, distance and, where it must, checkpoint and then
 * boundaries_down (if `boundaries`) so that the model needs no more device memory than the device's
 * limit (dp_device_limit) leaves: the first of these modes that fits, with the fewest bytes to copy.
 * slots and distance are kept where slots is not 0, but no more than there are shards. config->first
 * must be NULL. DP_ENOMEM says which limit would do; other errors as for dp_offload_open. */
DP_SIZED(dp_offload_fit, (config, boundaries, sizeof(struct dp_offload_config)),
         struct dp_offload_config *config, bool boundaries);

/* All memory is allocated here: on the host near the device, or where the system puts it, and threads
 * that copy and update run on the CPUs of that node. DP_EINVAL names what is wrong with the config;
 * DP_EUNSUPPORTED what this device cannot; DP_ENOMEM. */
DP_SIZED(dp_offload_open, (config, out, sizeof(struct dp_offload_config)),
         const struct dp_offload_config *config, struct dp_offload **out);
/* Waits for what is in flight. o may be NULL. */
DP_PUBLIC void dp_offload_close(struct dp_offload *o);

/* The parameters where they live: in pinned host memory, once each, in the order of the layers. The
 * list and its tensors stay until close. Between dp_offload_finish and the next step the values may
 * be written, and the gradients are those of the last step. */
DP_PUBLIC const struct dp_parameter *dp_offload_parameters(const struct dp_offload *o,
                                                           int32_t *count);

/* Whole batches, contiguous, on the host or the device. Outputs and gins may be NULL, alone or all.
 * */
struct dp_offload_step {
    const DLTensor *const *inputs; /* [tensors of the input] */
    DLTensor *const *outputs;      /* [tensors of the last layer] */
    bool training;                 /* a dp_offload_backward follows */
    bool unchanged; /* nothing has written the values since the last step: shards that are still on the
                     * device need not be loaded again. Not looked at where there is an update. */
};
/* Returns when the outputs are there. DP_EINVAL, DP_ECALLBACK, DP_ETIMEDOUT, DP_EIO. After a
 * failure the step can be begun again. */
DP_PUBLIC int dp_offload_forward(struct dp_offload *o, const struct dp_offload_step *step);

struct dp_offload_gradients {
    const DLTensor *const *gouts; /* [tensors of the last layer]; NULL where there is none */
    DLTensor *const *gins;        /* [tensors of the input]; NULL where it is not wanted */
    bool accumulate;              /* add to the gradients that are there; otherwise they are replaced */
};
/* Returns when the input's gradients are there; the parameters' may still be on their way, and the
 * updates at work: dp_offload_finish. Counts the step. DP_ESTATE: no training forward came before.
 * */
DP_PUBLIC int dp_offload_backward(struct dp_offload *o, const struct dp_offload_gradients *g);

/* Wait until all gradients are down and all updates done. The first error of an update; DP_EIO
 * where a checked load was wrong. */
DP_PUBLIC int dp_offload_finish(struct dp_offload *o);

/* The number of the next step, which keys random numbers; counts up from 0 with every backward. */
DP_PUBLIC void dp_offload_seek(struct dp_offload *o, uint64_t step);

struct dp_offload_memory {
    int32_t shards, slots;       /* slots: no more than are used */
    size_t largest_shard_bytes;  /* parameters and gradients, of those in slots */
    size_t slots_bytes, activations_bytes;
    size_t device_bytes; /* both */
    size_t host_bytes;
    uint64_t loads, loaded_bytes, down_bytes; /* since it was opened; of parameters, of gradients */
};
DP_SIZED_REPORT(dp_offload_memory, (o, out, sizeof(struct dp_offload_memory)),
                const struct dp_offload *o, struct dp_offload_memory *out);

#ifdef __cplusplus
}
#endif
#endif
