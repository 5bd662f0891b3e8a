/* SPDX-License-Identifier: Apache-2.0
 *
 * model.h - a model as a list of layers, the contract between a program and the trainer (trainer.h).
 *
 *      input -> layer 0 -> layer 1 -> ... -> layer L - 1 -> outputs, labels -> loss
 *
 * A layer is a part of the model that computes one micro-batch. It is told where its parameters are
 * and where their gradients go, so that the program keeps neither. A stage of a pipeline is a run of
 * layers, cut by the trainer; the tensors between layers of one stage, and everything that has to
 * last from the forward to the backward, are the library's.
 *
 * Tensors are DLPack's DLTensor, contiguous (strides NULL) and 256-byte aligned, in the memory of the
 * trainer's device (dp_trainer_config.device); the model's inputs and labels are the caller's own, or,
 * where those are in other memory, copies of them.
 *
 * On a device of CUDA a callback queues its work in call->stream and returns: the work begins behind
 * that of every call before it, nothing on the host waits for it, and the memory that the call points
 * to (not the call and its DLTensors) stays until it is done. A loss is queued, too, and writes its
 * value to `values`, which is in the device's memory; *count is written at once. A program keeps its
 * kernels (dp_device_kernel_find) with the layer's user. dp_batch_norm_forward and its like compute in
 * the host's memory.
 */
#ifndef DUALPIPE_MODEL_H
#define DUALPIPE_MODEL_H

#include <dualpipe/stage.h>

#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

struct dp_batch_norm;
struct dp_batch_norm_config;
struct dp_device;
struct dp_device_stream;

enum { DP_MODEL_LAYERS = 4096, DP_LAYER_PARAMETERS = 64, DP_LAYER_NAME = 64 };

/* The layer that is called, and the micro-batch. Valid during the call. */
struct dp_layer_call {
    int32_t layer;            /* its place in the model's list */
    int32_t mb, mb_global;    /* as in struct dp_stage_call */
    uint64_t step;
    bool training;            /* a backward follows; false in an evaluation (no dropout) */
    bool again;               /* forward, for the second time, for what it saves: outputs are unused */
    bool discarded;           /* forward: what it saves is thrown away, and it is called again later */
    const DLTensor *values;   /* [parameter_count] the layer's parameters */
    DLTensor *grads;          /* [parameter_count] where backward and weight add their gradients; data is
                               * NULL for a frozen parameter, and of all in a forward */
    const DLTensor *rounded;  /* [parameter_count] values of this step, rounded to the config's dtype;
                               * NULL: it has none */
    const DLTensor *in;       /* the micro-batch's inputs, also in backward and weight, unless the layer
                               * drops them (dp_layer.drops_input) */
    void *save;               /* from forward to the weight part; NULL where no bytes were asked for */
    void *save_input;         /* from forward to backward */
    void *save_weight;        /* from backward to the weight part */
    void *scratch;            /* during this call, contents undefined */
    void *stream;             /* CUDA: the CUstream to queue the work in; host: NULL */
    struct dp_random_key random; /* of (seed, step, layer, mb_global), the same in each call. For several
                                  * streams: dp_random_key(random.key, step, place, mb_global) */
    struct dp_batch_norm *const *norms; /* [norm_count] */
    struct dp_layer_skips *skips;       /* of dp_layer_skip_tensor */
};

/* The callbacks, with the layer's user. They return 0 or a negative errno, which ends the step on every
 * rank; the sentence names rank, layer and micro-batch, and ends with what dp_callback_error was told.
 * Outputs and gins must be written in full. Where there is no gradient, data is NULL. In a
 * step that trains, a forward may hand over an output of its own by setting data, compact and as it is
 * until its backward begins, where all layers behind it drop their inputs. */
struct dp_layer_ops {
    int (*forward)(void *user, const struct dp_layer_call *call, const DLTensor *in, DLTensor *out);
    /* DP_BACKWARD_FULL: gin, and what weight does; DP_BACKWARD_INPUT: gin alone. */
    int (*backward)(void *user, const struct dp_layer_call *call, const DLTensor *gout, DLTensor *gin,
                    enum dp_backward_mode mode);
    /* What DP_BACKWARD_INPUT left out. NULL: backward is not split, its mode is DP_BACKWARD_FULL. */
    int (*weight)(void *user, const struct dp_layer_call *call);
    uint64_t reserved[2];
};

/* What a parameter is before there is one. */
struct dp_parameter_spec {
    const char *name;    /* within its layer; without [, which begins the range of a part of it */
    const char *tied;    /* whole name of a parameter of an earlier layer that this one is; else NULL */
    uint32_t flags;      /* of enum dp_parameter_flag */
    DLDataType dtype;    /* float32 or float64 */
    int32_t ndim;
    int64_t shape[DP_MAX_DIMS];
    double mean, deviation; /* initial values: normal, from the seed and the whole name */
    /* Or this writes them, to host memory; index: of the parameter in its layer. */
    int (*fill)(void *user, int32_t index, uint64_t seed, DLTensor *value);
};

/* Layers that belong together share one struct: the model's list may name it several times, and then
 * all of them have the same parameters. */
struct dp_layer {
    const struct dp_layer_ops *ops;
    void *user;
    const char *name;          /* whole names of its parameters are "NAME PARAMETER"; "": "PARAMETER";
                                * NULL: "layer N PARAMETER" */
    const struct dp_parameter_spec *parameters;
    int32_t parameter_count;
    const struct dp_border *out; /* as dp_model.input */
    struct dp_save_bytes save, save_row; /* of one micro-batch, and more for each of its rows */
    size_t scratch_bytes, scratch_row_bytes; /* during a call, likewise */
    bool drops_input;          /* backward and weight do not read call->in: it need not be kept */
    const struct dp_batch_norm_config *norms; /* [norm_count] batch normalisations, whose running */
    int32_t norm_count;        /* statistics are committed after each step and saved; microbatches 0 */
    double cost;               /* relative, for the cut into stages; 0: elements of its parameters + 1 */
    uint64_t reserved[2];
};

/* A tensor that goes from one layer to a later one beside those between. */
struct dp_layer_skip {
    const char *name;
    int32_t from, to;         /* places in the list */
    struct dp_tensor_spec tensor;
};

struct dp_model {
    const struct dp_layer *const *layers; /* [layer_count] */
    int32_t layer_count;
    /* Borders describe one micro-batch. A dimension with extent 1 is one of rows: its shape is that of
     * one row, 1 or a multiple, and is multiplied with the rows of the micro-batch. */
    const struct dp_border *input;
    const struct dp_border *labels;    /* NULL: none */
    const struct dp_layer_skip *skips; /* [skip_count] */
    int32_t skip_count;
    bool concurrent;                   /* on a device of CUDA the backward of a layer may be queued in
                                        * another stream, beside the forward of another one: what both
                                        * write to is their own. DualPipe's overlapped pairs use it */
    const struct dp_loss_ops *loss;    /* of one value: the mean over the micro-batch's rows */
    void *loss_user;
    /* NULL, or called with loss_user where ranks that live have been laid out again and the stages of
     * before go: the parameters and batch norms that callbacks were told of are there a last time. */
    void (*leave)(void *user);
    uint64_t reserved[2];
};

/* A border of one tensor [rows, width]. */
static inline struct dp_border dp_rows(DLDataType dtype, int64_t width)
{
    struct dp_border b;

    memset(&b, 0, sizeof(b));
    b.count = 1;
    b.tensors[0].dtype = dtype;
    b.tensors[0].ndim = 2;
    b.tensors[0].shape[0] = b.tensors[0].extent[0] = 1;
    b.tensors[0].shape[1] = width;
    return b;
}

/* Losses that many models have. Squares: half the sum of squares of out - label, a mean over rows; both
 * of one tensor of float32 or float64 and of the same shape. Cross-entropy: of logits [..., classes] in
 * float32 or float64 and labels [...] that are classes, in uint8, int32 or int64; a mean over labels, in
 * nats. DP_EMISMATCH for other tensors, DP_EINVAL for a label that is no class, DP_EUNSUPPORTED on a
 * device of CUDA. */
DP_PUBLIC const struct dp_loss_ops *dp_loss_squares(void);
DP_PUBLIC const struct dp_loss_ops *dp_loss_cross_entropy(void);

/* Skips, in the callbacks of the two layers, as dp_skip_stash and the others of stage.h: forward of the
 * first: DP_SKIP_STASH; of the second: DP_SKIP_POP, to be read. backward of the second:
 * DP_SKIP_POP_GRADIENT, to be filled in; of the first: DP_SKIP_STASH_GRADIENT, to be added. NULL, and
 * the step fails, for a name that the layer does not have. */
DP_PUBLIC DLTensor *dp_layer_skip_tensor(const struct dp_layer_call *call, enum dp_skip_end end,
                                         const char *name);

/* ---- layers without a trainer ------------------------------------------------------------------ */

/* Runs of a model's layers, each with its parameters: the stages of a pipeline of the caller's own
 * (pipeline.h), or to be called by hand, to measure layers or to use a model that has learnt. */
struct dp_layers_config {
    const struct dp_model *model; /* what it points to must stay */
    int64_t rows;                 /* of a micro-batch, the most */
    uint64_t seed;                /* initial values begin from it */
    DLDataType dtype;             /* of rounded values, those of the beginning; zeroed: none */
    uint32_t reserved;
    struct dp_device *device;     /* NULL: the host. It must stay, as */
    struct dp_device_stream *stream; /* that of the calls; NULL: one of the library's */
    bool bare; /* no memory: runs say only what their parameters and save areas are */
    uint8_t reserved1[7];
};
struct dp_layers;
/* DP_EINVAL for a model that is not sound; DP_ENOMEM. */
DP_SIZED(dp_layers_new, (config, out, sizeof(struct dp_layers_config)),
         const struct dp_layers_config *config, struct dp_layers **out);
DP_PUBLIC void dp_layers_free(struct dp_layers *layers); /* may be NULL */
/* Layers first .. end - 1 as a stage, which lasts as long as `layers`. Random keys follow from the seed,
 * and from step and mb_global of a call; skips to other layers are the pipeline's
 * (dp_pipeline_config.skips) of the same name. DP_EINVAL, DP_ENOMEM; DP_EUNSUPPORTED for values that are
 * not rounded to dtype, and for layers with batch norms, unless bare; errors of a fill. */
DP_PUBLIC int dp_layers_add(struct dp_layers *layers, int32_t first, int32_t end,
                            struct dp_stage *out);

#ifdef __cplusplus
}
#endif
#endif
